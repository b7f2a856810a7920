"""What a scenario is: engines, load, objectives, bounds and what goes wrong. Values only.

Apart from `scenarios`, which draws them, so that everything else depends on what a scenario holds and not on which
there are. Must not: draw a random number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_autotuner.simulation.configuration import Profile

__all__ = [
    "Disturbance",
    "Hardware",
    "MetricsOutage",
    "Objectives",
    "Scenario",
    "Traffic",
    "Upgrade",
    "Wedge",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A model on its GPUs. `profile` holds what one GPU can do; the flags stand in every pod's command line."""

    name: str
    profile: Profile
    tensor_parallel_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """When a request counts as served well. Seconds."""

    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """All requests of a run: arrival in seconds since its start (ascending), prompt and output tokens."""

    arrivals: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.arrivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wedge:
    """The engine core of the oldest ready pod stops at `at`; a person deletes that pod at `repaired`."""

    at: float
    repaired: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOutage:
    """Nothing is scraped from `at` until `until`."""

    at: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """At `at` a person sets another image. Its engines differ as told; None where they start as before."""

    at: float
    image: str
    step_factor: float = 1.0
    """On every coefficient of the step time."""
    pool_factor: float = 1.0
    """On the KV blocks; 0 leaves no pool, so that no engine of this image starts."""


Disturbance: TypeAlias = Wedge | MetricsOutage | Upgrade


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One drawn scenario. Times in seconds since the start of the run."""

    name: str
    seed: int
    story: str
    """One sentence: what happens, with the drawn figures."""
    duration: float
    """Load arrives and GPUs are paid for this long."""
    hardware: Hardware
    traffic: Traffic
    objectives: Objectives
    seats: int | None
    """max-num-seqs as the user starts it; None leaves it to the engine."""
    replicas: int
    """As the user starts it, and what policies without scaling keep."""
    min_replicas: int
    max_replicas: int
    seat_bounds: tuple[int, int]
    startup: float
    """Seconds from the creation of a pod to its first answer."""
    patience: float
    """Seconds after which a client without a first token gives up."""
    grace: int
    """terminationGracePeriodSeconds: how long a pod that leaves may finish its requests."""
    kv_cache_dtypes: tuple[str, ...] = ("auto",)
    """What the user allows; the first is the start."""
    disturbances: Sequence[Disturbance] = ()
    moments: Sequence[float] = (0.0,)
    """When something begins from which a policy has to recover; the start counts where the start is bad."""
