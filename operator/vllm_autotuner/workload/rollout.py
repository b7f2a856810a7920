"""Whether the rollout strategy of an adopted Deployment allows a change without downtime. Pure.

Rendered Deployments start new pods before old ones stop; the strategy of an adopted one may stop old pods first.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ready_floor", "rollout_obstacle"]

DEFAULT_UNAVAILABLE: Final = "25%"
"""Kubernetes' own default of rollingUpdate.maxUnavailable, rounded down: none below four replicas."""


def rollout_obstacle(deployment: Mapping[str, Any]) -> str:
    """Return why a change would not roll out, or would take the service down; empty when it would do neither."""
    spec = deployment["spec"]
    if spec.get("paused"):
        return "the Deployment is paused (spec.paused), a change would not roll out"
    if (spec.get("strategy") or {}).get("type") == "Recreate":
        return "the Deployment's strategy is Recreate: a change would stop all of its pods first"
    if 0 < _replicas(spec) <= _unavailable(spec):
        return "the Deployment's strategy may stop all of its pods at once (rollingUpdate.maxUnavailable)"
    return ""


def ready_floor(deployment: Mapping[str, Any]) -> int:
    """Return how many ready pods the Deployment keeps while it rolls out, by its own strategy."""
    spec = deployment["spec"]
    return max(0, _replicas(spec) - _unavailable(spec))


def _replicas(spec: Mapping[str, Any]) -> int:
    found = spec.get("replicas")
    return 1 if found is None else int(found)


def _unavailable(spec: Mapping[str, Any]) -> int:
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return _replicas(spec)
    found = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", DEFAULT_UNAVAILABLE)
    if isinstance(found, int):
        return found
    return math.floor(_replicas(spec) * int(str(found).rstrip("%")) / 100)
