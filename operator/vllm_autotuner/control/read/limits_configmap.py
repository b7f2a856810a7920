"""The cluster-wide limits (mode ceiling, kill switch) from the flags and the limits ConfigMap, read in every tick.

Apart from `fleet_loop`, because the kill switch must work while everything else fails: it needs one permission on one
object, and no watch. A missing ConfigMap limits nothing. While it cannot be read (e.g. no permission), no change
starts. Must not: raise.
"""

from typing import NamedTuple

from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import ClusterError, NotFound, Unavailable
from vllm_autotuner.cluster.kinds import CONFIG_MAP
from vllm_autotuner.control.operator_settings import OperatorSettings
from vllm_autotuner.guardrails.mode_ceiling import READ_ONLY, Limits, joined, limits_from, parse_limits, unreadable

__all__ = ["CurrentLimits", "current_limits"]


class CurrentLimits(NamedTuple):
    """What a look at the limits gave."""

    limits: Limits
    known: bool = True
    """False where the API server gave no answer; the next look may bring one."""


async def current_limits(settings: OperatorSettings, cluster: Cluster) -> CurrentLimits:
    """The limits that apply until the next tick."""
    flags = limits_from(ceiling=settings.mode_ceiling, kill=settings.kill_switch, source="operator flags")
    if settings.read_only:
        flags = joined(flags, READ_ONLY)
    namespace, name = settings.lease_namespace, settings.limits_configmap
    if not name:
        return CurrentLimits(flags)
    source = f"ConfigMap {namespace}/{name}"
    try:
        found = await cluster.read(CONFIG_MAP, namespace=namespace, name=name)
    except NotFound:
        return CurrentLimits(flags)
    except ClusterError as error:
        # The constant, not the sentence: what services say of it must be the same text while the cause is the same.
        limits = joined(flags, unreadable(error.reason, source=source))
        return CurrentLimits(limits, known=not isinstance(error, Unavailable))
    return CurrentLimits(joined(flags, parse_limits(found.get("data") or {}, source=source)))
