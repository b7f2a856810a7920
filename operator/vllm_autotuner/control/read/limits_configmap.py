"""The limits of the whole cluster: those of the flags, and those of a ConfigMap beside the operator, once per tick.

Apart from the loop, because a person flips the switch while everything else may be failing: reading it needs one right
to one object, and no watch. An absent ConfigMap limits nothing. One that cannot be read, also for want of that right,
lets nothing new start. Must not: raise.
"""

from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import ClusterError, NotFound
from vllm_autotuner.cluster.kinds import CONFIG_MAP
from vllm_autotuner.control.operator_settings import OperatorSettings
from vllm_autotuner.guardrails.mode_ceiling import Limits, joined, limits_from, parse_limits, unreadable

__all__ = ["current_limits"]


async def current_limits(settings: OperatorSettings, cluster: Cluster) -> Limits:
    """What is allowed at most from now on until the next tick."""
    flags = limits_from(ceiling=settings.mode_ceiling, kill=settings.kill_switch, source="flags of the operator")
    namespace, name = settings.lease_namespace, settings.limits_configmap
    if not name:
        return flags
    source = f"ConfigMap {namespace}/{name}"
    try:
        found = await cluster.read(CONFIG_MAP, namespace=namespace, name=name)
    except NotFound:
        return flags
    except ClusterError as error:
        # The constant, not the sentence: what services say of it must be the same text while the cause is the same.
        return joined(flags, unreadable(error.reason, source=source))
    return joined(flags, parse_limits(found.get("data") or {}, source=source))
