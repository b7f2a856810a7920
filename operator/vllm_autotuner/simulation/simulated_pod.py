"""A pod of a simulated service: an engine that starts, serves, fails and restarts.

Separate from the fleet, which decides when that happens. Must not: choose a time, or use a router.
"""

from dataclasses import dataclass, field
from enum import Enum

from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Sequence
from vllm_autotuner.simulation.traffic import ClientRequest

__all__ = ["Attempt", "PodState", "VirtualPod"]


class PodState(Enum):
    """Where a pod is in its life."""

    STARTING = "starting"
    """Also while its container waits to be started again."""
    READY = "ready"
    """Requests are sent to it; a wedged engine stays ready, as its `/health` still answers."""
    DRAINING = "draining"
    """Gets no new requests and finishes what it has."""
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Attempt:
    """One request on one pod."""

    request: ClientRequest
    number: int
    """Counts the attempts of that request from 1."""
    pod: "VirtualPod"
    sequence: Sequence
    over: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class VirtualPod:
    """One pod. For reading; only its fleet writes to it. Times in seconds on the fleet's clock."""

    number: int
    name: str
    config: EngineConfig
    faults: Faults
    startup: float
    """From the start of the process to the first answer of `/health`."""
    created: float
    state: PodState = PodState.STARTING
    engine: SimulatedEngine | None = None
    """None while it starts and once it is gone."""
    restarts: int = 0
    ended: float | None = None
    """When it was gone."""
    under_way: dict[int, Attempt] = field(default_factory=dict)
    """By the identity of the sequence in the engine."""
    entered: list[tuple[float, PodState]] = field(default_factory=list)
    """When it entered each state, oldest first; shows later for how long it served."""

    def enter(self, state: PodState, *, at: float) -> None:
        """Be in another state from now on."""
        self.state = state
        self.entered.append((at, state))

    @property
    def serves(self) -> bool:
        """Whether its engine runs: `/metrics` answers."""
        return self.state in (PodState.READY, PodState.DRAINING)

    def gpu_seconds(self, *, until: float) -> float:
        """Return for how long its GPUs were held, starting up included."""
        end = until if self.ended is None else min(self.ended, until)
        return max(0.0, end - self.created) * self.config.tensor_parallel_size
