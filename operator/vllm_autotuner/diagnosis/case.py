"""What every rule is given, and the few readings that several rules need, computed once and in one way."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.engine_window import EngineWindow
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.reading import Measured, NoData, Reading, number
from vllm_autotuner.performance.step_time import StepTime, StepTimeFit, fit_step_time

__all__ = [
    "BUSY",
    "NEARLY_ALL",
    "Case",
    "Sustained",
    "batch_of_tokens",
    "busy_batch",
    "is_late",
    "kv_max",
    "kv_mean",
    "mean_batch",
    "mean_running",
    "queues",
    "reaches_behind",
    "seats_taken_share",
    "seems_to_become_fewer",
    "step_time",
    "tail_of",
    "tpot_mean",
    "tpot_reading",
    "tpot_surely",
    "tpot_tail",
    "ttft_reading",
    "waiting_share",
]

FEWEST_FINISHED: Final = 10
"""Finished requests from which the per-request TPOT is preferred to the inter-token latency: it is what users feel,
but it lags, and with few finishes one request decides. Our choice, unmeasured."""


TURNED_AWAY: Final = 0.01
"""Share of requests that a limit of the queue turned away from which the queue counts as full in every scrape: it may
be emptied faster than it is scraped, and its gauge stands at the limit at most. Our choice: as for preemptions, F4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """When a condition on single scrapes counts as lasting."""

    enter: Threshold = Threshold(
        limit=0.8, unit="of scrapes", reason="a queue that comes and goes is traffic, not a limit", source="design"
    )
    stay: Threshold = Threshold(
        limit=0.5, unit="of scrapes", reason="leaving needs the opposite for longer than entering", source="our choice"
    )

    def limit(self, *, holding: bool) -> float:
        """The share to reach; lower while the class is already held, so that noise never flips it."""
        return (self.stay if holding else self.enter).limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One service at one moment."""

    observation: Observation
    targets: Targets
    knobs: EngineKnobs
    """The flags in effect; None where nobody told us."""
    holding: frozenset[str] = frozenset()
    """Classes that the previous diagnosis named (primary or contributing): these have the lower limit to stay."""
    learned: Mapping[int, StepTime] = field(default_factory=dict)
    """Tensor-parallel degree -> the step-time model last fitted while this service ran at it."""

    @property
    def engines(self) -> tuple[EngineWindow, ...]:
        """The engines that report."""
        return self.observation.engines

    @property
    def learned_here(self) -> StepTime | None:
        """The step-time model last fitted at the present degree; None where there was none, or nobody tells which."""
        degree = self.knobs.tensor_parallel_size
        return None if degree is None else self.learned.get(degree)

    def queueing(self, *, holding: bool, sustained: Sustained = Sustained()) -> tuple[EngineWindow, ...]:
        """The engines in which requests have been waiting for capacity, lastingly."""
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
            note=f"up to {max(moment.waiting for moment in engine.moments):.0f} waiting"
            + (f", {engine.rejected:.0f} turned away" if engine.rejected else ""),
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


CHANCE: Final = 2.0
"""Standard deviations within which a share of requests is what chance makes of another: 19 of 20. The usual choice."""


def tpot_surely(case: Case) -> Reading:
    """TPOT (seconds) at the quantile that is its target's at least, but for chance: late here is late for sure.

    Of n requests the share that is in time deviates by the root of q * (1 - q) / n. Worked: with p95 meant, of 40
    requests 2 may be late; 5 are so by chance some time, 6 are not: p88 tells.
    """
    quantile = case.targets.tpot.quantile
    return _tpot(case).quantile(max(min(quantile, 0.5), quantile - CHANCE * _deviation(case)))


def tpot_at_most(case: Case) -> Reading:
    """TPOT (seconds) at the quantile that is its target's at most, but for chance: in time here is in time for sure.

    Worked: as in `tpot_surely`, of 40 requests none may be late; of 400 as many as 11, p97.2.
    """
    return _tpot(case).quantile(min(1.0, case.targets.tpot.quantile + CHANCE * _deviation(case)))


def _deviation(case: Case) -> float:
    """Of the share of requests that is in time, where as many are as should be."""
    count, quantile = _tpot(case).count, case.targets.tpot.quantile
    return sqrt(quantile * (1 - quantile) / count) if count > 0 else 0.0


def tpot_mean(case: Case) -> Reading:
    """The mean of what `tpot_reading` has a quantile of (seconds)."""
    return _tpot(case).mean


def tpot_tail(case: Case) -> float:
    """TPOT at the target's quantile over its own mean, at least 1: a step-time model knows means only."""
    return tail_of(tpot_reading(case), tpot_mean(case))


def tail_of(at_quantile: Reading, mean: Reading) -> float:
    """A latency at a quantile over its mean, at least 1; 1 where either is not measured."""
    if isinstance(at_quantile, Measured) and isinstance(mean, Measured) and mean.value > 0:
        return max(1.0, at_quantile.value / mean.value)
    return 1.0


def _tpot(case: Case) -> Distribution:
    observation = case.observation
    if observation.tpot.count >= FEWEST_FINISHED and observation.tpot.buckets:
        return observation.tpot
    return observation.itl


def waiting_share(engine: EngineWindow) -> float:
    """The share of scrapes in which at least one request waits for capacity, or all where some are turned away."""
    rejected = engine.rejected or 0.0
    if rejected > TURNED_AWAY * (rejected + (engine.finished or 0.0)):
        return 1.0
    return sum(moment.waiting > 0 for moment in engine.moments) / len(engine.moments)


def mean_running(engine: EngineWindow) -> float:
    """Sequences running at once, on average over the window."""
    return sum(moment.running for moment in engine.moments) / len(engine.moments)


def mean_batch(case: Case) -> float:
    """Sequences running at once in one engine, on average over engines and window; 0 without engines."""
    means = [mean_running(engine) for engine in case.engines]
    return sum(means) / len(means) if means else 0.0


BUSY: Final = 0.9
"""Quantile of a window's samples that stands for its upper end. Our choice: the largest alone may be chance."""


def busy_batch(engine: EngineWindow) -> float:
    """The batch in the busiest tenth of the window, which is what a TPOT tail is made of.

    While the load ramps up, the mean is the batch of a time that is over: half of it was far below the knee.
    """
    running = sorted(moment.running for moment in engine.moments)
    return running[min(len(running) - 1, round(BUSY * len(running)))]


def step_time(observation: Observation) -> StepTimeFit:
    """The step time by the windows there were, or by the one there is, where that contradicts them.

    While prompts grow longer the windows are of shorter ones: by them every batch is small enough, for minutes, however
    slowly tokens come.
    """
    model, itl, batch = fit_step_time(observation.steps), observation.itl.mean, batch_of_tokens(observation)
    if not isinstance(model, StepTime) or not isinstance(itl, Measured) or batch is None:
        return model
    return model.through(batch, itl.value)


def batch_of_tokens(observation: Observation) -> float | None:
    """The batch of now that the mean latency of tokens is of: a burst has most of both. None where nothing runs."""
    running = [moment.running for engine in observation.engines for moment in engine.moments]
    return sum(level**2 for level in running) / sum(running) if sum(running) else None


def queues(observation: Observation, *, sustained: Sustained = Sustained()) -> bool:
    """Whether requests have been waiting in some engine for most of the window."""
    return any(waiting_share(engine) >= sustained.stay.limit for engine in observation.engines)


def seems_to_become_fewer(observation: Observation) -> bool:
    """Whether less runs and waits in the later half of the window than in the earlier one, by more than noise.

    Enough to put off a trial that nobody waits for; asked anew in each tick. Where requests are let wait instead,
    `scaling.backlog` asks for more: that the queue ends in time, or that so many fewer are no chance.
    """
    halves = [_halves(engine) for engine in observation.engines]
    earlier, later = (sum(half[index] for half in halves) for index in (0, 1))
    return later < earlier * (1 - NOISE)


def reaches_behind(observation: Observation, moment: float) -> bool:
    """Whether what the window says reaches back behind a moment (Unix seconds), such as when the newest replica came.

    A request tells its times when it ends: of those that end in a window the first began a request earlier. As long
    fill the requests of before the engine that they began on, whatever has come beside it.
    """
    return observation.at - observation.window - (number(observation.e2e.mean) or 0.0) < moment


def _halves(engine: EngineWindow) -> tuple[float, float]:
    held = [moment.running + moment.waiting for moment in engine.moments]
    middle = len(held) // 2
    earlier, later = held[: middle or 1], held[middle:]
    return sum(earlier) / len(earlier), sum(later) / len(later)


NEARLY_ALL: Final = 0.9
"""Share of the seats that counts as all: who finishes leaves the gauge at the end of a step, before the next in line is
seated. Of sequences of 10 tokens that is a tenth in every step. Our choice; 48 seats at 16 requests/s showed 47.3."""


def seats_taken_share(engine: EngineWindow, *, seats: float, exactly: bool = False) -> float:
    """The share of scrapes in which nearly all seats are taken, or `exactly` all."""
    taken = seats if exactly else NEARLY_ALL * seats
    return sum(moment.running >= taken for moment in engine.moments) / len(engine.moments)


def kv_max(engine: EngineWindow) -> float | None:
    """The highest KV usage (0..1) in the window; None when not exported."""
    return max((moment.kv for moment in engine.moments if moment.kv is not None), default=None)


def kv_mean(engine: EngineWindow) -> float | None:
    """The mean KV usage (0..1) in the window; None when not exported."""
    known = [moment.kv for moment in engine.moments if moment.kv is not None]
    return sum(known) / len(known) if known else None
