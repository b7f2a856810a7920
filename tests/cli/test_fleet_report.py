"""`report`: what tuning did for a fleet, in words and as one file, and every wrong question."""

import importlib.util
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from tests.cli.api_stub import ApiStub
from tests.cli.servers import prometheus, serving
from tests.observation.fleet import NOW, Engine, fleet
from tests.overview.elements import NASTY, Elements, runs_and_loads_nothing
from tests.overview.objects import FULL, full, with_texts
from typer.testing import CliRunner, Result

from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.evaluation import ServiceReport
from vllm_autotuner.cli.fleet import fleet_report, stored_services
from vllm_autotuner.engine.geometry import Experts

STEPS = [
    {"at": "2020-01-01T00:00:00Z", "cause": "Start", "gpus": 3, "reference": 3},
    {"at": "2020-01-02T00:00:00Z", "cause": "Scaling", "gpus": 2, "reference": 3},
]
SPEC = FULL["spec"]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ApiStub:
    stub = ApiStub()
    monkeypatch.setattr(stored_services, "connected", stub.connected)
    return stub


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.html"


def run(file: Path, *arguments: str) -> Result:
    found = CliRunner().invoke(app, ["report", "--html", str(file), *arguments], env={"COLUMNS": "200"})
    assert "Traceback" not in found.output
    return found


def diagnosed(name: str, **more: Any) -> dict[str, Any]:
    return {"diagnosis": {"class": name, "since": "2026-11-20T12:00:00Z", "message": f"it is {name}"}, **more}


def test_last_month_is_one_command(api: ApiStub, file: Path) -> None:
    api.add("prod", "chat", spec=SPEC, status=diagnosed("Healthy", gpuSteps=STEPS))
    api.add("prod", "full", spec=SPEC, status=full()["status"])
    api.add("dev", "new", spec=SPEC)
    found = run(file, "-A", "--since", "30d", "--gpu-price", "2")
    assert found.exit_code == 0, found.output
    lines = [" ".join(line.split()) for line in found.stdout.splitlines()]
    assert lines[1].startswith("Services: 3: 1 KVCacheSaturated, 1 not diagnosed, 1 Healthy")
    assert lines[3].startswith("GPUs: saved "), lines
    assert any("not known for 1 of 3 services" in line for line in lines)
    assert lines[-1] == f"Wrote {file}"
    text = file.read_text(encoding="utf-8")
    page = Elements(text)
    runs_and_loads_nothing(text)
    rows = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert rows == ["#service-0", "#service-1", "#service-2", "#service-0-change-0"], (
        "the last is a change of the first"
    )
    assert {f"#{attributes['id']}" for _, attributes in page.elements if "id" in attributes} >= set(rows)
    for part in ("prod/full", "48 sequences fit.", "maxNumSeqs 32 -> 64", "saved 720 GPU-hours (1,440.00)", "2.4s/1s"):
        assert part in page.text, part
    assert page.text.index("prod/full") < page.text.index("prod/chat"), "the worst first"
    assert "hidden-" not in text


def test_the_services_have_their_classes_over_the_period(
    api: ApiStub, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    api.add("demo", "chat", spec=SPEC, status=diagnosed("Healthy"))
    api.add("demo", "gone", spec=SPEC, status=diagnosed("Healthy"))
    with serving(prometheus(fleet(Engine(pod="chat-0")), at=NOW)) as url:
        where = url.replace("http://", "http://me:url-passw0rd@")
        found = run(file, "-A", "--prometheus", where, "--since", "2m")
    assert found.exit_code == 0, found.output
    text = file.read_text(encoding="utf-8")
    assert [tag for tag, _ in Elements(text).elements].count("svg") == 1
    assert "1 of 2 services have no vLLM metrics" in text
    assert "passw0rd" not in text + found.output


def reports_drawn(monkeypatch: pytest.MonkeyPatch) -> list[ServiceReport]:
    """What is drawn over time from now on, instead of drawing it."""
    seen = list[ServiceReport]()

    def drawn(report: ServiceReport, *, identity: int) -> str:
        seen.append(report)
        return ""

    monkeypatch.setattr(fleet_report, "over_time", drawn)
    return seen


def test_each_service_is_held_against_its_own_objectives(
    api: ApiStub, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    seen = reports_drawn(monkeypatch)
    strict = SPEC | {"objectives": {"ttft": {"target": "10ms"}}}
    adopted = {"targetRef": {"name": "search"}, "objectives": {"ttft": {"target": "5s"}}}
    api.add("demo", "chat", spec=strict, status=diagnosed("Healthy"))
    api.add("demo", "find", spec=adopted, status=diagnosed("Healthy"))
    with serving(prometheus(fleet(Engine(pod="chat-0"), Engine(pod="search-0")), at=NOW)) as url:
        found = run(file, "-A", "--prometheus", url, "--since", "2m")
    assert found.exit_code == 0, found.output
    assert {report.service.name: report.targets.ttft.seconds for report in seen} == {"chat": 0.01, "search": 5}


def test_each_service_is_judged_by_the_experts_that_the_operator_knows(
    api: ApiStub, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name in the spec counts and the catalogue, as there: the name in the metrics may be any."""
    monkeypatch.setattr("time.time", lambda: NOW)
    seen = reports_drawn(monkeypatch)
    catalogue = file.with_name("catalogue.yaml")
    catalogue.write_text("models: {ours/mixture: {num_experts: 64, num_experts_per_tok: 4}}", encoding="utf-8")
    for name, model in (("chat", "Qwen/Qwen3-30B-A3B"), ("search", "ours/mixture")):
        api.add("demo", name, spec=SPEC | {"model": {"name": model}}, status=diagnosed("Healthy"))
    with serving(prometheus(fleet(Engine(pod="chat-0"), Engine(pod="search-0")), at=NOW)) as url:
        found = run(file, "-A", "--prometheus", url, "--since", "30s", "--catalogue", str(catalogue))
    assert found.exit_code == 0, found.output
    known = {each.service.name: {point.experts for point in each.observation.steps} for each in seen}
    assert known == {"chat": {Experts(128, 8)}, "search": {Experts(64, 4)}}


def test_without_matplotlib_the_report_is_written_and_says_so(
    api: ApiStub, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    monkeypatch.setattr("time.time", lambda: NOW)
    api.add("demo", "chat", spec=SPEC, status=diagnosed("Healthy"))
    with serving(prometheus(fleet(Engine(pod="chat-0")), at=NOW)) as url:
        found = run(file, "-A", "--prometheus", url, "--since", "2m")
    assert found.exit_code == 0, found.output
    assert "pip install '.[report]'" in found.stdout
    assert "demo/chat" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("nasty", NASTY)
def test_no_text_of_a_tenant_changes_the_file(api: ApiStub, file: Path, nasty: str) -> None:
    shapes = []
    for end in ("x", nasty):
        api.add("prod", "chat", spec=SPEC, status=with_texts(f"{{}}{end}".format)["status"])
        assert run(file).exit_code == 0
        text = file.read_text(encoding="utf-8")
        runs_and_loads_nothing(text)
        shapes.append(Elements(text).shape)
    assert shapes[0] == shapes[1]


def test_no_services_are_no_data_and_no_file(api: ApiStub, file: Path) -> None:
    found = run(file)
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == "no data: no VLLMService in namespace prod (-A shows all)\n"
    assert not file.exists()


def test_a_prometheus_that_does_not_answer_is_an_error_and_no_file(api: ApiStub, file: Path) -> None:
    api.add("prod", "chat", spec=SPEC, status=diagnosed("Healthy"))
    found = run(file, "--prometheus", "http://127.0.0.1:1")
    assert found.exit_code == 1
    assert "127.0.0.1:1" in found.stderr
    assert not file.exists()


@pytest.mark.parametrize(
    ("seconds", "code"),
    [pytest.param(60, 0, id="a short outage"), pytest.param(10_000, 1, id="it never comes back")],
)
def test_moments_without_an_answer_are_counted_until_there_are_too_many(
    api: ApiStub, file: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, code: int
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    api.add("demo", "chat", spec=SPEC, status=diagnosed("Healthy"))
    answer = prometheus(fleet(Engine(pod="chat-0")), at=NOW)

    def flaky(path: str, body: str) -> tuple[int, str]:
        # By the moment asked about: a failed question is asked again at once, so the count of questions tells nothing.
        moment = float(parse_qs(body)["time"][0])
        broken = 0 <= moment - (NOW - 240) < seconds
        return (503, json.dumps({"status": "error", "error": "busy"})) if broken else answer(path, body)

    with serving(flaky) as url:
        found = run(file, "-A", "--prometheus", url, "--since", "5m")
    assert found.exit_code == code, found.output
    assert ("Prometheus did not answer for" in found.stdout) is (code == 0)


def test_no_rights_are_one_line(api: ApiStub, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise CommandError("vllmservices is forbidden: grant list on vllmservices.vllm-autotuner.dev")

    monkeypatch.setattr(stored_services, "connected", refused)
    found = run(file)
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.startswith("error: vllmservices is forbidden")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--since", "yesterday"), "--since 'yesterday'"),
        (("--since", "0s"), "write a duration above zero"),
        (("--since", "9000d"), "write at most 365d"),
        (("-A", "-n", "prod"), "not both"),
        (("--match", "cluster=eu"), "--match selects series of a --prometheus URL"),
        (("--gpu-price", "-1"), "write an amount above zero"),
        (("--catalogue", "no-such.yaml"), "cannot read no-such.yaml"),
        (("--html", "no/such/file.html"), "does not exist"),
        (("--html", "."), "is a folder"),
    ],
)
def test_what_is_refused(api: ApiStub, file: Path, options: tuple[str, ...], says: str) -> None:
    api.add("prod", "chat", spec=SPEC)
    found = run(file, *options)
    assert (found.exit_code, found.stdout) == (1, "")
    assert says in " ".join(found.stderr.split())
    assert not file.exists()
