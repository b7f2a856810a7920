"""Rollback of a rendered Deployment while its spec cannot be read: the old values are written over the live object.

Apart from `rendering`, which needs the whole spec. Only what differs between two settings of the knobs is changed, so
that the pod template equals the former one exactly, and Kubernetes reuses its ReplicaSet.
What is added again (the shared memory of several ranks) is an update, not an apply: a later apply without it leaves it
in the pods, where it does no harm.
Must not: be used while the spec can be read, because it keeps everything else in the Deployment.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.pod_template import ENGINE_CONTAINER
from vllm_autotuner.api.status import ConfigRef
from vllm_autotuner.workload.engine_container import (
    SHARED_MEMORY_MOUNT,
    SHARED_MEMORY_VOLUME,
    ranks,
    retuned,
)
from vllm_autotuner.workload.labels import CONFIG_HASH

__all__ = ["restored"]

Object = Mapping[str, Any]


def restored(live: Object, *, to: ConfigRef, back: ConfigRef) -> dict[str, Any]:
    """Return the merge patch by which a Deployment that runs `to` runs `back`."""
    template = live["spec"]["template"]["spec"]
    containers = [
        _engine(each, to=to, back=back) if each["name"] == ENGINE_CONTAINER else each for each in template["containers"]
    ]
    pods: dict[str, Any] = {"containers": containers}
    volumes = _shared(template.get("volumes") or (), SHARED_MEMORY_VOLUME, to=to, back=back)
    if volumes is not None:
        # A merge patch removes what is null.
        pods["volumes"] = volumes or None
    hashed = {"annotations": {CONFIG_HASH: back.config_hash}}
    return {"metadata": hashed, "spec": {"template": {"metadata": hashed, "spec": pods}}}


def _engine(container: Object, *, to: EngineKnobs, back: EngineKnobs) -> dict[str, Any]:
    found = {**container, "args": retuned(container.get("args") or (), back)}
    mounts = _shared(container.get("volumeMounts") or (), SHARED_MEMORY_MOUNT, to=to, back=back)
    if mounts is not None:
        found.pop("volumeMounts", None)
        found |= {"volumeMounts": mounts} if mounts else {}
    if ranks(to) != ranks(back) and "resources" in container:
        found["resources"] = {
            kind: {name: _devices(name, str(amount), to=to, back=back) for name, amount in amounts.items()}
            if kind in ("limits", "requests")
            else amounts
            for kind, amounts in container["resources"].items()
        }
    return found


def _devices(name: str, amount: str, *, to: EngineKnobs, back: EngineKnobs) -> str:
    # Only devices have a domain in their name: one per rank. Another number was set by the user and is kept.
    return str(ranks(back)) if "/" in name and amount == str(ranks(to)) else amount


def _shared(parts: Sequence[Object], ours: Object, *, to: EngineKnobs, back: EngineKnobs) -> list[Object] | None:
    """The list with or without what only several ranks need; None where nothing changes."""
    if (ranks(to) > 1) == (ranks(back) > 1):
        return None
    others = [each for each in parts if each["name"] != ours["name"]]
    return [ours, *others] if ranks(back) > 1 else others
