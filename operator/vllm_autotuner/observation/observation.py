"""The observation of one service at one moment: the input of every decision.

Values only; windows in seconds, times in Unix seconds, latencies in seconds, lengths in tokens, KV usage 0..1.
Must not: judge. `engine_window` has already left out stale samples.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_autotuner.engine.geometry import Experts
from vllm_autotuner.engine.metric_names import Meaning
from vllm_autotuner.observation.distribution import Distribution, merged
from vllm_autotuner.observation.engine_window import (
    EngineWindow,
    KVPool,
    Moment,
    StepPoint,
    distribution_of,
    engine_window,
)
from vllm_autotuner.observation.noise import DEVIATIONS
from vllm_autotuner.observation.one_grid import on_one_grid
from vllm_autotuner.observation.pod_starts import PodsView
from vllm_autotuner.observation.reading import NoData, number
from vllm_autotuner.observation.snapshot import EngineKey, EngineSeries, FleetSnapshot, StepPart

__all__ = [
    "EngineWindow",
    "FirstTokens",
    "KVPool",
    "Moment",
    "Observation",
    "StepPoint",
    "observe",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """How long first tokens took in one state window of one engine; seconds, Unix seconds."""

    mean: float
    requests: float
    """That got their first token: its weight."""
    time: float
    """End of the window."""
    window: float | None = None
    """Seconds of the window; None: that of the observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One service. `engines` holds the fresh ones only; `silent` names the others."""

    at: float
    window: float
    engines: tuple[EngineWindow, ...]
    silent: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Of the silent ones, why: those that report what no vLLM does."""
    expected: int | None = None
    """Ready pods that are expected to report; None outside Kubernetes, where the number is not known."""
    problem: NoData | None = None
    """Set when the source gave no usable answer: nothing may be concluded."""
    ttft: Distribution = field(default_factory=Distribution)
    itl: Distribution = field(default_factory=Distribution)
    tpot: Distribution = field(default_factory=Distribution)
    e2e: Distribution = field(default_factory=Distribution)
    queue_time: Distribution = field(default_factory=Distribution)
    prefill_time: Distribution = field(default_factory=Distribution)
    decode_time: Distribution = field(default_factory=Distribution)
    step_tokens: Distribution = field(default_factory=Distribution)
    """Tokens computed in one engine step, prompts and outputs together."""
    prompt_length: Distribution = field(default_factory=Distribution)
    """Over the long window: quantiles only."""
    output_length: Distribution = field(default_factory=Distribution)
    """Over the long window: quantiles only."""
    recent_prompt_length: Distribution = field(default_factory=Distribution)
    """Over the state window: mean and count only."""
    recent_output_length: Distribution = field(default_factory=Distribution)
    """Over the state window: mean and count only."""
    steps: tuple[StepPoint, ...] = ()
    quiet: tuple[tuple[float, float | None], ...] = ()
    """Windows in which an engine was seen to make no token: when each ended (Unix seconds), and its seconds as
    `StepPoint.window` has them."""
    first_tokens: tuple[FirstTokens, ...] = ()
    """Over the long window, for each engine and state window in it."""
    pods: PodsView | None = None
    """None where no Kubernetes tells."""

    def of_mixture(self, experts: Experts | None) -> "Observation":
        """Return the same, of a model with these experts: metrics do not tell. None: dense, or not known."""
        if experts is None:
            return self
        return replace(self, steps=tuple(replace(point, experts=experts) for point in self.steps))

    def tokens_by_window(self, *, over: float, quiet: bool = False) -> dict[float, float]:
        """Output tokens of all engines in each window that ended within so many seconds, by its end (Unix seconds).

        `quiet`: with 0 for the windows in which none were made. A window of which nothing is known is in neither.
        """
        each, begin = self.tokens_per_step, self.at - over
        made = [
            (one.time, one.tokens * each, one.window) for one in self.steps if one.time is not None and one.time > begin
        ]
        if quiet:
            made += [(end, 0.0, window) for end, window in self.quiet if end > begin]
        # No interval ends with the first token of a request, and of two tokens it is half. Where no step is known of a
        # window, its other tokens are not either.
        known = {end for end, *_ in made}
        made += [(one.time, one.requests, one.window) for one in self.first_tokens if one.time in known]
        return on_one_grid(made, window=self.window)

    def prompts_by_window(self, *, over: float) -> dict[float, float]:
        """Prompt tokens that all engines computed in each window that ended within so many seconds, by its end."""
        begin = self.at - over
        computed = [
            (one.time, one.prompts * one.tokens, one.window)
            for one in self.steps
            if one.time is not None and one.time > begin and one.prompts is not None
        ]
        return on_one_grid(computed, window=self.window)

    def arrivals_by_window(self) -> dict[float, float]:
        """Requests that came in each window of the long one, by its end (Unix seconds): their first tokens.

        But for windows in which a first token took longer than half of it in the mean. There these tell when slots
        became free, and not when requests came: a queue evens bursts out, and preemptions make some.
        """
        windows = [(one, one.window or self.window) for one in self.first_tokens]
        late = {(one.time - window, one.time) for one, window in windows if 2 * one.mean > window}
        counted = on_one_grid([(one.time, one.requests, one.window) for one in self.first_tokens], window=self.window)
        return {
            end: count
            for end, count in counted.items()
            if not any(began < end and end - self.window < ended for began, ended in late)
        }

    @property
    def reporting(self) -> frozenset[str]:
        """The pods with an engine that reports: with data parallelism one has several."""
        return frozenset(engine.key.pod for engine in self.engines)

    @property
    def everybody_reports(self) -> bool:
        """Whether no pod that ought to report is missing: a silent one may be the one with all the load."""
        return not self.silent and (self.expected is None or len(self.reporting) >= self.expected)

    @property
    def tokens_per_step(self) -> float:
        """Output tokens by which a step of the engine lengthens a sequence: above 1 with speculative decoding.

        vLLM counts one inter-token latency for each output of a step, however many tokens are in it. Worked: 300 tokens
        of which a draft had 200 right took 100 steps: 3.
        """
        made = sum(engine.generation_tokens or 0.0 for engine in self.engines)
        steps = made - sum(engine.accepted_tokens or 0.0 for engine in self.engines)
        return made / steps if steps > 0 else 1.0

    @property
    def cores_per_pod(self) -> int:
        """Engine cores of a replica (data parallelism), each with slots and a cache of its own; 1 without any."""
        return max(Counter(engine.key.pod for engine in self.engines).values(), default=1)

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of looked-up prompt tokens found in the prefix cache (0..1). None if not exported or unused."""
        pairs = [(engine.prefix_hits, engine.prefix_queries) for engine in self.engines]
        known = [(hits, queries) for hits, queries in pairs if hits is not None and queries is not None]
        asked = sum(queries for _, queries in known)
        return sum(hits for hits, _ in known) / asked if asked > 0 else None

    @property
    def arrivals_per_second(self) -> float | None:
        """Requests that came in: finished and rejected, plus what running and waiting grew. None when not exported."""
        arrived = []
        for engine in self.engines:
            first, last = engine.moments[0], engine.moments[-1]
            grown = (last.running + last.waiting) - (first.running + first.waiting)
            arrived.append(None if engine.finished is None else engine.finished + (engine.rejected or 0.0) + grown)
        rate = self._rate(arrived)
        return None if rate is None else max(0.0, rate)

    @property
    def finished_per_second(self) -> float | None:
        """Requests that went out. None when not exported."""
        return self._rate([engine.finished for engine in self.engines])

    @property
    def pressure(self) -> float:
        """Ratio of arriving to finishing requests, if clearly more arrive; 1 otherwise, or if it is not known.

        Worked: 540 came and 310 went in a window: 1.7. 540 and 490 may as well be equal: 2 * sqrt(1030) is 64.
        """
        arrived, served = self.arrivals_per_second, self.finished_per_second
        if not arrived or not served:
            return 1.0
        came, went = arrived * self.window, served * self.window
        return came / went if came - went > DEVIATIONS * math.sqrt(came + went) else 1.0

    @property
    def rejected_per_second(self) -> float | None:
        """Requests that a limit of the queue turned away. None where an engine does not tell."""
        of_pods: dict[str, list[float]] = {}
        for engine in self.engines:
            counted = of_pods.setdefault(engine.key.pod, [])
            # A server counts for all engine cores behind it, and stands with the first of them.
            if engine.rejected is not None and engine.sampled > 0:
                counted.append(engine.rejected / engine.sampled)
        return sum(map(sum, of_pods.values())) if of_pods and all(of_pods.values()) else None

    @property
    def generated_per_second(self) -> float | None:
        """Output tokens per second over all engines."""
        return self._rate([engine.generation_tokens for engine in self.engines])

    @property
    def prompted_per_second(self) -> float | None:
        """Prompt tokens per second over all engines."""
        return self._rate([engine.prompt_tokens for engine in self.engines])

    def _rate(self, grown: Sequence[float | None]) -> float | None:
        """Sum the growth per second of each engine; None when one of them does not tell or was scraped once."""
        rates = [
            amount / engine.sampled
            for engine, amount in zip(self.engines, grown, strict=True)
            if amount is not None and engine.sampled > 0
        ]
        return sum(rates) if rates and len(rates) == len(self.engines) else None


def observe(
    snapshot: FleetSnapshot, keys: Iterable[EngineKey], *, expected: int | None = None, pods: PodsView | None = None
) -> Observation:
    """Gather the engines `keys` of one service out of a fleet snapshot. Pure; missing engines are named, not zero."""
    if snapshot.error is not None:
        return Observation(
            at=snapshot.at,
            window=snapshot.state_window,
            engines=(),
            expected=expected,
            problem=snapshot.error,
            pods=pods,
        )
    fresh: list[EngineWindow] = []
    series: list[EngineSeries] = []
    silent: list[str] = []
    unreadable: dict[str, str] = {}
    for key in sorted(keys):
        found = snapshot.engines.get(key)
        window = engine_window(key, found, snapshot=snapshot) if found is not None else None
        if found is None or window is None:
            silent.append(name := key.pod or f"engine {key.engine}")
            if found is not None and found.unreadable:
                unreadable[name] = found.unreadable
        else:
            fresh.append(window)
            series.append(found)
    lengths, itl = _lengths(series, Meaning.OUTPUT_LENGTH), distribution_of(series, Meaning.ITL, snapshot=snapshot)
    return Observation(
        at=snapshot.at,
        window=max((one.window or snapshot.state_window for one in series), default=snapshot.state_window),
        engines=tuple(fresh),
        silent=tuple(silent),
        unreadable=unreadable,
        expected=expected,
        ttft=distribution_of(series, Meaning.TTFT, snapshot=snapshot),
        itl=itl,
        tpot=_of_several_tokens(distribution_of(series, Meaning.TPOT, snapshot=snapshot), itl=itl, lengths=lengths),
        e2e=distribution_of(series, Meaning.E2E, snapshot=snapshot),
        queue_time=distribution_of(series, Meaning.QUEUE_TIME, snapshot=snapshot),
        prefill_time=distribution_of(series, Meaning.PREFILL_TIME, snapshot=snapshot),
        decode_time=distribution_of(series, Meaning.DECODE_TIME, snapshot=snapshot),
        step_tokens=distribution_of(series, Meaning.STEP_TOKENS, snapshot=snapshot),
        prompt_length=_lengths(series, Meaning.PROMPT_LENGTH),
        output_length=lengths,
        recent_prompt_length=distribution_of(series, Meaning.PROMPT_LENGTH, snapshot=snapshot),
        recent_output_length=distribution_of(series, Meaning.OUTPUT_LENGTH, snapshot=snapshot),
        steps=tuple(point for one in series for point in _step_points(one)),
        quiet=tuple((time, one.window) for one in series for time in _quiet_windows(one)),
        first_tokens=tuple(each for one in series for each in _first_tokens(one)),
        pods=pods,
    )


def _lengths(series: Sequence[EngineSeries], meaning: Meaning) -> Distribution:
    return merged(
        [
            Distribution(
                buckets=one.long_buckets.get(meaning, {}),
                count=max(one.long_buckets.get(meaning, {0.0: 0.0}).values()),
                missing=f"{meaning} is not exported",
            )
            for one in series
        ]
    )


def _of_several_tokens(tpot: Distribution, *, itl: Distribution, lengths: Distribution) -> Distribution:
    """Without the requests of one token, whose time per output token vLLM counts as 0.

    How many there are is known of the long window only: no more of now than the mean lacks to that of the intervals.
    With a draft an interval has several tokens: then the mean always lacks something, and the share alone decides.
    """
    everything = max(lengths.buckets.values(), default=0.0)
    share = lengths.buckets.get(1.0, 0.0) / everything if everything > 0 else 0.0
    mean, interval = number(tpot.mean), number(itl.mean)
    if mean is not None and interval:
        share = min(share, max(0.0, 1 - mean / interval))
    return tpot.without_zeros(share)


def _step_points(series: EngineSeries) -> Iterable[StepPoint]:
    parts = (StepPart.RUNNING, StepPart.ITL_SECONDS, StepPart.ITL_COUNT)
    running, sums, counts = (series.steps.get(part, {}) for part in parts)
    prompts = series.steps.get(StepPart.PROMPT_TOKENS, {})
    for time, mean_running in running.items():
        total, count, prompted = sums.get(time), counts.get(time), prompts.get(time)
        if total and count and count > 0 and mean_running > 0:
            share = None if prompted is None else prompted / count
            yield StepPoint(
                running=mean_running,
                itl=total / count,
                tokens=count,
                time=time,
                prompts=share,
                window=series.window,
            )


def _quiet_windows(series: EngineSeries) -> Iterable[float]:
    """Where one of the two is not known, nothing is."""
    counts = series.steps.get(StepPart.ITL_COUNT, {})
    return (time for time in series.steps.get(StepPart.RUNNING, {}) if counts.get(time) == 0)


def _first_tokens(series: EngineSeries) -> Iterable[FirstTokens]:
    sums, counts = (series.steps.get(part, {}) for part in (StepPart.TTFT_SECONDS, StepPart.TTFT_COUNT))
    for time, count in counts.items():
        total = sums.get(time)
        if total is not None and count > 0:
            yield FirstTokens(mean=total / count, requests=count, time=time, window=series.window)
