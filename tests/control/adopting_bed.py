"""A Deployment that somebody else wrote, in the model of the fleet loop's world.

Like the API server: an apply takes the fields it names from whoever had them, and nobody's edit in between is lost.
"""

import copy
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.api.cases import changed
from tests.control.cluster_model import ApiServer, Body, Load, Pod, seats_of
from tests.control.desk import SPEC, START
from tests.control.loop_bed import Bed, queueing
from typing_extensions import override

from vllm_autotuner.cluster.adapter import Page
from vllm_autotuner.cluster.errors import Conflict
from vllm_autotuner.cluster.kinds import AUTOSCALER, POD, Kind
from vllm_autotuner.workload.adoption import digest_of

NAME: Final = "theirs"
ARGS: Final = ("Qwen/Qwen3-0.6B", "--seed", "1", "--max-num-seqs", "64", "--enable-prefix-caching")
ADOPTING: Final[Mapping[str, Any]] = {
    "model": ...,
    "engine": ...,
    "replicas": ...,
    "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME},
}
_ARGS_FIELDS: Final[Mapping[str, Any]] = {
    "f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"server"}': {"f:args": {}}}}}}
}


def managed(manager: str, *, operation: str = "Update", fields: Mapping[str, Any] | None = None) -> Body:
    """An entry of managedFields, by default one that owns the engine's args."""
    return {"manager": manager, "operation": operation, "fieldsV1": dict(fields or _ARGS_FIELDS)}


def theirs(*, args: tuple[str, ...] = ARGS, replicas: int = 1, manager: Body | None = None, **rest: Any) -> Body:
    """A user's Deployment; `rest` changes it at dotted paths (`__` stands for a dot)."""
    container = {
        "name": "server",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": list(args),
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    body = {
        "kind": "Deployment",
        "metadata": {
            "namespace": "prod",
            "name": NAME,
            "uid": "d-1",
            "generation": 1,
            "managedFields": [manager or managed("kubectl-create")],
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "chat"}},
            "template": {"metadata": {"labels": {"app": "chat"}}, "spec": {"containers": [container]}},
        },
        "status": {},
    }
    return changed(body, {path.replace("__", "."): value for path, value in rest.items()})


@dataclass
class AdoptingServer(ApiServer):
    """With Deployments that carry nothing of ours."""

    autoscalers: list[Body] = field(default_factory=list)
    written: list[Body] = field(default_factory=list)
    """Every write to a Deployment, in order."""

    @override
    async def pages(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        selector: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[Page]:
        if namespace is None:
            async for page in super().pages(kind, fields=fields):
                yield page
            return
        self.requests[f"list {kind.kind}"] += 1
        if kind is AUTOSCALER:
            yield Page(objects=tuple(self.autoscalers), resource_version="1")
            return
        assert (kind, selector) == (POD, "app=chat")
        yield Page(objects=tuple(_pod_body(pod) for pod in self.pods), resource_version="1")

    async def apply_adopted(self, body: Body, *, epoch: int) -> Body:
        name = body["metadata"]["name"]
        self._enter("apply Deployment", name)
        live = copy.deepcopy(self.objects["Deployment", name])
        if body["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"]:
            raise Conflict(f"{name} has changed", reason="Conflict", status=409)
        [theirs], [ours] = (each["spec"]["template"]["spec"]["containers"] for each in (live, body))
        assert theirs["name"] == ours["name"]
        theirs.update(ours)
        live["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        live["metadata"]["generation"] += 1
        live["metadata"]["managedFields"] = [managed("vllm-autotuner", operation="Apply")]
        self.written.append(body)
        applied = self._store("Deployment", name, live)
        self._leave()
        return applied

    @override
    async def scale(self, namespace: str, name: str, replicas: int, *, resource_version: str) -> None:
        self._enter("scale Deployment", name)
        self.written.append({"replicas": replicas})
        self.edit_deployment(lambda body: body["spec"].update(replicas=replicas))
        self._leave()

    def edit_deployment(self, change: Callable[[Body], object], *, manager: str | None = None) -> None:
        """Its owner's edit."""
        body = copy.deepcopy(self.objects["Deployment", NAME])
        change(body)
        body["metadata"]["generation"] += 1
        if manager is not None:
            body["metadata"]["managedFields"] = [managed(manager)]
        self._store("Deployment", NAME, body)

    @override
    def _roll(self, name: str, body: Body) -> None:
        """Surge by one, as Kubernetes' defaults do for a few replicas."""
        if name != NAME:
            return
        args, wanted = tuple(args_of(body)), body["spec"]["replicas"]
        current = digest_of(args)
        new = [pod for pod in self.pods if pod.config_hash == current]
        old = [pod for pod in self.pods if pod.config_hash != current]
        while len(new) < wanted and len(new) + len(old) < wanted + 1:
            new.append(Pod(f"{name}-{self.version}-{len(new)}", name, {}, current, args, created=self.now))
            self.version += 1
        serving = [pod for pod in new if pod.ready_since is not None]
        stay = old[: max(0, wanted - len(serving))]
        self.pods = new[:wanted] + stay
        status = {
            "observedGeneration": body["metadata"]["generation"],
            "replicas": len(self.pods),
            "readyReplicas": len([pod for pod in self.pods if pod.ready_since is not None]),
            "updatedReplicas": len(new[:wanted]),
        }
        if body["status"] != status:
            self._store("Deployment", name, {**body, "status": status})

    @override
    def tell(self, registry: Any) -> None:
        """The watches bring VLLMServices only: the rest carries no label of ours."""
        for (kind, _), body in self.objects.items():
            if kind == "VLLMService":
                registry.services.see(body)


class AdoptingBed(Bed):
    """One operator, and one Deployment that it has to find."""

    api: AdoptingServer

    @property
    def live(self) -> Body:
        return self.api.objects["Deployment", NAME]

    @property
    def args(self) -> tuple[str, ...]:
        return tuple(args_of(self.live))

    def condition(self, kind: str, name: str = "chat") -> tuple[str, str, str]:
        found = next((one for one in self.status(name).conditions if one.type == kind), None)
        return ("", "", "") if found is None else (found.status.value, found.reason, found.message)


def args_of(body: Body) -> list[str]:
    [container] = body["spec"]["template"]["spec"]["containers"]
    found: list[str] = container["args"]
    return found


def adopting(
    deployment: Body | None = None,
    *,
    names: tuple[str, ...] = ("chat",),
    load: Callable[[int], Load] = queueing,
    **changes: Any,
) -> AdoptingBed:
    """A queueing service of somebody else's, adopted in mode Automatic but for what is named (`__` is a dot)."""
    api = AdoptingServer(now=START, load=load)
    spec = changed(SPEC, {**ADOPTING, **{path.replace("__", "."): value for path, value in changes.items()}})
    for number, name in enumerate(names):
        metadata = {
            "namespace": "prod",
            "name": name,
            "uid": f"uid-{name}",
            "generation": 1,
            "creationTimestamp": f"2026-11-20T12:00:0{number}Z",
        }
        api.create(
            {"apiVersion": "vllm-autotuner.dev/v1alpha1", "kind": "VLLMService", "metadata": metadata, "spec": spec}
        )
    if deployment != {}:
        api._store("Deployment", NAME, deployment or theirs())
    return AdoptingBed(api)


def seats(bed: AdoptingBed) -> int:
    return seats_of(bed.args)


def _pod_body(pod: Pod) -> Body:
    ready: Body = {"type": "Ready", "status": "True" if pod.ready_since else "False"}
    if pod.ready_since is not None:
        ready["lastTransitionTime"] = pod.ready_since.isoformat()
    state: Body = {"name": "server", "restartCount": int(pod.crashed), "state": {"running": {}}}
    if pod.crashed:
        state["lastState"] = {"terminated": {"exitCode": 1, "reason": "Error"}}
    return {
        "metadata": {
            "namespace": "prod",
            "name": pod.name,
            "labels": {"app": "chat", "pod-template-hash": "5d4"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": f"{pod.deployment}-5d4", "controller": True}],
        },
        "spec": {"containers": [{"name": "server", "image": "vllm/vllm-openai:v0.32.0", "args": list(pod.args)}]},
        "status": {"phase": "Running", "conditions": [ready], "containerStatuses": [state]},
    }
