"""Which fields of a live Deployment were overwritten by another field manager. Pure.

A value that differs was overwritten only if the operator no longer owns the field: a mutating webhook changes values
under the operator's name, and a field that the operator owns is corrected by its next write. Apart from
`workload_state`, because the escalation of a contest (`guardrails.contest`) depends on it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_autotuner.api.pod_template import ENGINE_CONTAINER
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.status import VLLMServiceStatus
from vllm_autotuner.change.effective import effective_knobs
from vllm_autotuner.control.decide.inputs import wanted_replicas
from vllm_autotuner.control.read.views import DeploymentView
from vllm_autotuner.guardrails.contest import Interference
from vllm_autotuner.workload.labels import CONFIG_HASH
from vllm_autotuner.workload.rendering import render_deployment

__all__ = ["interference_of", "wanted_deployment"]


def wanted_deployment(service: VLLMService, status: VLLMServiceStatus, live: DeploymentView | None) -> dict[str, Any]:
    """The service's own Deployment as this status wants it; replicas left out where an autoscaler sets them."""
    scaled_by = live.scaled_by if live is not None else ""
    replicas = wanted_replicas(service, status, scaled_by=scaled_by)
    return render_deployment(service, effective_knobs(service.spec, status), replicas)


def interference_of(live: DeploymentView | None, asked: Mapping[str, Any]) -> Interference | None:
    """Compare with the rendered Deployment; None when no field was taken over by another manager."""
    if live is None:
        return None
    found = dict(_taken(live, asked))
    return Interference(manager=next(iter(found.values())), fields=tuple(found)) if found else None


def _taken(live: DeploymentView, asked: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    spec = asked["spec"]
    engine = next(each for each in spec["template"]["spec"]["containers"] if each["name"] == ENGINE_CONTAINER)
    values: list[tuple[str, object, object]] = [
        ("args", live.args, tuple(engine.get("args") or ())),
        ("image", live.image, engine["image"]),
        ("config-hash", live.config_hash, asked["metadata"]["annotations"][CONFIG_HASH]),
    ]
    if "replicas" in spec:
        values.append(("replicas", live.replicas, spec["replicas"]))
    for name, has, wanted in values:
        if has != wanted and name in live.taken:
            yield name, live.taken[name]
    for variable in engine.get("env") or []:
        name = variable["name"]
        if "value" not in variable or live.env.get(name) == variable["value"]:
            continue
        if manager := live.taken.get(f"env {name}") or (live.last_writer if name not in live.env else ""):
            yield f"env {name}", manager
