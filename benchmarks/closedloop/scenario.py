"""What a scenario is: engines, load, objectives, bounds and what goes wrong. Values only.

Apart from `scenarios`, which draws them, so that everything else depends on what a scenario holds and not on which
there are. Must not: draw a random number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from benchmarks.closedloop.noise import QUIET, Noise
from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.configuration import Profile
from vllm_autotuner.simulation.routing import Routing
from vllm_autotuner.simulation.traffic import Content, OpenLoop

__all__ = [
    "COMPRESSED",
    "DEFAULTS",
    "Disturbance",
    "Hardware",
    "MetricsOutage",
    "Objectives",
    "Rhythm",
    "Scenario",
    "Upgrade",
    "Wedge",
]


REACTION: Final = 120.0
"""Seconds in which a policy can have seen what has become of a load that it was blind to, or that was not there before:
four scrapes of 15 s in which it shows, as many again to believe it. The start of what it then asks for comes on top.
Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A model on its GPUs. `profile` holds what one GPU can do; the flags stand in every pod's command line."""

    name: str
    profile: Profile
    tensor_parallel_size: int
    max_model_len: int
    model: str = "model"
    """As the spec names it; its words tell the type of the weights."""
    gpu: str | None = None
    """As `spec.accelerator.product` names it; None: the user says nothing."""

    def at(self, tensor_parallel_size: int) -> "Hardware":
        """The same model at another tensor parallel size, which its name ends with."""
        name = f"{self.name.rpartition(' TP')[0]} TP{tensor_parallel_size}"
        return replace(self, name=name, tensor_parallel_size=tensor_parallel_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """When a request counts as served well. Seconds."""

    ttft: float
    tpot: float
    quantile: float = 0.95
    """Part of the requests that have to meet each; the product's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often the user allows a change; None leaves it to the product's default."""

    cooldown: str | None = None
    bake: str | None = None
    changes_per_day: int | None = None


DEFAULTS: Final = Rhythm()
"""6 h between changes, 30 min of bake, two changes a day, whatever the product's defaults become."""
COMPRESSED: Final = Rhythm(cooldown="5m", bake="2m", changes_per_day=12)
"""For runs of an hour (`--quick`, tests): no user has these."""


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
    rate: RateCurve
    """Falls to 0 for good at `duration`."""
    content: Content
    burstiness: float
    """Coefficient of variation of the gaps between requests; 1 is Poisson."""
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
    """Seconds after which a client without its whole answer gives up."""
    routing: Routing
    grace: int
    """terminationGracePeriodSeconds: how long a pod that leaves may finish its requests."""
    kv_cache_dtypes: tuple[str, ...] = ("auto",)
    """What the user allows; the first is the start."""
    tensor_parallel_sizes: tuple[int, ...] = ()
    """What the user allows; empty: only the start, which `hardware` tells."""
    length_bounds: tuple[int, int] | None = None
    """Of max-model-len; None: the user allows no change."""
    tunes: bool = True
    """Whether the user allows any flag to change; else the spec gives no bounds."""
    frozen: Knob | None = None
    """The one flag whose bounds the user leaves out, whatever is said of it here."""
    rhythm: Rhythm = DEFAULTS
    noise: Noise = QUIET
    steady_from: float | None = None
    """From when on the load and everything else about the case stays as it is; None: it never does."""
    disturbances: Sequence[Disturbance] = ()
    prefers_warm: bool = False
    """Whether the router sends fewer requests to a pod that is new (`benchmarks.uneven_routers`)."""
    scales: bool = True
    """Whether the number of replicas may change; else it stays at `replicas`."""
    gpus_there: int | None = None
    """GPUs of the cluster; None: as many as are asked for."""
    bad: float = 0.0
    """Probability, 0..1, that a value which the user has not written himself is secretly bad."""
    moments: Sequence[float] = (0.0,)
    """When something begins from which a policy has to recover; the start counts where the start is bad."""

    @property
    def settled_from(self) -> float:
        """From when on a policy had time to learn: for the second half, but not while or just after it could not.

        A fixed setting that was chosen knowing the whole run serves what grew within an outage of the metrics from its
        first second, and prompts that grow over minutes before they do. Who has to see it cannot before the outage
        ends, or the last prompt has its length, whatever it does; nor serve it before a start.
        """
        outages = [one.until for one in self.disturbances if isinstance(one, MetricsOutage)]
        drifts = [change.at + change.over for change in self.content.changes]
        return max([self.duration / 2, *(until + REACTION + self.startup for until in (*outages, *drifts))])

    @property
    def parallel_sizes(self) -> tuple[int, ...]:
        """Tensor parallel sizes that may run, the start first."""
        start = self.hardware.tensor_parallel_size
        return (start, *(size for size in self.tensor_parallel_sizes if size != start)) if self.tunes else (start,)

    @property
    def gpus(self) -> int:
        """GPUs of the start."""
        return self.replicas * self.hardware.tensor_parallel_size

    @property
    def adjustable(self) -> Sequence[Knob]:
        """The flags that the user lets change."""
        allowed = {
            Knob.MAX_NUM_SEQS: True,
            Knob.KV_CACHE_DTYPE: len(self.kv_cache_dtypes) > 1,
            Knob.TENSOR_PARALLEL_SIZE: len(self.parallel_sizes) > 1,
            Knob.MAX_MODEL_LEN: self.length_bounds is not None,
        }
        return [knob for knob, may in allowed.items() if may and self.tunes and knob is not self.frozen]

    def traffic(self) -> OpenLoop:
        """The requests, from the first on: the same for everyone who asks."""
        return OpenLoop(self.rate, self.content, burstiness=self.burstiness, seed=self.seed)
