"""Routes requests to pods, and tracks how much of each request a pod's prefix cache already has.

Separate from the fleet, because both follow from which pod answered earlier requests. Must not: send anything.
"""

from collections.abc import Sequence
from enum import StrEnum

from vllm_autotuner.simulation.arrivals import random_stream
from vllm_autotuner.simulation.simulated_pod import PodState, VirtualPod
from vllm_autotuner.simulation.traffic import ClientRequest

__all__ = ["Router", "Routing"]


class Routing(StrEnum):
    """Which ready pod gets a request. Where several are as good, the seed decides."""

    LEAST_OUTSTANDING = "least-outstanding"
    """The one with the fewest requests under way, as inference gateways do."""
    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    """As kube-proxy does for new connections."""
    SESSION = "session"
    """The one that answered this client before, while it is ready; else the least outstanding."""


class Router:
    """Chooses among ready pods and remembers who answered whom."""

    def __init__(self, routing: Routing, *, seed: int) -> None:
        self._routing = routing
        self._draws = random_stream(seed, "router")
        self._turn = 0
        self._homes: dict[int, tuple[VirtualPod, int]] = {}
        """Client -> the pod that answered it last, and after how many of its restarts: a restart forgets."""

    def choose(self, request: ClientRequest, ready: Sequence[VirtualPod]) -> VirtualPod:
        """Return the pod for a request. `ready`: at least one, oldest first."""
        match self._routing:
            case Routing.ROUND_ROBIN:
                self._turn += 1
                return ready[(self._turn - 1) % len(ready)]
            case Routing.RANDOM:
                return self._draws.choice(ready)
            case Routing.SESSION if request.client in self._homes:
                home, _ = self._homes[request.client]
                return home if home.state is PodState.READY else self._least_outstanding(ready)
            case Routing.SESSION | Routing.LEAST_OUTSTANDING:
                return self._least_outstanding(ready)

    def _least_outstanding(self, ready: Sequence[VirtualPod]) -> VirtualPod:
        fewest = min(len(pod.under_way) for pod in ready)
        least = [pod for pod in ready if len(pod.under_way) == fewest]
        return least[0] if len(least) == 1 else self._draws.choice(least)

    def answered(self, request: ClientRequest, *, by: VirtualPod) -> None:
        """Remember who answered."""
        if request.client is not None:
            self._homes[request.client] = (by, by.restarts)

    def known_tokens(self, request: ClientRequest, *, to: VirtualPod) -> int | None:
        """Return the beginning of the prompt that this pod's prefix cache holds; None: as its profile says."""
        if not request.history_tokens and not request.shared_tokens:
            return None
        if request.client is not None and self._homes.get(request.client) == (to, to.restarts):
            return max(request.history_tokens, request.shared_tokens)
        # The first request computes what all share; whatever comes at the same time computes it once more.
        warm = to.engine is not None and to.engine.metrics.prompt_tokens > 0
        return request.shared_tokens if warm else 0
