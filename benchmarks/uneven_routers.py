"""Routers that do not share out evenly: pods that are favoured, and pods that get little while they are new.

Shared by the verdict benchmark and the closed loop. Must not: know a change, or which pod is a canary.
"""

from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from vllm_autotuner.simulation.arrivals import random_stream
from vllm_autotuner.simulation.routing import Router, Routing
from vllm_autotuner.simulation.simulated_pod import PodState, VirtualPod
from vllm_autotuner.simulation.traffic import ClientRequest

__all__ = ["NEW_FOR", "SHARE_OF_NEW", "Favouring", "PrefersWarm"]

SHARE_OF_NEW: Final = 0.3
"""Requests of a new pod over those of a warm one. Beside two warm pods a pool of eight connections gave a new one 0.13
of the requests, and each of the others 0.43 (`e2e/test_router_shares.py`)."""
NEW_FOR: Final = 900.0
"""Seconds until a pod counts as warm: clients open new connections, and its prefix cache is full. Longer than an
analysis of 5 min with its warm-up, or a verdict would see only a part of it. Our choice, unmeasured."""


class Favouring(Router):
    """Sends each favoured pod `share` times as many requests as each of the others, drawn at random.

    Below 1 stands for routers that prefer warm prefix caches or the pods that clients hold connections to, above 1 for
    those that prefer the pod that answered fastest when it was empty.
    """

    def __init__(self, share: float, *, seed: int, routing: Routing = Routing.RANDOM) -> None:
        super().__init__(routing, seed=seed)
        self._share = share
        self._chances = random_stream(seed, "favouring")
        self.favoured: Sequence[VirtualPod] = ()
        """Empty: all get as many."""

    @override
    def choose(self, request: ClientRequest, ready: Sequence[VirtualPod]) -> VirtualPod:
        """Return a favoured pod by its share, else one of the others."""
        favoured = [pod for pod in ready if pod in self.favoured]
        others = [pod for pod in ready if pod not in self.favoured]
        if not favoured or not others:
            return super().choose(request, ready)
        weight = self._share * len(favoured)
        if self._chances.random() >= weight / (weight + len(others)):
            return super().choose(request, others)
        return favoured[0] if len(favoured) == 1 else super().choose(request, favoured)


class PrefersWarm(Favouring):
    """Sends pods that are new fewer requests than those that are warm. What serves from second 0 on is warm."""

    def __init__(self, routing: Routing, *, seed: int) -> None:
        super().__init__(SHARE_OF_NEW, seed=seed, routing=routing)

    @override
    def choose(self, request: ClientRequest, ready: Sequence[VirtualPod]) -> VirtualPod:
        """Return a pod for the request."""
        self.favoured = [pod for pod in ready if _is_new(pod, at=request.at)]
        return super().choose(request, ready)


def _is_new(pod: VirtualPod, *, at: float) -> bool:
    since = max((entered for entered, state in pod.entered if state is PodState.READY), default=at)
    return since > 0 and at - since < NEW_FOR
