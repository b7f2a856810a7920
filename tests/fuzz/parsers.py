"""Every parser of what others write, by name: its samples, what it may raise, and what must hold of its answer.

Inputs are committed samples with a few things wrong (`mutations`). An input is known by parser, seed and number, so
that a finding can be played again. A new parser is one row of `PARSERS`.
"""

import asyncio
import gzip
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random
from time import thread_time
from typing import Any, Final

import httpx
from pydantic_core import from_json
from tests.api.cases import CASES
from tests.api.test_any_object import EVERYTHING
from tests.control.adopting_bed import theirs
from tests.control.crd_schema import violation
from tests.control.objects import deployment_object, gpu_pod, node_object, pod_object
from tests.fuzz.mutations import mutated_bytes, mutated_json, mutated_text, typed_json

from vllm_autotuner.api.cron import parse_schedule
from vllm_autotuner.api.durations import parse_duration
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.spec import Objectives
from vllm_autotuner.budgets import LOG_LINE_BYTES
from vllm_autotuner.cluster.bounded_json import bounded
from vllm_autotuner.cluster.errors import ClusterError, from_response
from vllm_autotuner.control.decide.annotation_commands import asked, is_paused
from vllm_autotuner.control.decide.fleet_budget import part_of
from vllm_autotuner.control.read.adopted import adopted_from
from vllm_autotuner.control.read.gpu_views import devices_left, gpu_resource, held_devices, node_view
from vllm_autotuner.control.read.views import deployment_view, pod_view, service_entry
from vllm_autotuner.control.run.operator_metrics import status_figures
from vllm_autotuner.control.write.announcements import abandoned, standing
from vllm_autotuner.control.write.lost_parts import lost_parts
from vllm_autotuner.diagnosis.diagnose import History, case_of, diagnose
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.engine.catalogue import CatalogueError, read_catalogue
from vllm_autotuner.engine.command_line import changed, command_line, removed, serving_containers
from vllm_autotuner.engine.flags import FlagError, human_readable_int, parse_command_line, parse_effective, parse_flags
from vllm_autotuner.engine.foreign_servers import foreign_server
from vllm_autotuner.engine.geometry import geometry_from_config, geometry_named
from vllm_autotuner.engine.startup_log import parse_startup_failure
from vllm_autotuner.guardrails.change_windows import why_closed
from vllm_autotuner.observation.answer_reader import AnswerReader
from vllm_autotuner.observation.errors import SourceError
from vllm_autotuner.observation.families import Families
from vllm_autotuner.observation.metrics_text import read_samples
from vllm_autotuner.observation.observation import observe
from vllm_autotuner.observation.prometheus import PrometheusAddress, PrometheusSource
from vllm_autotuner.observation.recording import Recording, load_recording
from vllm_autotuner.observation.snapshot import WindowSettings, take_snapshot
from vllm_autotuner.workload.adoption import Target, marker_of, read_target
from vllm_autotuner.workload.rendering import render_deployment

__all__ = ["PARSERS", "Finding", "Outcome", "Parser", "tried"]

DATA: Final = Path(__file__).resolve().parents[1] / "data" / "vllm-0.32"
NOW: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
MOST_SECONDS: Final = 1.0
"""CPU time of one input of at most 96 KB. The worst input of each parser that is known took 4 s and more, once."""
LONGEST_MESSAGE: Final = 4096
"""Characters of an error: it reaches a condition, a log or a terminal."""


class Broken(AssertionError):
    """An answer that must not be."""


@dataclass(frozen=True, kw_only=True)
class Parser:
    """One parser, or a few that read the same."""

    name: str
    make: Callable[[Random], Any]
    """Makes an input."""
    parse: Callable[[Any], object]
    """Reads it, and holds the answer against what must be true of it. Raises Broken."""
    raises: tuple[type[Exception], ...] = ()
    """What is documented."""
    in_every_run: int = 4000
    """Inputs in `make test`: a few seconds of them, all parsers together less than a minute."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One input that a parser does not take as it should."""

    number: int
    problem: str


@dataclass(kw_only=True)
class Outcome:
    """What came of the inputs of one parser."""

    name: str
    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    findings: list[Finding] = field(default_factory=list)


def tried(parser: Parser, *, seed: int, first: int = 0, count: int) -> Outcome:
    """Put inputs `first` and on to a parser."""
    outcome = Outcome(name=parser.name)
    for number in range(first, first + count):
        given = parser.make(Random(f"{seed}/{parser.name}/{number}"))
        began, problem = thread_time(), ""
        try:
            parser.parse(given)
        except parser.raises as error:
            outcome.refused += 1
            if len(str(error)) > LONGEST_MESSAGE:
                problem = f"a message of {len(str(error))} characters: {str(error)[:80]}"
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:200]}"
        took = thread_time() - began
        outcome.inputs, outcome.seconds = outcome.inputs + 1, outcome.seconds + took
        outcome.slowest = max(outcome.slowest, took)
        if took > MOST_SECONDS:
            problem = problem or f"took {took:.1f} s"
        if problem:
            outcome.findings.append(Finding(number=number, problem=problem))
    return outcome


def require(holds: bool, problem: str) -> None:
    """Raise Broken unless it holds."""
    if not holds:
        raise Broken(problem)


# Metrics


@cache
def _page() -> tuple[str, ...]:
    """Parts of an engine's page, each with its comments."""
    lines = (DATA / "metrics.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    engine = [line for line in lines if "vllm:" in line]
    return tuple("".join(engine[begin : begin + 60]) for begin in range(0, min(len(engine), 600), 60))


def _read_page(page: str) -> None:
    families, names = Families(page), set()
    for count, sample in enumerate(read_samples(page.splitlines())):
        names.add(sample.name)
        if count < 200:
            families.of(sample.name)
    foreign_server(names)


@cache
def _core() -> tuple[str, ...]:
    """The series that a diagnosis needs, one to a line."""
    wanted = (
        "num_requests",
        "kv_cache",
        "tokens_total",
        "request_success",
        "time_to_first",
        "inter_token",
        "e2e_request",
    )
    lines = (DATA / "metrics.txt").read_text(encoding="utf-8").splitlines()
    return ("\n".join(line for line in lines if line.startswith("vllm:") and any(each in line for each in wanted)),)


_RUNNER: Final = asyncio.Runner()


def _diagnose(page: str) -> None:
    """What odd labels, edges and values of one engine do to the fleet's snapshot and to its diagnosis."""
    recording, at = Recording(), 1_000_030.0
    for number, sample in enumerate(read_samples(page.splitlines())):
        for scrape in range(0, 32, 10):
            recording.add(sample, time=at - scrape if number % 7 else at - scrape / 2)
    snapshot = _RUNNER.run(take_snapshot(recording, at=at, settings=WindowSettings()))
    found = observe(snapshot, list(snapshot.engines))
    case = case_of(found, targets=targets_of(Objectives()), knobs=EngineKnobs(), history=History())
    diagnosis, _ = diagnose(case, history=History())
    require(len(diagnosis.message) <= LONGEST_MESSAGE, "a long diagnosis")
    for engine in snapshot.engines.values():
        require(len(engine.unreadable) <= LONGEST_MESSAGE, "a long reason")


def _answer_of(kind: str, values: str) -> bytes:
    labels = {"__name__": "vllm:num_requests_running", "namespace": "prod", "pod": "chat-0", "engine": "0", "le": "0.5"}
    series = {"metric": labels, values: [[1000.5, "39"], [1002.5, "40"]] if values == "values" else [1000.5, "39"]}
    data = {"resultType": kind, "result": [series, {**series, "metric": {**labels, "pod": "chat-1"}}]}
    return json.dumps({"status": "success", "data": data, "warnings": ["PromQL info: x"]}).encode()


ANSWERS: Final = (
    _answer_of("matrix", "values"),
    _answer_of("vector", "value"),
    b'{"status":"success","data":{"resultType":"vector","result":[]}}',
    b'{"status":"error","errorType":"bad_data","error":"parse error"}',
    b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1,{"count":"2"}]}]}}',
    b"<html>login</html>",
)


@cache
def _source() -> PrometheusSource:
    transport = httpx.MockTransport(lambda request: httpx.Response(200))
    return PrometheusSource(PrometheusAddress(url="http://prometheus:9090"), transport=transport)


def _read_answer(given: tuple[bytes, int, int]) -> None:
    body, code, cut = given
    reader = AnswerReader()
    for part in (body[:cut], body[cut:]):
        reader.feed(part)
    text, series = reader.finish()
    _source()._refuse_unusable(httpx.Response(code), text=text)
    require(all(len(one.times) == len(one.values) for one in series), "times without values")


def _make_answer(chance: Random) -> tuple[bytes, int, int]:
    body = _mutated_document(ANSWERS[:5], chance) if chance.random() < 0.7 else mutated_bytes(ANSWERS, chance)
    return body, chance.choice((*[200] * 9, 400, 422, 500)), chance.randrange(len(body) + 1)


def _mutated_document(samples: Sequence[bytes], chance: Random) -> bytes:
    """Valid JSON, with odd parts."""
    return json.dumps(mutated_json([json.loads(each) for each in samples], chance)).encode()


# Command lines and logs


ARGUMENTS: Final = (
    "vllm serve Qwen/Qwen3-0.6B --max-num-seqs 64 --max-model-len 8k --seed=1",
    "python -m vllm.entrypoints.openai.api_server --model m -tp 2 --gpu-memory-utilization=0.9 --port 8000",
    "--max_num_seqs=16 --kv-cache-dtype fp8 --served-model-name a b c --enable-prefix-caching --no-enforce-eager",
    "--max-num-batched-tokens 8K --num-gpu-blocks-override 100 --block-size 16 --config /x --scheduling-policy fcfs",
)


def _read_flags(words: list[str]) -> None:
    with suppress(FlagError):
        parse_command_line(" ".join(words))
    parse_flags(words)


SCRIPTS: Final = (
    "exec vllm serve $(MODEL) --max-num-seqs 64 \\\n  --max-model-len=8192",
    "set -e; echo 'start' && vllm serve /models/m --max-num-seqs=64 2>&1 | tee /log",
    "vllm serve m --max-num-seqs \"64\" -tp '2' # comment",
    "cd /x && python3 -m vllm.entrypoints.openai.api_server --model m --kv-cache-dtype fp8",
)


def _make_container(chance: Random) -> dict[str, Any]:
    env = [{"name": "MODEL", "value": mutated_text(("m", "a b", "$(MODEL)"), chance)}]
    script = mutated_text(SCRIPTS, chance)
    words = mutated_text(ARGUMENTS, chance).split()
    container: dict[str, Any] = {"name": "vllm", "image": "vllm/vllm-openai", "env": env}
    match chance.randrange(4):
        case 0:
            return {**container, "command": ["sh", "-c", script]}
        case 1:
            return {**container, "command": ["bash", "-ec"], "args": [script, *words[:2]]}
        case 2:
            return {**container, "command": words[:3], "args": words[3:]}
        case _:
            return {**container, "args": words}


def _read_container(container: dict[str, Any]) -> None:
    serving_containers([container])
    line = command_line(container)
    for knob, value in (("max-num-seqs", 8), ("kv-cache-dtype", "fp8"), ("tensor-parallel-size", 4)):
        after = changed(line, knob=knob, value=value)
        if isinstance(after, type(line)):
            require(after.flags != line.flags or value in vars_of(line.flags), "a change that changes nothing")
            removed(after, knob=knob, value=value)
    _ = line.flags


def vars_of(flags: Any) -> list[Any]:
    """The values of flags."""
    return [getattr(flags, name) for name in flags.__slots__]


@cache
def _logs() -> tuple[str, ...]:
    failures = tuple(
        path.read_text(encoding="utf-8")[-20_000:] for path in sorted((DATA / "startup-failures").glob("*.log"))
    )
    effective = (
        "INFO 11-21 [api_utils.py:286] non-default args: {'model_tag': 'm', 'max_num_seqs': 64, 'x': <A.B: 1>}\n"
    )
    return (
        *failures,
        effective,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. hf_abcdefghijk",
    )


def _read_log(log: str) -> None:
    found = parse_startup_failure(log)
    require(found is None or len(found.message) <= LOG_LINE_BYTES.limit + 100, "a long message")
    flags = parse_effective(log)
    require(flags is None or flags.max_num_seqs is None or isinstance(flags.max_num_seqs, int), "odd flags")


# Objects of the API


TEMPLATES: Final = (
    {
        "metadata": {"labels": {"team": "chat"}, "annotations": {"a": "b"}},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "m", "hostPath": {"path": "/m"}}],
            "containers": [
                {
                    "name": "vllm",
                    "env": [{"name": "A", "value": "1"}],
                    "volumeMounts": [{"name": "m", "mountPath": "/m"}],
                },
                {"name": "proxy", "image": "x", "args": ["--port=1"], "ports": [{"containerPort": 1, "hostPort": 2}]},
            ],
            "securityContext": {"runAsUser": 1},
            "serviceAccountName": "default",
        },
    },
    {"spec": {"containers": [{"name": "vllm", "livenessProbe": None, "resources": {"limits": {"cpu": "1"}}}]}},
)
EVERY_SPEC: Final = tuple(
    EVERYTHING | {"spec": case.manifest("prod")["spec"]} for case in CASES if case.name == "chat" and not case.refused
)


def _with_template(template: Any) -> dict[str, Any]:
    return {**EVERYTHING, "status": {}, "spec": {**EVERYTHING["spec"], "podTemplate": template}}


def _read_service(body: dict[str, Any]) -> None:
    entry = service_entry(body)
    service = entry.service
    require(len(getattr(service, "message", "")) <= LONGEST_MESSAGE, "a long reason")
    part_of(service, now=NOW)
    abandoned(service)
    if not isinstance(service, VLLMService):
        return
    wire = to_wire(service.status)
    require(violation("status", wire) == "", f"a status that the API server refuses: {violation('status', wire)[:200]}")
    json.dumps(wire, allow_nan=False).encode()
    list(lost_parts(body.get("status"), wire))
    list(standing(service.status, now=NOW))
    status_figures(service.status, now=NOW)
    asked(service, now=NOW)
    is_paused(service)
    why_closed(service.spec.tuning.windows, now=NOW)
    if service.spec.engine is not None:
        rendered = render_deployment(service, service.spec.engine.knobs, 1)
        json.dumps(rendered).encode()


def _make_service(chance: Random) -> dict[str, Any]:
    body: dict[str, Any] = mutated_json((EVERYTHING, *EVERY_SPEC), chance)
    # The API server holds these.
    metadata = {**EVERYTHING["metadata"], "annotations": {f"vllm-autotuner.dev/{key}": text for key, text in (
        ("pause", mutated_text(("true", "false"), chance)), ("rollback", mutated_text(("now",), chance)),
    )}}  # fmt: skip
    found = body if isinstance(body, dict) else {}
    spec = found.get("spec") if isinstance(found.get("spec"), dict) else {}
    status = found.get("status") if isinstance(found.get("status"), dict) else {}
    return {**EVERYTHING, "metadata": metadata, "spec": spec, "status": status}


DEPLOYMENTS: Final = (
    {**theirs(), "apiVersion": "apps/v1"},
    {
        **deployment_object(),
        "apiVersion": "apps/v1",
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "chat"}},
            "template": {
                "metadata": {"labels": {"app": "chat"}},
                "spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai", "args": ARGUMENTS[0].split()}]},
            },
        },
    },
)


def _make_deployment(chance: Random) -> tuple[Any, Any]:
    deployment, pod = typed_json(DEPLOYMENTS, chance), typed_json((pod_object(),), chance)
    for body in (deployment, pod):
        # What every stored object has.
        body["metadata"] = {**(body.get("metadata") or {}), "namespace": "prod", "name": "chat", "uid": "u"}
    if "template" not in deployment.get("spec", {}):
        deployment["spec"] = DEPLOYMENTS[1]["spec"]
    template = deployment["spec"]["template"]
    if not template.get("spec", {}).get("containers") or any(
        "name" not in one for one in template["spec"]["containers"]
    ):
        template["spec"] = DEPLOYMENTS[1]["spec"]["template"]["spec"]
    return deployment, pod


def _read_deployment(given: tuple[Any, Any]) -> None:
    deployment, pod = given
    deployment_view(deployment)
    pod_view(pod)
    marker_of(deployment)
    target = read_target(deployment)
    if isinstance(target, Target):
        service = service_entry(ADOPTING).service
        assert isinstance(service, VLLMService)
        adopted_from(service, target=target, bodies=[pod], selector="app=chat", autoscalers=())


ADOPTING: Final = {
    **EVERYTHING,
    "spec": {"targetRef": {"name": "chat"}, "tuning": {"mode": "Automatic", "maxNumSeqs": {"min": 1, "max": 64}}},
}


# The rest


DURATIONS: Final = (
    "30s",
    "10m",
    "1h30m",
    "500ms",
    "12.5ms",
    "8760h",
    "0s",
    "0 2 * * *",
    "*/20 1-3,22 1 jan-Mar,12 MON-fri",
)


def _read_duration(text: str) -> None:
    for read in (parse_duration, parse_schedule, human_readable_int):
        try:
            read(text)
        except ValueError:
            continue


NODES: Final = (node_object(), node_object(labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}), gpu_pod())
QUOTA: Final = {
    "metadata": {"namespace": "prod", "name": "q"},
    "spec": {"hard": {"requests.nvidia.com/gpu": "7"}},
    "status": {"hard": {"requests.nvidia.com/gpu": "7", "cpu": "4k"}, "used": {"requests.nvidia.com/gpu": "2"}},
}


def _make_amounts(chance: Random) -> Any:
    body = typed_json((*NODES, QUOTA), chance)
    body["metadata"] = {**(body.get("metadata") or {}), "namespace": "prod", "name": "a"}
    return body


def _read_amounts(body: Any) -> None:
    node_view(body)
    held = held_devices(body)
    if held is not None:
        gpu_resource(held.devices, asked_for=None)
    left = devices_left(body)
    require(all(isinstance(count, int) for count in left.values()), "a count that is none")


CONFIGS: Final = (
    {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
        "tie_word_embeddings": False, "head_dim": 128, "sliding_window": None, "use_sliding_window": False,
    },
    {"text_config": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}},
    {"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257, "multi_query": True},
    {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4096},
    {"gpus": [{"label": "MI300X", "memoryGiB": 190, "bandwidthTBs": 5.3, "teraflops": 1300}], "models": {"m": {}}},
)  # fmt: skip


def _read_config(config: Any) -> None:
    if isinstance(config, dict) and not config.keys() & {"gpus", "models"}:
        geometry_from_config(config)
        config = {"models": {"m": config}}
    geometry_named(str(config)[:500])
    read_catalogue(config)


@cache
def _recordings() -> tuple[bytes, ...]:
    found = []
    for path in sorted((DATA / "recordings").glob("*.om.gz")):
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
        found += [b"".join(lines[begin : begin + 40]) for begin in (0, 200, 4000)]
    return (*found, gzip.compress(found[0], mtime=0))


@cache
def _file() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-")) / "recording.om"


def _make_recording(chance: Random) -> bytes:
    raw = mutated_bytes(_recordings(), chance) if chance.random() < 0.8 else chance.choice(_recordings())
    packed = gzip.compress(raw, mtime=0) if chance.random() < 0.2 else raw
    return packed[: chance.randrange(len(packed) + 1)] if chance.random() < 0.2 else packed


def _read_recording(raw: bytes) -> None:
    _file().write_bytes(raw)
    load_recording(_file())


LISTS: Final = (
    json.dumps({"kind": "VLLMServiceList", "items": [{**EVERYTHING, "spec": {"podTemplate": TEMPLATES[0]}}]}).encode(),
    json.dumps(
        {"kind": "Status", "reason": "Invalid", "message": "no", "details": {"causes": [{"field": "a"}]}}
    ).encode(),
    json.dumps(
        {"metadata": {"managedFields": [{"fieldsV1": {"f:a": {}}}]}, "spec": {"podTemplate": {"a": [1] * 9}}}
    ).encode(),
)


def _make_api_answer(chance: Random) -> bytes:
    return _mutated_document(LISTS, chance) if chance.random() < 0.7 else mutated_bytes(LISTS, chance)


def _read_api_answer(raw: bytes) -> None:
    error = from_response(status=409 if len(raw) % 2 else 500, body=raw, headers={"Retry-After": "x"}, request="GET /x")
    require(isinstance(error, ClusterError) and len(str(error)) <= 3 * len(raw) + 100, "a long error")
    # What cannot be read as JSON at all is refused as such; what can is read in bounded depth.
    from_json(bounded(raw))


PARSERS: Final = (
    Parser(
        name="metrics text page",
        make=lambda chance: mutated_text(_page(), chance),
        parse=_read_page,
        raises=(SourceError,),
        in_every_run=6_000,
    ),
    Parser(
        name="labels, edges and values of an engine",
        make=lambda chance: mutated_text(_core(), chance),
        parse=_diagnose,
        raises=(SourceError,),
        in_every_run=1_000,
    ),
    Parser(name="Prometheus answer", make=_make_answer, parse=_read_answer, raises=(SourceError,), in_every_run=12_000),
    Parser(
        name="engine flags",
        make=lambda chance: mutated_text(ARGUMENTS, chance).split(" "),
        parse=_read_flags,
        raises=(FlagError,),
        in_every_run=3_000,
    ),
    Parser(
        name="command line of a container",
        make=_make_container,
        parse=_read_container,
        raises=(FlagError,),
        in_every_run=1_500,
    ),
    Parser(
        name="start-up and crash log",
        make=lambda chance: mutated_text(_logs(), chance),
        parse=_read_log,
        in_every_run=2_000,
    ),
    Parser(
        name="pod template",
        make=lambda chance: _with_template(mutated_json(TEMPLATES, chance)),
        parse=_read_service,
        in_every_run=3_000,
    ),
    Parser(name="VLLMService with status", make=_make_service, parse=_read_service, in_every_run=4_000),
    Parser(name="Deployment and pods", make=_make_deployment, parse=_read_deployment, in_every_run=3_000),
    Parser(
        name="durations, schedules, counts",
        make=lambda chance: mutated_text(DURATIONS, chance),
        parse=_read_duration,
        in_every_run=20_000,
    ),
    Parser(name="quantities of nodes, pods and quotas", make=_make_amounts, parse=_read_amounts, in_every_run=12_000),
    Parser(
        name="model config.json and catalogue",
        make=lambda chance: mutated_json(CONFIGS, chance),
        parse=_read_config,
        raises=(CatalogueError,),
        in_every_run=12_000,
    ),
    Parser(name="recording", make=_make_recording, parse=_read_recording, raises=(SourceError,), in_every_run=6_000),
    Parser(
        name="answers of the API server",
        make=_make_api_answer,
        parse=_read_api_answer,
        raises=(ValueError,),
        in_every_run=12_000,
    ),
)
"""All of them."""
