"""Which field manager writes a field of an object, from managedFields. Pure.

Apart from `ownership`, which is about whole objects. For a user's object the question is whether a tuned value would be
reverted. The rule fails closed: only a manager that is known to stand for a manual command leaves a field to the
operator. A manager that declares the field (server-side apply), re-applies a manifest, or is unknown owns it.
For the operator's own children the question is which manager took a field over since the last write (`taken_by`).
Must not: call the API, or decide what happens next.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vllm_autotuner.cluster.ownership import controller_of
from vllm_autotuner.workload.labels import OPERATOR

__all__ = ["autoscaler_of", "declarers", "is_ours", "last_writer", "maker", "scaled_by", "taken_by", "template_list"]

Object = Mapping[str, Any]

GIVEN_ONCE: Final = frozenset(
    {
        "kubectl", "kubectl-create", "kubectl-edit", "kubectl-patch", "kubectl-set", "kubectl-scale", "kubectl-rollout",
        "kubectl-annotate", "kubectl-label", "kubectl-replace", "kubectl-run", "k9s", "dashboard",
    }
)  # fmt: skip
"""Managers of manual updates (the manager of `kubectl scale` is kubectl). `kubectl-client-side-apply` is not one: the
same manifest is applied again later. Our choice, from the names that kubectl and the dashboards write."""

_CONTROLLER_MANAGER: Final = "kube-controller-manager"
_REPLICAS: Final = ("f:spec", "f:replicas")


def template_list(container: str, field: str) -> tuple[str, ...]:
    """Return the path of a container's list (args or command) in managedFields."""
    return ("f:spec", "f:template", "f:spec", "f:containers", f'k:{{"name":"{container}"}}', f"f:{field}")


def declarers(live: Object, *, path: Sequence[str]) -> tuple[str, ...]:
    """Return the managers that would revert this field, as text for people; empty when there is none.

    A controller that owns the whole object (another operator) comes first.
    """
    managers = dict.fromkeys(
        str(entry.get("manager") or "unknown")
        for entry in _entries(live)
        if not entry.get("subresource")
        and _has(entry, path)
        and entry.get("manager") != OPERATOR
        and (entry.get("operation") == "Apply" or entry.get("manager") not in GIVEN_ONCE)
    )
    return (*maker(live), *managers)


def maker(live: Object) -> tuple[str, ...]:
    """Return the controller that owns the whole object, as text for people; empty when there is none."""
    controller = controller_of(live)
    return (f"{controller.get('kind')} {controller.get('name')}",) if controller is not None else ()


def is_ours(live: Object, *, path: Sequence[str]) -> bool:
    """Whether our own server-side applies own this field: leaving it out of the next one would remove it."""
    return any(
        entry.get("manager") == OPERATOR and entry.get("operation") == "Apply" and _has(entry, path)
        for entry in _entries(live)
    )


def autoscaler_of(live: Object) -> tuple[str, ...]:
    """Return the other writers of a Deployment's replicas: autoscalers, and managers that declare them."""
    return tuple(dict.fromkeys((*scaled_by(live), *declarers(live, path=_REPLICAS))))


def scaled_by(live: Object) -> tuple[str, ...]:
    """Return the autoscalers that wrote the replicas through the scale subresource, as text for people.

    `kubectl scale` uses the same subresource and does not count: it is a manual edit.
    """
    scaled = (
        str(entry.get("manager") or "unknown")
        for entry in _entries(live)
        if entry.get("subresource") == "scale"
        and _has(entry, _REPLICAS)
        and entry.get("manager") not in GIVEN_ONCE | {OPERATOR}
    )
    return tuple("an autoscaler (HorizontalPodAutoscaler)" if name == _CONTROLLER_MANAGER else name for name in scaled)


def taken_by(live: Object, *, path: Sequence[str]) -> str:
    """Return the manager that took over a field of a child; empty while the operator owns it, or when unknown."""
    owners = [str(entry.get("manager") or "unknown") for entry in _entries(live) if _has(entry, path)]
    if OPERATOR in owners or not _entries(live):
        return ""
    # Removed fields have no owner: the last writer will have done it.
    return owners[0] if owners else last_writer(live)


def last_writer(live: Object) -> str:
    """Return the manager, other than us, that wrote the object itself (not its status) last; empty without any."""
    others = [
        entry for entry in _entries(live) if entry.get("manager") != OPERATOR and entry.get("subresource") != "status"
    ]
    newest = max(others, key=lambda entry: str(entry.get("time", "")), default=None)
    return str(newest.get("manager") or "unknown") if newest is not None else ""


def _entries(live: Object) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = (live.get("metadata") or {}).get("managedFields") or ()
    return found


def _has(entry: Mapping[str, Any], path: Sequence[str]) -> bool:
    node: Any = entry.get("fieldsV1") or {}
    for step in path:
        if not isinstance(node, Mapping) or step not in node:
            return False
        node = node[step]
    return True
