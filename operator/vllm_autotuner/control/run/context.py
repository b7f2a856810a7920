"""The dependencies of the fleet loop: settings, API access, registry, metrics and clocks.

Apart from `app`, which builds it, so that a test can pass its own context.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.lease import Election, Unelected
from vllm_autotuner.control.operator_settings import OperatorSettings
from vllm_autotuner.control.read.registry import Registry
from vllm_autotuner.control.run.liveness import Heartbeat
from vllm_autotuner.control.run.operator_metrics import OperatorMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlContext:
    """One running operator."""

    settings: OperatorSettings
    cluster: Cluster
    """Refuses writes by itself while `election.is_leader` is False, and always in a read-only operator."""

    registry: Registry
    election: Election | Unelected
    metrics: OperatorMetrics
    heartbeat: Heartbeat
    monotonic: Callable[[], float]
    """Seconds, for durations inside this process."""

    wall: Callable[[], datetime]
    """UTC, for what is written into objects."""
