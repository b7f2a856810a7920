"""Who writes a field of an object, by the API server's own records (managedFields). Pure.

Apart from `ownership`, which is about whole objects. Of a user's object the question is whether a value of ours would
be put back. The rule fails closed: only a command that a person gave once, by a tool that we know to be one, leaves a
field to us. Whoever declares a field (server-side apply), applies a manifest again and again, or is not known, owns it.
Of our own children the question is who has taken a field since we wrote it (`taken_by`).
Must not: ask the API, or decide what happens next.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vllm_autotuner.cluster.ownership import controller_of
from vllm_autotuner.workload.labels import OPERATOR

__all__ = ["autoscaler_of", "declarers", "is_ours", "last_writer", "scaled_by", "taken_by", "template_list"]

Object = Mapping[str, Any]

GIVEN_ONCE: Final = frozenset(
    {
        "kubectl", "kubectl-create", "kubectl-edit", "kubectl-patch", "kubectl-set", "kubectl-scale", "kubectl-rollout",
        "kubectl-annotate", "kubectl-label", "kubectl-replace", "kubectl-run", "k9s", "dashboard",
    }
)  # fmt: skip
"""Managers of updates by hand (`kubectl scale` calls itself kubectl). `kubectl-client-side-apply` is none of them: the
same manifest is applied again. Our choice, from the names that kubectl and the dashboards write."""

_CONTROLLER_MANAGER: Final = "kube-controller-manager"
_REPLICAS: Final = ("f:spec", "f:replicas")


def template_list(container: str, field: str) -> tuple[str, ...]:
    """Return the path of a container's list (args or command) in managedFields."""
    return ("f:spec", "f:template", "f:spec", "f:containers", f'k:{{"name":"{container}"}}', f"f:{field}")


def declarers(live: Object, *, path: Sequence[str]) -> tuple[str, ...]:
    """Return who would put this field back, in words for people; empty when nobody is known to.

    A controller that owns the whole object (an operator of another project) counts first.
    """
    controller = controller_of(live)
    owner = (f"{controller.get('kind')} {controller.get('name')}",) if controller is not None else ()
    managers = dict.fromkeys(
        str(entry.get("manager") or "unknown")
        for entry in _entries(live)
        if not entry.get("subresource")
        and _has(entry, path)
        and entry.get("manager") != OPERATOR
        and (entry.get("operation") == "Apply" or entry.get("manager") not in GIVEN_ONCE)
    )
    return (*owner, *managers)


def is_ours(live: Object, *, path: Sequence[str]) -> bool:
    """Whether our own server-side applies own this field: leaving it out of the next one would remove it."""
    return any(
        entry.get("manager") == OPERATOR and entry.get("operation") == "Apply" and _has(entry, path)
        for entry in _entries(live)
    )


def autoscaler_of(live: Object) -> tuple[str, ...]:
    """Return who else sets the replicas of a Deployment: an autoscaler that wrote them, or whoever declares them."""
    return tuple(dict.fromkeys((*scaled_by(live), *declarers(live, path=_REPLICAS))))


def scaled_by(live: Object) -> tuple[str, ...]:
    """Return the autoscalers that wrote the replicas through the scale subresource, in words for people.

    `kubectl scale` goes the same way and is none: a person's number is a person's edit.
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
    """Return who has written a field of a child since we did; empty while it is ours, or when nobody can say."""
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
