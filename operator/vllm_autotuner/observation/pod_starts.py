"""The pods of a service as the diagnosis needs them: ready, starting or failing to start.

Separate from `observation`, because it comes from the API server and not from metrics; absent outside Kubernetes.
Ages in seconds. Must not: read Kubernetes objects (`control` does), or judge.
"""

from dataclasses import dataclass

from vllm_autotuner.engine.startup_log import StartupFailure

__all__ = ["PodStart", "PodsView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStart:
    """One pod that is there to stay."""

    name: str
    ready_for: float | None
    """Seconds since it became ready; None while it is not."""
    failure: StartupFailure | None = None
    """Why it does not start; None for a pod that serves, or that simply is not done yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsView:
    """The pods of one service; those that are being deleted are left out."""

    pods: tuple[PodStart, ...]
    warm_up: float | None = None
    """Seconds that a fresh pod is given before it is judged, where the service says so."""

    @property
    def ready(self) -> tuple[PodStart, ...]:
        """The pods that serve."""
        return tuple(pod for pod in self.pods if pod.ready_for is not None)

    @property
    def failing(self) -> tuple[PodStart, ...]:
        """The pods that cannot start."""
        return tuple(pod for pod in self.pods if pod.failure is not None)

    @property
    def starting(self) -> tuple[PodStart, ...]:
        """The pods that are not done yet."""
        return tuple(pod for pod in self.pods if pod.ready_for is None and pod.failure is None)
