"""Whether the operator may overwrite a live object, and the error to raise when it may not. Pure.

Apart from `adapter`, because forcing a server-side apply onto an object of another owner is the one mistake that no
rollback can undo.
Must not: call the API, or decide what happens next (the error type says it).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_autotuner.api.annotations import whole_number
from vllm_autotuner.api.service import KIND
from vllm_autotuner.cluster.errors import NEWER_EPOCH, NOT_OWNED, TERMINATING, ClusterError, Conflict, Refused
from vllm_autotuner.workload.labels import LEASE_EPOCH, MANAGED_BY, OPERATOR, SERVICE

Object = Mapping[str, Any]


def objection(*, live: Object, service_name: str, service_uid: str | None, epoch: int) -> ClusterError | None:
    """Return why `live` must not be written on behalf of this VLLMService by the leader of `epoch`, None when it may.

    `service_uid` None: the VLLMService keeps no controller reference on its children (they outlive it).
    Conflict when waiting helps (the object is going away, or a newer leader is at work), Refused when it does not.
    """
    metadata = live.get("metadata") or {}
    name = f"{live.get('kind', 'object')} {metadata.get('namespace')}/{metadata.get('name')}"
    if metadata.get("deletionTimestamp"):
        return Conflict(f"{name} is being deleted", reason=TERMINATING)
    controller = controller_of(live)
    labels = metadata.get("labels") or {}
    if controller is None:
        if labels.get(MANAGED_BY) != OPERATOR or labels.get(SERVICE) != service_name:
            found = f"{name} exists and is managed by {_managed_by(live)}"
            return Refused(f"{found}; delete it or rename the VLLMService", reason=NOT_OWNED)
    elif controller.get("kind") != KIND or controller.get("name") != service_name:
        found = f"{name} belongs to {controller.get('kind')} {controller.get('name')}"
        return Refused(f"{found}; rename the VLLMService", reason=NOT_OWNED)
    elif service_uid is not None and controller.get("uid") != service_uid:
        # Garbage collection removes the predecessor's children, then the name is free.
        return Conflict(f"{name} belongs to a deleted VLLMService with the same name", reason=TERMINATING)
    written_in = _epoch_of(metadata)
    if written_in is not None and written_in > epoch:
        return Conflict(
            f"{name} was written by the leader of epoch {written_in}, this process leads in epoch {epoch}",
            reason=NEWER_EPOCH,
        )
    return None


def controller_of(live: Object) -> Mapping[str, Any] | None:
    """Return the ownerReference that is the controller, None when there is none."""
    references: list[Mapping[str, Any]] = (live.get("metadata") or {}).get("ownerReferences") or []
    return next((reference for reference in references if reference.get("controller")), None)


def _epoch_of(metadata: Mapping[str, Any]) -> int | None:
    return whole_number((metadata.get("annotations") or {}).get(LEASE_EPOCH))


def _managed_by(live: Object) -> str:
    metadata = live.get("metadata") or {}
    label = (metadata.get("labels") or {}).get(MANAGED_BY)
    managers = sorted(set(_field_managers(metadata)))
    named = [str(label)] if label else []
    return " and ".join(named + managers) or "an unknown manager"


def _field_managers(metadata: Mapping[str, Any]) -> Iterator[str]:
    for entry in metadata.get("managedFields") or []:
        # Controllers that only report status do not own the object.
        if not entry.get("subresource") and entry.get("manager"):
            yield str(entry["manager"])
