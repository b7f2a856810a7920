"""Valid and invalid objects, once for the models (tests/api) and for the real API server (e2e).

A row changes the smallest valid object at dotted paths. `refused` is a part of the message that both sides must give;
None means accepted.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, Final

SMALLEST: Final[Mapping[str, Any]] = {
    "model": {"name": "Qwen/Qwen3-0.6B"},
    "engine": {"image": "vllm/vllm-openai:v0.32.0"},
    "replicas": 1,
}

ADOPTING: Final[Mapping[str, Any]] = {
    "model": ...,
    "engine": ...,
    "replicas": ...,
    "targetRef": {"kind": "Deployment", "name": "chat"},
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One object; `...` in `changes` removes the field."""

    id: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    refused: str | None = None
    name: str = "chat"

    def manifest(self, namespace: str) -> dict[str, Any]:
        """The whole object."""
        return {
            "apiVersion": "vllm-autotuner.dev/v1alpha1",
            "kind": "VLLMService",
            "metadata": {"name": self.name, "namespace": namespace},
            "spec": changed(SMALLEST, self.changes),
        }


def changed(spec: Mapping[str, Any], changes: Mapping[str, Any | EllipsisType]) -> dict[str, Any]:
    """Return a copy with values set (or removed, for `...`) at dotted paths."""
    result = copy.deepcopy(dict(spec))
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = result
        for parent in parents:
            node = node.setdefault(parent, {})
        if value is ...:
            node.pop(last, None)
        else:
            # A copy: a later path of the same call may lead into it, and the value may be shared by all tests.
            node[last] = copy.deepcopy(value)
    return result


def _arg(*words: str, refused: str | None, id: str) -> Case:  # noqa: A002
    return Case(id=id, changes={"engine.args": list(words)}, refused=refused)


_EXACTLY_ONE_WRITER = "set exactly one of replicas"
_EXACTLY_ONE_WORKLOAD = "set exactly one of engine"
_MORE_DEVICES = "set the devices of a pod in podTemplate"
ONE_GPU = {"accelerator": {"product": "NVIDIA-L4"}}
_DURATION = "write a positive duration such as 500ms, 30s"
_QUANTILE = "write the quantile as a string between"
_WINDOW = {"schedule": "0 2 * * *", "duration": "4h"}

CASES: Final[tuple[Case, ...]] = (
    Case(id="the smallest service"),
    Case(
        id="every field",
        changes={
            "model": {"name": "Qwen/Qwen3-32B", "servedName": "qwen3-32b", "revision": "main"},
            "engine": {
                "image": "vllm/vllm-openai:v0.32.0",
                "args": ["--enable-prefix-caching", "--max-num-batched-tokens=8192", "--kv-cache-memory-bytes", "1"],
                "maxNumSeqs": 128,
                "maxModelLen": 16384,
                "kvCacheDtype": "auto",
                "tensorParallelSize": 2,
            },
            "accelerator": {"resourceName": "nvidia.com/gpu", "product": "NVIDIA-H100-80GB-HBM3"},
            "workloadMetadata": {"labels": {"team": "chat"}, "annotations": {"example.com/cost": "a"}},
            "podTemplate": {
                "metadata": {"labels": {"team": "chat"}, "annotations": {"a": "b"}},
                "spec": {
                    "nodeSelector": {"pool": "gpu"},
                    "containers": [{"name": "vllm", "env": [{"name": "HF_HOME", "value": "/models"}]}],
                },
            },
            "replicas": ...,
            "scaling": {
                "minReplicas": 1,
                "maxReplicas": 8,
                "scaleOut": {"waitingFor": "30s"},
                "scaleIn": {"stabilization": "10m"},
            },
            "objectives": {
                "profile": "Latency",
                "ttft": {"quantile": "0.95", "target": "2s"},
                "tpot": {"quantile": "0.99", "target": "50ms"},
            },
            "tuning": {
                "mode": "Automatic",
                "maxNumSeqs": {"min": 8, "max": 512},
                "maxModelLen": {"min": 4096, "max": 32768},
                "kvCacheDtype": {"allowed": ["auto", "fp8"]},
                "tensorParallelSize": {"allowed": [1, 2, 4]},
                "strategy": {
                    "type": "InPlace",
                    "warmUp": "2s",
                    "analysis": "20s",
                    "provisioningDeadline": "1m",
                    "dataBudget": "30s",
                },
                "windows": [{"schedule": "0 2 * * 1-5", "timeZone": "Europe/Berlin", "duration": "4h"}],
                "budget": {"changesPerDay": 2},
                "cooldown": "6h",
            },
            "prometheus": {"source": "main"},
            "paused": False,
            "deletionPolicy": "Delete",
        },
    ),
    # workload
    Case(id="a command and a port", changes={"engine.command": ["vllm", "serve"], "engine.port": 8080}),
    Case(id="no command", changes={"engine.command": []}, refused="spec.engine.command"),
    Case(id="an empty word", changes={"engine.command": [""]}, refused="spec.engine.command[0]"),
    Case(id="a script", changes={"engine.command": ["sh", "-c", "vllm serve"]}, refused="leave out -c"),
    Case(id="no port", changes={"engine.port": 0}, refused="spec.engine.port"),
    Case(id="a port that no TCP has", changes={"engine.port": 65536}, refused="spec.engine.port"),
    Case(id="a Deployment of the user's own", changes=ADOPTING),
    Case(id="a Deployment with dots in its name", changes={**ADOPTING, "targetRef.name": "chat.v2"}),
    *(
        Case(id=f"{name!r} is no name", changes={**ADOPTING, "targetRef.name": name}, refused="name of a Deployment")
        for name in (".", "..", "chat/status", "../pods", "Chat", "chat.", "-chat", "")
    ),
    *(
        Case(id=f"{word} beside an accelerator", changes={**ONE_GPU, "engine.args": [word, "2"]}, refused=_MORE_DEVICES)
        for word in ("--pipeline-parallel-size", "--data_parallel_size=2", "-pp", "-dp=12", "--pipeline-parallel=2")
    ),
    Case(id="no more devices", changes={**ONE_GPU, "engine.args": ["-pp=1", "--data-parallel-size=1"]}),
    Case(id="more devices by the pod template", changes={"engine.args": ["-dp", "2"]}),
    Case(id="a flag that begins alike", changes={**ONE_GPU, "engine.args": ["--data-parallel-backend=mp"]}),
    Case(id="neither engine nor targetRef", changes={"engine": ..., "model": ...}, refused=_EXACTLY_ONE_WORKLOAD),
    Case(id="both engine and targetRef", changes={"targetRef": {"name": "chat"}}, refused=_EXACTLY_ONE_WORKLOAD),
    Case(id="an engine without a model", changes={"model": ...}, refused="set model.name"),
    Case(
        id="a model beside targetRef",
        changes={**ADOPTING, "model": {"name": "m"}},
        refused="remove model: the Deployment that targetRef names",
    ),
    Case(
        id="replicas beside targetRef",
        changes={**ADOPTING, "replicas": 2},
        refused="remove replicas: the Deployment that targetRef names",
    ),
    Case(
        id="a pod template beside targetRef",
        changes={**ADOPTING, "podTemplate": {"spec": {}}},
        refused="remove podTemplate",
    ),
    Case(
        id="labels of a workload beside targetRef",
        changes={**ADOPTING, "workloadMetadata": {"labels": {"team": "chat"}}},
        refused="remove workloadMetadata",
    ),
    Case(
        id="a label that would make a workload look like a trial",
        changes={"workloadMetadata": {"labels": {"vllm-autotuner.dev/track": "canary"}}},
        refused="remove the keys that begin with vllm-autotuner.dev/",
    ),
    Case(
        id="an annotation of the operator's own",
        changes={"workloadMetadata": {"annotations": {"a": "b", "vllm-autotuner.dev/config-hash": "x"}}},
        refused="remove the keys that begin with vllm-autotuner.dev/",
    ),
    Case(
        id="a Deployment of the user's own, scaled and tuned",
        changes={
            **ADOPTING,
            "targetRef.apiVersion": "apps/v1",
            "scaling": {"maxReplicas": 2},
            "accelerator": {"product": "NVIDIA-L4"},
            "tuning.mode": "Automatic",
        },
    ),
    Case(
        id="a canary of a Deployment of the user's own",
        changes={**ADOPTING, "tuning.strategy": {"type": "Canary"}},
        refused="remove tuning.strategy.type Canary",
    ),
    Case(
        id="a target of another API",
        changes={**ADOPTING, "targetRef": {"apiVersion": "apps/v2", "name": "x"}},
        refused="apps/v1",
    ),
    Case(
        id="a target that is no Deployment",
        changes={**ADOPTING, "targetRef": {"kind": "StatefulSet", "name": "x"}},
        refused="Deployment",
    ),
    Case(id="an empty model name", changes={"model.name": ""}, refused="at least 1 char"),
    Case(id="a name of 45 characters", name="a" * 45),
    Case(id="a name too long for a canary", name="a" * 46, refused="at most 45 lower-case letters"),
    Case(id="a name that no Service can have", name="chat.prod", refused="metadata.name is also a Service name"),
    Case(id="a name that begins with a digit", name="7b", refused="a letter first"),
    # replicas
    Case(id="no replicas and no scaling", changes={"replicas": ...}, refused=_EXACTLY_ONE_WRITER),
    Case(id="replicas and scaling", changes={"scaling": {"maxReplicas": 2}}, refused=_EXACTLY_ONE_WRITER),
    Case(id="scaled to nothing", changes={"replicas": 0}),
    Case(id="negative replicas", changes={"replicas": -1}, refused="greater than or equal to 0"),
    Case(id="replicas as a text", changes={"replicas": "2"}, refused="integer"),
    Case(id="scaling without a minimum", changes={"replicas": ..., "scaling": {"maxReplicas": 1}}),
    Case(id="scaling without a maximum", changes={"replicas": ..., "scaling": {"minReplicas": 1}}, refused="equired"),
    Case(
        id="a minimum above the maximum",
        changes={"replicas": ..., "scaling": {"minReplicas": 3, "maxReplicas": 2}},
        refused="scaling.minReplicas must not exceed scaling.maxReplicas",
    ),
    # engine arguments
    _arg("--max-num-seqs", "64", refused="use spec.engine.maxNumSeqs", id="a tuned flag as two words"),
    _arg("--max-num-seqs=64", refused="use spec.engine.maxNumSeqs", id="a tuned flag as one word"),
    _arg("--max_num_seqs", "64", refused="use spec.engine.maxNumSeqs", id="a tuned flag with underscores"),
    _arg("--max_num-seqs=64", refused="use spec.engine.maxNumSeqs", id="a tuned flag with both"),
    _arg("--max-num-s", "64", refused="use spec.engine.maxNumSeqs", id="a tuned flag abbreviated"),
    _arg("--max-model-len", "8k", refused="use spec.engine.maxModelLen", id="the length as two words"),
    _arg("--max-model=8192", refused="use spec.engine.maxModelLen", id="the length abbreviated"),
    _arg("--kv-cache-dtype", "fp8", refused="use spec.engine.kvCacheDtype", id="the KV dtype in the arguments"),
    _arg("--kv-cache-dtype-skip-layers=1", refused=None, id="a longer flag that only begins like a tuned one"),
    _arg("--max-num-batched-tokens=8192", refused=None, id="a neighbour of a tuned flag"),
    _arg("--model-impl=auto", refused=None, id="a flag that begins like --model"),
    _arg("--tensor-parallel-size", "2", refused="use spec.engine.tensorParallelSize", id="the TP size as two words"),
    _arg("-tp", "2", refused="use spec.engine.tensorParallelSize", id="the TP size in short"),
    _arg("-tp=2", refused="use spec.engine.tensorParallelSize", id="the TP size in short as one word"),
    _arg("--model=other", refused="use spec.model.name", id="another model"),
    _arg("--served-model-name", "x", refused="use spec.model.servedName", id="another served name"),
    _arg("--revision=dev", refused="use spec.model.revision", id="another revision"),
    _arg("--port", "9000", refused="use spec.engine.port", id="another port"),
    _arg("--host=127.0.0.1", refused="it listens everywhere", id="another address"),
    _arg("--config=/etc/vllm.yaml", refused="instead of --config", id="a file that could hide a tuned flag"),
    _arg('--override={"text": "--max-num-seqs"}', refused=None, id="a tuned flag inside another value"),
    _arg("--seed\n--max-num-seqs", refused="one word per item", id="a tuned flag on a second line of one word"),
    Case(
        id="engine arguments in the pod template",
        changes={"podTemplate.spec": {"containers": [{"name": "vllm", "args": ["--max-num-seqs=1"]}]}},
        refused="use spec.engine.image and spec.engine.args",
    ),
    Case(
        id="the engine's image in the pod template",
        changes={"podTemplate.spec": {"containers": [{"name": "vllm", "image": "x"}]}},
        refused="use spec.engine.image and spec.engine.args",
    ),
    Case(
        id="a sidecar with image and arguments",
        changes={"podTemplate.spec": {"containers": [{"name": "proxy", "image": "x", "args": ["--port=1"]}]}},
    ),
    # knobs
    Case(id="no sequences", changes={"engine.maxNumSeqs": 0}, refused="greater than or equal to 1"),
    Case(id="a TP size beyond a node", changes={"engine.tensorParallelSize": 65}, refused="less than or equal to 64"),
    Case(id="a KV dtype that is none", changes={"engine.kvCacheDtype": "FP 8"}, refused="such as auto or fp8"),
    Case(id="bounds of one value", changes={"tuning.maxNumSeqs": {"min": 8, "max": 8}}),
    Case(id="bounds upside down", changes={"tuning.maxNumSeqs": {"min": 9, "max": 8}}, refused="min must not exceed"),
    Case(id="bounds without a maximum", changes={"tuning.maxNumSeqs": {"min": 8}}, refused="equired"),
    Case(
        id="a starting value at its bound",
        changes={"engine.maxNumSeqs": 8, "tuning.maxNumSeqs": {"min": 8, "max": 64}},
    ),
    Case(
        id="a starting value below its bounds",
        changes={"engine.maxNumSeqs": 7, "tuning.maxNumSeqs": {"min": 8, "max": 64}},
        refused="engine.maxNumSeqs must lie within tuning.maxNumSeqs",
    ),
    Case(
        id="a length above its bounds",
        changes={"engine.maxModelLen": 9000, "tuning.maxModelLen": {"min": 1, "max": 8192}},
        refused="engine.maxModelLen must lie within tuning.maxModelLen",
    ),
    Case(
        id="a KV dtype that is not allowed",
        changes={"engine.kvCacheDtype": "fp8", "tuning.kvCacheDtype": {"allowed": ["auto"]}},
        refused="engine.kvCacheDtype must be one of",
    ),
    Case(
        id="a TP size that is not allowed",
        changes={"engine.tensorParallelSize": 2, "tuning.tensorParallelSize": {"allowed": [1, 4]}},
        refused="engine.tensorParallelSize must be one of",
    ),
    Case(id="nothing allowed", changes={"tuning.kvCacheDtype": {"allowed": []}}, refused="at least 1 item"),
    # objectives
    Case(id="a quantile of 1", changes={"objectives.ttft": {"quantile": "1", "target": "2s"}}, refused=_QUANTILE),
    Case(id="a quantile of 0", changes={"objectives.ttft": {"quantile": "0.0", "target": "2s"}}, refused=_QUANTILE),
    Case(id="a percentile", changes={"objectives.ttft": {"quantile": "p95", "target": "2s"}}, refused=_QUANTILE),
    Case(
        id="a quantile as a number", changes={"objectives.ttft": {"quantile": 0.95, "target": "2s"}}, refused="string"
    ),
    Case(id="an objective without a target", changes={"objectives.ttft": {"quantile": "0.9"}}, refused="equired"),
    Case(id="a fractional target", changes={"objectives.tpot": {"target": "12.5ms"}}),
    Case(id="an unknown profile", changes={"objectives.profile": "Fast"}, refused="Bursty"),
    # durations
    Case(id="a duration of nothing", changes={"tuning.cooldown": "0s"}, refused=_DURATION),
    Case(id="a negative duration", changes={"tuning.cooldown": "-5m"}, refused=_DURATION),
    Case(id="a duration without a unit", changes={"tuning.cooldown": "30"}, refused=_DURATION),
    Case(id="a duration in days", changes={"tuning.cooldown": "1d"}, refused=_DURATION),
    Case(id="an ISO duration", changes={"objectives.ttft": {"target": "PT2S"}}, refused=_DURATION),
    Case(id="a cooldown of a year", changes={"tuning.cooldown": "8760h"}),
    Case(id="a cooldown of more", changes={"tuning.cooldown": "8760h1ms"}, refused="write at most 8760h"),
    Case(id="a warm-up of a day", changes={"tuning.strategy": {"warmUp": "23h59m60s"}}),
    Case(
        id="a warm-up of a thousand years",
        changes={"tuning.strategy": {"warmUp": "9999999h"}},
        refused="write at most 24h",
    ),
    Case(
        id="a provisioning deadline of more than a day",
        changes={"tuning.strategy": {"provisioningDeadline": "1441m"}},
        refused="write at most 24h",
    ),
    # tuning
    Case(id="an unknown mode", changes={"tuning.mode": "Auto"}, refused="Automatic"),
    Case(id="an unknown strategy", changes={"tuning.strategy": {"type": "BlueGreen"}}, refused="InPlace"),
    Case(
        id="a budget of nothing", changes={"tuning.budget": {"changesPerDay": 0}}, refused="greater than or equal to 1"
    ),
    Case(id="a window every night", changes={"tuning.windows": [_WINDOW]}),
    Case(
        id="a schedule of four fields",
        changes={"tuning.windows": [{**_WINDOW, "schedule": "0 2 * *"}]},
        refused="write a cron schedule of five fields",
    ),
    *(
        Case(
            id=f"the schedule {schedule}",
            changes={"tuning.windows": [{**_WINDOW, "schedule": schedule}]},
            refused=refused,
        )
        for schedule, refused in (
            ("*/20 1-3,22 1 jan-Mar,12 MON-fri", None),
            ("0 2 * * 7", None),
            ("60 2 * * *", "write a cron schedule of five fields"),
            ("0 24 * * *", "write a cron schedule of five fields"),
            ("0 2 32 * *", "write a cron schedule of five fields"),
            ("0 2 * * monday", "write a cron schedule of five fields"),
            ("*/0 2 * * *", "write a cron schedule of five fields"),
        )
    ),
    Case(
        id="a time zone with a blank",
        changes={"tuning.windows": [{**_WINDOW, "timeZone": "Central Europe"}]},
        refused="write an IANA time zone",
    ),
    # the rest
    Case(
        id="the address of a Prometheus",
        changes={"prometheus": {"source": "http://prometheus:9090"}},
        refused="write a name of at most 63 lower-case letters",
    ),
    Case(
        id="a resource without a domain", changes={"accelerator.resourceName": "gpu"}, refused="such as nvidia.com/gpu"
    ),
    Case(id="paused as a text", changes={"paused": "yes"}, refused="boolean"),
    Case(id="an unknown deletion policy", changes={"deletionPolicy": "Orphan"}, refused="Retain"),
    Case(id="a field of a newer version", changes={"tuning.futureField": {"a": 1}}),
)
