"""Which fields of a live Deployment were overwritten by another field manager. Pure.

A value that differs was overwritten only if the operator no longer owns the field: a mutating webhook changes values
under the operator's name, and a field that the operator owns is corrected by its next write. Apart from
`workload_state`, because the escalation of a contest (`guardrails.contest`) depends on it.
"""

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from typing import Any

from vllm_autotuner.api.pod_template import ENGINE_CONTAINER
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.status import VLLMServiceStatus
from vllm_autotuner.change.effective import effective_knobs
from vllm_autotuner.control.decide.inputs import wanted_replicas
from vllm_autotuner.control.read.views import DeploymentView
from vllm_autotuner.guardrails.contest import REPLICAS, Interference
from vllm_autotuner.workload.labels import CONFIG_HASH
from vllm_autotuner.workload.rendering import render_deployment

__all__ = ["interference_of", "wanted_deployment", "without_fields"]


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
    engine = _engine(asked)
    values: dict[str, tuple[object, object]] = {
        "args": (live.args, tuple(engine["args"]) if "args" in engine else None),
        "image": (live.image, engine.get("image")),
        "config-hash": (live.config_hash, asked["metadata"]["annotations"].get(CONFIG_HASH)),
        REPLICAS: (live.replicas, asked["spec"].get("replicas")),
    }
    for name, (has, wanted) in values.items():
        if wanted is not None and has != wanted and name in live.taken:
            yield name, live.taken[name]
    for variable in engine.get("env") or []:
        name = variable["name"]
        if "value" not in variable or live.env.get(name) == variable["value"]:
            continue
        if manager := live.taken.get(f"env {name}") or (live.last_writer if name not in live.env else ""):
            yield f"env {name}", manager


def without_fields(body: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """A rendered Deployment without these fields (see `Interference`): an apply leaves them to their owner."""
    if not fields:  # as nearly always, and a copy takes as long as the rendering
        return dict(body)
    made: dict[str, Any] = deepcopy(dict(body))
    engine = _engine(made)
    for field in fields:
        match field:
            case "args" | "image":
                engine.pop(field, None)
            case "config-hash":
                made["metadata"]["annotations"].pop(CONFIG_HASH, None)
            case "replicas":
                made["spec"].pop(field, None)
            case _:
                engine["env"] = [each for each in engine.get("env") or [] if f"env {each['name']}" != field]
    return made


def _engine(body: Mapping[str, Any]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = body["spec"]["template"]["spec"]["containers"]
    return next(each for each in containers if each["name"] == ENGINE_CONTAINER)
