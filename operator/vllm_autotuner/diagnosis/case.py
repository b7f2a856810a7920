"""The input of every diagnosis rule (`Case`), and the readings that several rules share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.engine_window import EngineWindow
from vllm_autotuner.observation.noise import DEVIATIONS, NOISE
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.reading import Absence, Measured, NoData, Reading, number
from vllm_autotuner.performance.step_time import StepTime, StepTimeFit, fit_step_time

__all__ = [
    "BUSY",
    "HANGS_AFTER",
    "NEARLY_ALL",
    "SLOTS_USED",
    "Case",
    "Sustained",
    "batch_of_tokens",
    "busy_batch",
    "by_chance",
    "is_late",
    "is_not_exported",
    "kv_max",
    "kv_mean",
    "late_from",
    "makes_no_token",
    "mean_batch",
    "mean_running",
    "most_waiting",
    "mostly_waits",
    "not_exported",
    "over_mean",
    "queues",
    "reaches_behind",
    "seems_to_become_fewer",
    "slots_used_share",
    "step_time",
    "surely",
    "tail_of",
    "tpot_mean",
    "tpot_reading",
    "tpot_surely",
    "tpot_tail",
    "ttft_reading",
    "undecided",
    "waiting_share",
]

FEWEST_FINISHED: Final = 10
"""Finished requests needed to prefer the per-request TPOT to the inter-token latency. Per-request TPOT is what users
see, but it lags, and with few finished requests a single one decides it. Our choice, unmeasured."""


HANGS_AFTER: Final = Threshold(
    limit=120,
    unit="s",
    reason="no step takes this long, and a prompt in chunks moves the KV cache meanwhile",
    source="design choice",
)
SLOTS_USED: Final = Threshold(
    limit=0.5,
    unit="of scrapes",
    reason="with all slots in use max-num-seqs is the more likely limit",
    source="our choice",
)
TURNED_AWAY: Final = 0.01
"""Share of rejected requests (by the engine's queue limit) above which the queue counts as full in every scrape. A
queue at its limit may drain between scrapes, so its gauge alone is not enough. Our choice: as for preemptions, F4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """When a condition on single scrapes counts as lasting."""

    enter: Threshold = Threshold(
        limit=0.8,
        unit="of scrapes",
        reason="a queue that appears and drains is normal traffic, not a bottleneck",
        source="design choice",
    )
    stay: Threshold = Threshold(
        limit=0.5,
        unit="of scrapes",
        reason="hysteresis: a class that is already named clears at a lower share",
        source="our choice",
    )

    def limit(self, *, holding: bool) -> float:
        """The share of scrapes to reach; lower while the class is already named, so that noise does not flip it."""
        return (self.stay if holding else self.enter).limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One service at one moment."""

    observation: Observation
    targets: Targets
    knobs: EngineKnobs
    """The flags in effect; None where a value is not known."""
    holding: frozenset[str] = frozenset()
    """Classes named by the previous diagnosis (primary or contributing): their `stay` limits apply."""
    learned: Mapping[int, StepTime] = field(default_factory=dict)
    """Tensor-parallel degree -> the step-time model last fitted while this service ran at it."""

    @property
    def engines(self) -> tuple[EngineWindow, ...]:
        """The engines that report."""
        return self.observation.engines

    @property
    def learned_here(self) -> StepTime | None:
        """The step-time model last fitted at the current degree; None without one, or if the degree is not known."""
        degree = self.knobs.tensor_parallel_size
        return None if degree is None else self.learned.get(degree)

    def queueing(self, *, holding: bool, sustained: Sustained = Sustained()) -> tuple[EngineWindow, ...]:
        """The engines in which requests waited for capacity in enough scrapes (`sustained`)."""
        limit = sustained.limit(holding=holding)
        return tuple(engine for engine in self.engines if waiting_share(engine) >= limit)

    def waiting_evidence(self, engine: EngineWindow, *, limit: float) -> Evidence:
        """How long requests have been waiting in `engine`."""
        return Evidence(
            name="scrapes with requests waiting",
            value=round(waiting_share(engine), 3),
            unit="share",
            threshold=limit,
            window=self.observation.window,
            note=f"up to {most_waiting(engine):.0f} waiting"
            + (f", {engine.rejected:.0f} rejected" if engine.rejected else ""),
        )

    def ttft_evidence(self) -> Evidence:
        """TTFT against its target."""
        return _against(self, "TTFT", ttft_reading(self), self.targets.ttft)

    def tpot_evidence(self) -> Evidence:
        """TPOT against its target."""
        return _against(self, "TPOT", tpot_reading(self), self.targets.tpot)


def _against(case: Case, name: str, reading: Reading, target: Target) -> Evidence:
    note = "default objective of the profile" if target.defaulted else ""
    value = None
    match reading:
        case Measured(measured):
            value = round(measured, 6)
        case NoData(why=why):
            note = why
    return Evidence(
        name=f"{name} {target.label}",
        value=value,
        unit="s",
        threshold=target.seconds,
        window=case.observation.window,
        note=note,
    )


def ttft_reading(case: Case) -> Reading:
    """TTFT at the target's quantile (seconds)."""
    return case.observation.ttft.quantile(case.targets.ttft.quantile)


def tpot_reading(case: Case) -> Reading:
    """TPOT at the target's quantile (seconds): per request where enough have finished, else between tokens."""
    return _tpot(case).quantile(case.targets.tpot.quantile)


def is_late(reading: Reading, target: Target) -> bool:
    """Whether a latency is known to miss its objective; what was not measured does not."""
    return isinstance(reading, Measured) and reading.value > target.seconds


def late_from(target: Target, *, holding: bool) -> float:
    """Seconds above which an objective counts as missed: the objective, or 10 % less for a class that is named.

    So that a class clears only when the latency is clearly inside, and does not flip.
    """
    return target.seconds * (1 - NOISE if holding else 1.0)


def tpot_surely(case: Case) -> Reading:
    """Return the lower confidence bound of TPOT (seconds): if it is over the objective, TPOT is late beyond chance."""
    return surely(_tpot(case), quantile=case.targets.tpot.quantile)


def surely(found: Distribution, *, quantile: float) -> Reading:
    """Return the lower confidence bound of a quantile, the median at least. Worked: p88 in place of p95 of 40."""
    return found.quantile(max(min(quantile, 0.5), quantile - by_chance(quantile, of=found.count)))


def by_chance(quantile: float, *, of: float) -> float:
    """Return by how much the share of late requests differs by chance from what a quantile allows; 0 if none are known.

    The share of n requests that meet a quantile q has the standard deviation sqrt(q * (1 - q) / n). Worked: at p95, 2
    of 40 requests may be late; 4 can be late by chance and 5 cannot.
    """
    return DEVIATIONS * sqrt(quantile * (1 - quantile) / of) if of > 0 else 0.0


def tpot_mean(case: Case) -> Reading:
    """The mean of what `tpot_reading` has a quantile of (seconds)."""
    return _tpot(case).mean


def tpot_tail(case: Case) -> float:
    """TPOT at the target's quantile over its own mean, at least 1: a step-time model predicts means only."""
    return tail_of(tpot_reading(case), tpot_mean(case))


def tail_of(at_quantile: Reading, mean: Reading) -> float:
    """A latency at a quantile over its mean, at least 1; 1 where either is not measured."""
    return max(1.0, over_mean(at_quantile, mean))


def over_mean(at_quantile: Reading, mean: Reading) -> float:
    """A latency at a quantile over its mean; 1 where either is not measured."""
    if isinstance(at_quantile, Measured) and isinstance(mean, Measured) and mean.value > 0:
        return at_quantile.value / mean.value
    return 1.0


def _tpot(case: Case) -> Distribution:
    observation = case.observation
    if observation.tpot.count >= FEWEST_FINISHED and observation.tpot.buckets:
        return observation.tpot
    return observation.itl.divided(observation.tokens_per_step)


def waiting_share(engine: EngineWindow) -> float:
    """The share of scrapes in which at least one request waits for capacity; 1 if the engine rejects requests."""
    rejected = engine.rejected or 0.0
    if rejected > TURNED_AWAY * (rejected + (engine.finished or 0.0)):
        return 1.0
    return sum(moment.waiting > 0 for moment in engine.moments) / len(engine.moments)


def mostly_waits(observation: Observation) -> bool:
    """Whether the mean request spends more than half of its TTFT in the queue; False where that is not known.

    A queue that lasts for seconds is in few scrapes, and in the time of each request.
    """
    waited, ttft = number(observation.queue_time.mean), number(observation.ttft.mean)
    return waited is not None and ttft is not None and 2 * waited > ttft


def most_waiting(engine: EngineWindow) -> float:
    """The most requests that waited at once in the window: the last scrape of a queue that comes and goes may be 0."""
    return max(moment.waiting for moment in engine.moments)


def undecided(case: Case, queueing: Sequence[EngineWindow]) -> str:
    """Say why the cause of a queue cannot be told; empty where it can.

    A queue has many causes, and each costs another remedy, the wrong one GPUs. What tells them apart must be there: KV
    usage (or too few slots look like a full cache), latencies (or a slow engine looks like a busy one), and tokens that
    are computed (or a hang looks like load).
    """
    missing = not_exported(case, queueing)
    if any(engine.stalled_for is None for engine in queueing):
        missing.append("token counters")
    if missing:
        return f"requests wait, but without {', '.join(missing)} (not exported, or 0 under load) the cause is unknown"
    if queueing and all(makes_no_token(engine, window=case.observation.window) for engine in queueing):
        stalled = min(engine.stalled_for or 0.0 for engine in queueing)
        return (
            f"requests wait and no token was computed for {stalled:.0f} s: the engine may hang, which is certain "
            f"after {HANGS_AFTER.limit:.0f} s; look for {HANGS_AFTER.limit + 40:.0f} s"
        )
    return ""


def not_exported(case: Case, engines: Sequence[EngineWindow]) -> list[str]:
    """Name what is missing of the latencies, and of the KV usage of these engines."""
    named = (
        ("KV cache usage", any(kv_max(engine) is None for engine in engines)),
        ("TTFT", is_not_exported(ttft_reading(case))),
        ("inter-token latency", is_not_exported(tpot_reading(case))),
    )
    return [name for name, missing in named if missing]


def is_not_exported(reading: Reading) -> bool:
    """Whether the engine has no such metric; one that measured nothing has it."""
    return isinstance(reading, NoData) and reading.absence is Absence.NOT_EXPORTED


def makes_no_token(engine: EngineWindow, *, window: float) -> bool:
    """Whether an engine is known to have counted no token for a window (seconds): what waits in it is no load."""
    return engine.stalled_for is not None and engine.stalled_for >= window


def mean_running(engine: EngineWindow) -> float:
    """Sequences running at once, on average over the window."""
    return sum(moment.running for moment in engine.moments) / len(engine.moments)


def mean_batch(case: Case) -> float:
    """Sequences running at once in one engine, on average over engines and window; 0 without engines."""
    means = [mean_running(engine) for engine in case.engines]
    return sum(means) / len(means) if means else 0.0


BUSY: Final = 0.9
"""Quantile of a window's samples used as its upper end. Our choice: the maximum alone may be an outlier."""


def busy_batch(engine: EngineWindow) -> float:
    """The batch size in the busiest tenth of the window, which causes the TPOT tail.

    While the load ramps up, the mean of the window lags behind the current batch size.
    """
    running = sorted(moment.running for moment in engine.moments)
    return running[min(len(running) - 1, round(BUSY * len(running)))]


def step_time(observation: Observation) -> StepTimeFit:
    """Fit the step time to past windows, and shift it through the current window where that contradicts them.

    While prompts grow longer, past windows describe shorter prompts: for minutes the fit would accept any batch size.
    """
    model, itl, batch = fit_step_time(observation.steps), observation.itl.mean, batch_of_tokens(observation)
    if not isinstance(model, StepTime) or not isinstance(itl, Measured) or batch is None:
        return model
    return model.through(batch, itl.value)


def batch_of_tokens(observation: Observation) -> float | None:
    """The current batch size weighted by tokens, to match the mean inter-token latency. None where nothing runs."""
    running = [moment.running for engine in observation.engines for moment in engine.moments]
    return sum(level**2 for level in running) / sum(running) if sum(running) else None


def queues(observation: Observation, *, sustained: Sustained = Sustained()) -> bool:
    """Whether requests have been waiting in some engine for most of the window."""
    return any(waiting_share(engine) >= sustained.stay.limit for engine in observation.engines)


def seems_to_become_fewer(observation: Observation) -> bool:
    """Whether fewer requests run and wait in the later half of the window than in the earlier one, beyond noise.

    Enough to postpone a trial; evaluated again in each tick. `scaling.backlog` is stricter, because there requests
    keep waiting: the queue must end in time, or the decrease must be significant.
    """
    halves = [_halves(engine) for engine in observation.engines]
    earlier, later = (sum(half[index] for half in halves) for index in (0, 1))
    return later < earlier * (1 - NOISE)


def reaches_behind(case: Case, moment: float) -> bool:
    """Whether latencies at the targets' quantile still tell of the time before a moment (Unix seconds): a scale-out.

    A request reports them when it ends. If more than 5 % of those that ended in the window had begun before the moment,
    they lasted for longer than from there to its begin, and so did p95 of all. The mean request does not tell: those
    that an overload slowed down end last.
    """
    seen, quantile = case.observation, max(case.targets.ttft.quantile, case.targets.tpot.quantile)
    lasted = number(seen.e2e.quantile(quantile)) or number(seen.e2e.mean) or 0.0
    return seen.at - seen.window - lasted < moment


def _halves(engine: EngineWindow) -> tuple[float, float]:
    held = [moment.running + moment.waiting for moment in engine.moments]
    middle = len(held) // 2
    earlier, later = held[: middle or 1], held[middle:]
    return sum(earlier) / len(earlier), sum(later) / len(later)


NEARLY_ALL: Final = 0.9
"""Share of max-num-seqs that counts as all slots in use. A finished sequence leaves the gauge at the end of a step,
before the next one is admitted; with sequences of 10 tokens that is a tenth in every step. Our choice; 48 slots at 16
requests/s showed 47.3."""


def slots_used_share(engine: EngineWindow, *, slots: float, exactly: bool = False) -> float:
    """The share of scrapes in which nearly all slots (max-num-seqs) are in use, or `exactly` all."""
    used = slots if exactly else NEARLY_ALL * slots
    return sum(moment.running >= used for moment in engine.moments) / len(engine.moments)


def kv_max(engine: EngineWindow) -> float | None:
    """The highest KV usage (0..1) in the window; None when not exported, or 0 although sequences run."""
    return max(_kv(engine), default=None)


def kv_mean(engine: EngineWindow) -> float | None:
    """The mean KV usage (0..1) in the window; None when not exported, or 0 although sequences run."""
    known = _kv(engine)
    return sum(known) / len(known) if known else None


def _kv(engine: EngineWindow) -> list[float]:
    known = [moment.kv for moment in engine.moments if moment.kv is not None]
    # A sequence holds a block at least: a gauge that stays at 0 meanwhile is not set by anything.
    unset = not any(known) and sum(moment.running > 0 for moment in engine.moments) > 1
    return [] if unset else known
