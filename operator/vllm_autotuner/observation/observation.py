"""What is known about one service at one moment: the input of every decision.

Values only; windows in seconds, times in Unix seconds, latencies in seconds, lengths in tokens, KV usage 0..1.
Must not: judge. "Fresh" is the one judgement made here, because nothing to the right may ever see a stale sample.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vllm_autotuner.engine.metric_names import Meaning
from vllm_autotuner.observation.distribution import Distribution, merged
from vllm_autotuner.observation.reading import NoData, Reading
from vllm_autotuner.observation.series import Series, plain_increase, since
from vllm_autotuner.observation.snapshot import EngineKey, EngineSeries, FleetSnapshot, StepPart

__all__ = ["STALE_AFTER_INTERVALS", "EngineWindow", "KVPool", "Moment", "Observation", "StepPoint", "observe"]

STALE_AFTER_INTERVALS: Final = 3
"""Scrape intervals without a sample after which an engine is silent. Design: diagnosis.md, inputs."""
UNKNOWN_INTERVAL: Final = 60.0
"""Assumed scrape interval (s) where an engine has a single sample: the slowest that Prometheus is commonly set to."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One scrape of one engine. None: not in that scrape."""

    time: float
    running: float
    waiting: float
    """Requests that wait for capacity: by reason where the engine tells, else all that wait."""
    deferred: float | None
    kv: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPool:
    """The pool as the running engine reports it. None: not exported by this version."""

    tokens: int | None = None
    blocks: int | None = None
    block_size: int | None = None
    cache_dtype: str | None = None
    max_model_len: int | None = None
    """kv_cache_size_tokens / kv_cache_max_concurrency (vLLM 0.32 exports no max-model-len)."""


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One state window of one engine: mean running sequences and mean inter-token latency (seconds)."""

    running: float
    itl: float
    tokens: float
    """Inter-token intervals behind the mean: its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWindow:
    """One engine over the state window."""

    key: EngineKey
    moments: tuple[Moment, ...]
    preemptions: float | None
    finished: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    stalled_for: float | None
    """Seconds since a prompt or output token was last counted; at least that long when none was in the fetched
    samples. None when the token counters are not exported."""
    itl: Reading
    """Mean inter-token latency of this engine (seconds)."""
    pool: KVPool
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def sampled(self) -> float:
        """Seconds between the first and the last scrape: over these the counters grew, not over the whole window."""
        return self.moments[-1].time - self.moments[0].time


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One service. `engines` holds the fresh ones only; `silent` names the others."""

    at: float
    window: float
    engines: tuple[EngineWindow, ...]
    silent: tuple[str, ...] = ()
    expected: int | None = None
    """Ready pods that ought to report, where Kubernetes tells; None where nobody knows."""
    problem: NoData | None = None
    """Set when the source gave no usable answer: nothing may be concluded."""
    ttft: Distribution = field(default_factory=Distribution)
    itl: Distribution = field(default_factory=Distribution)
    tpot: Distribution = field(default_factory=Distribution)
    e2e: Distribution = field(default_factory=Distribution)
    queue_time: Distribution = field(default_factory=Distribution)
    prefill_time: Distribution = field(default_factory=Distribution)
    prompt_length: Distribution = field(default_factory=Distribution)
    output_length: Distribution = field(default_factory=Distribution)
    steps: tuple[StepPoint, ...] = ()

    @property
    def arrivals_per_second(self) -> float | None:
        """Requests that came in: finished, plus what running and waiting grew. None when not exported."""
        arrived = []
        for engine in self.engines:
            first, last = engine.moments[0], engine.moments[-1]
            grown = (last.running + last.waiting) - (first.running + first.waiting)
            arrived.append(None if engine.finished is None else engine.finished + grown)
        rate = self._rate(arrived)
        return None if rate is None else max(0.0, rate)

    @property
    def finished_per_second(self) -> float | None:
        """Requests that went out. None when not exported."""
        return self._rate([engine.finished for engine in self.engines])

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


def observe(snapshot: FleetSnapshot, keys: Iterable[EngineKey], *, expected: int | None = None) -> Observation:
    """Gather the engines `keys` of one service out of a fleet snapshot. Pure; missing engines are named, not zero."""
    if snapshot.error is not None:
        return Observation(
            at=snapshot.at, window=snapshot.state_window, engines=(), expected=expected, problem=snapshot.error
        )
    fresh: list[EngineWindow] = []
    series: list[EngineSeries] = []
    silent: list[str] = []
    for key in sorted(keys):
        found = snapshot.engines.get(key)
        window = _engine_window(key, found, snapshot=snapshot) if found is not None else None
        if found is None or window is None:
            silent.append(key.pod or f"engine {key.engine}")
        else:
            fresh.append(window)
            series.append(found)
    return Observation(
        at=snapshot.at,
        window=snapshot.state_window,
        engines=tuple(fresh),
        silent=tuple(silent),
        expected=expected,
        ttft=_distribution(series, Meaning.TTFT, snapshot=snapshot),
        itl=_distribution(series, Meaning.ITL, snapshot=snapshot),
        tpot=_distribution(series, Meaning.TPOT, snapshot=snapshot),
        e2e=_distribution(series, Meaning.E2E, snapshot=snapshot),
        queue_time=_distribution(series, Meaning.QUEUE_TIME, snapshot=snapshot),
        prefill_time=_distribution(series, Meaning.PREFILL_TIME, snapshot=snapshot),
        prompt_length=_lengths(series, Meaning.PROMPT_LENGTH),
        output_length=_lengths(series, Meaning.OUTPUT_LENGTH),
        steps=tuple(point for one in series for point in _step_points(one)),
    )


def _engine_window(key: EngineKey, series: EngineSeries, *, snapshot: FleetSnapshot) -> EngineWindow | None:
    running, waiting = series.gauges.get(Meaning.RUNNING), series.gauges.get(Meaning.WAITING)
    if running is None or waiting is None or not running.times:
        return None
    # Its own pace where it shows one: in a fleet of mixed intervals the slowest would let a dead engine look alive.
    interval = running.pace or snapshot.scrape_interval or UNKNOWN_INTERVAL
    if snapshot.at - running.times[-1] > STALE_AFTER_INTERVALS * interval:
        return None
    start = snapshot.at - snapshot.state_window
    moments = tuple(moment for moment in _moments(series) if moment.time > start)
    if not moments:
        return None

    def grown(meaning: Meaning) -> float | None:
        parts = [
            plain_increase(since(one, start=start, end=snapshot.at).values)
            for one in series.counters.get(meaning, {}).values()
        ]
        known = [part for part in parts if part is not None]
        return sum(known) if known else None

    return EngineWindow(
        key=key,
        moments=moments,
        preemptions=grown(Meaning.PREEMPTIONS),
        finished=grown(Meaning.FINISHED),
        prompt_tokens=grown(Meaning.PROMPT_TOKENS),
        generation_tokens=grown(Meaning.GENERATION_TOKENS),
        stalled_for=_stalled_for(series, at=snapshot.at),
        itl=_distribution([series], Meaning.ITL, snapshot=snapshot).mean,
        pool=_pool(series.cache_info.labels if series.cache_info is not None else None),
        labels=series.labels,
    )


def _stalled_for(series: EngineSeries, *, at: float) -> float | None:
    counters = [
        one
        for meaning in (Meaning.PROMPT_TOKENS, Meaning.GENERATION_TOKENS)
        for one in series.counters.get(meaning, {}).values()
        if one.times
    ]
    if not counters:
        return None
    moved = [
        max((time for time, before, after in _steps_of(one) if after != before), default=one.times[0])
        for one in counters
    ]
    return at - max(moved)


def _steps_of(series: Series) -> Iterable[tuple[float, float, float]]:
    return zip(series.times[1:], series.values, series.values[1:], strict=False)


def _moments(series: EngineSeries) -> Iterable[Moment]:
    """Join the gauges of one scrape: they carry the same timestamp."""
    kv = _by_time(series.gauges.get(Meaning.KV_USAGE))
    waiting = _by_time(series.gauges.get(Meaning.WAITING))
    capacity = _by_time(series.waiting_by_reason.get("capacity"))
    deferred = _by_time(series.waiting_by_reason.get("deferred"))
    running = series.gauges[Meaning.RUNNING]
    for time, value in zip(running.times, running.values, strict=True):
        queued = capacity.get(time, waiting.get(time))
        # NaN is what a broken exporter writes; a scrape without its queue is no scrape.
        if queued is None or value != value or queued != queued:
            continue
        yield Moment(time=time, running=value, waiting=queued, deferred=deferred.get(time), kv=_finite(kv.get(time)))


def _finite(value: float | None) -> float | None:
    return value if value is not None and value == value else None


def _by_time(series: Series | None) -> Mapping[float, float]:
    return {} if series is None else dict(zip(series.times, series.values, strict=True))


def _distribution(series: Sequence[EngineSeries], meaning: Meaning, *, snapshot: FleetSnapshot) -> Distribution:
    start, parts = snapshot.at - snapshot.state_window, []
    for one in series:
        total, count = one.sums.get(meaning), one.counts.get(meaning)
        summed = plain_increase(since(total, start=start, end=snapshot.at).values) if total is not None else None
        counted = plain_increase(since(count, start=start, end=snapshot.at).values) if count is not None else None
        parts.append(
            Distribution(
                buckets=one.buckets.get(meaning, {}),
                total=summed if counted is not None else None,
                count=counted or 0.0,
                missing=f"{meaning} is not exported",
            )
        )
    return merged(parts)


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


def _step_points(series: EngineSeries) -> Iterable[StepPoint]:
    running, sums, counts = (series.steps.get(part, {}) for part in StepPart)
    for time, mean_running in running.items():
        total, count = sums.get(time), counts.get(time)
        if total and count and count > 0 and mean_running > 0:
            yield StepPoint(running=mean_running, itl=total / count, tokens=count)


def _pool(info: Mapping[str, str] | None) -> KVPool:
    if info is None:
        return KVPool()
    blocks, block_size = _whole(info.get("num_gpu_blocks")), _whole(info.get("block_size"))
    tokens = _whole(info.get("kv_cache_size_tokens"))
    if tokens is None and blocks is not None and block_size is not None:
        tokens = blocks * block_size
    concurrency = _fraction(info.get("kv_cache_max_concurrency"))
    return KVPool(
        tokens=tokens,
        blocks=blocks,
        block_size=block_size,
        cache_dtype=info.get("cache_dtype"),
        max_model_len=round(tokens / concurrency) if tokens and concurrency else None,
    )


def _whole(text: str | None) -> int | None:
    value = _fraction(text)
    return None if value is None else int(value)


def _fraction(text: str | None) -> float | None:
    # Labels say "None" for what an engine has not resolved.
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
