"""The metrics of one engine over the state window: its scrapes, counter increases and KV cache.

Separate from `observation`, which combines the engines of one service.
Must not: judge, except for freshness: no later package may see a stale sample.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vllm_autotuner.engine.geometry import Experts
from vllm_autotuner.engine.metric_names import Meaning
from vllm_autotuner.observation.distribution import Distribution, merged
from vllm_autotuner.observation.reading import Reading
from vllm_autotuner.observation.series import Series, plain_increase, since
from vllm_autotuner.observation.snapshot import EngineKey, EngineSeries, FleetSnapshot

__all__ = [
    "BY_LENGTH",
    "Endings",
    "EngineWindow",
    "KVPool",
    "Moment",
    "StepPoint",
    "distribution_of",
    "engine_window",
]

BY_LENGTH: Final = "length"
"""The finished reason of a request that ran into its token limit."""
BY_ERROR: Final = "error"
"""The finished reason of a request that the engine failed on."""
COMPUTED: Final = "local_compute"
"""The source of prompt tokens that no cache held."""
SMALLEST, LARGEST = 1e-6, 1e15
"""Numbers of a KV cache pool that can be true, in any unit. Whoever exports the labels chooses their text."""
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
    given: bool = False
    """Whether `--num-gpu-blocks-override` or `--kv-cache-memory-bytes` sets it, and not the memory that is left."""
    blocks_given: bool = False
    """Whether the first does: then no smaller value makes room for more tokens, either."""


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One state window of one engine: mean running sequences and mean inter-token latency (seconds)."""

    running: float
    itl: float
    tokens: float
    """Inter-token intervals behind the mean: its weight."""
    time: float | None = None
    """End of the window (Unix seconds); None where the point is of no window, such as the mean of several."""
    prompts: float | None = None
    """Prompt tokens for each of these intervals; None if they are not exported."""
    window: float | None = None
    """Seconds of its window; None: that of the observation. Engines of a service may be scraped at different paces."""
    experts: Experts | None = None
    """Of the model that it served; None: it is dense, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """How requests ended in some stretch of an engine's life."""

    finished: float
    """Requests."""
    by_length: float
    """Requests that ended at their token limit."""
    output_mean: float | None
    """Mean output tokens of a request; None when not exported."""
    failed: float = 0.0
    """Of those that finished: the engine failed on them. Some versions export the count with the first of them only."""


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
    """Seconds until its last scrape in which no prompt or output token was counted; at least that long when none was in
    the fetched samples. None when the token counters are not exported."""
    itl: Reading
    """Mean inter-token latency of this engine (seconds)."""
    pool: KVPool
    labels: Mapping[str, str] = field(default_factory=dict)
    busy_for: float = math.inf
    """Seconds until its last scrape in which it always had requests; infinite when no fetched sample was without."""
    rejected: float | None = None
    """Requests that a limit of the queue turned away. None when not exported, as before vLLM 0.32."""
    finished_by: Mapping[str, float] = field(default_factory=dict)
    """Requests finished in the window by reason (stop, length, abort, ...). Empty when not exported."""
    prompt_tokens_computed: float | None = None
    """Prompt tokens that were not found in a cache. None when the engine tells neither their source nor its hits."""
    accepted_tokens: float | None = None
    """Output tokens that a draft had right (speculative decoding). None when not exported: nothing is drafted."""
    prefix_hits: float | None = None
    """Tokens found in the prefix cache."""
    prefix_queries: float | None = None
    """Tokens looked up in it."""
    prefill_seconds: float | None = None
    """Sum of the prefill times (s) of the requests that finished in the window."""
    started: float | None = None
    """Unix seconds at which its server's process began. None when not exported."""
    earlier: Endings | None = None
    """Before the fetched samples began: a counter's first value remembers all before it. None when it says nothing."""
    lately: Endings | None = None
    """Over all fetched samples, which reach further back than the window: long requests end rarely."""

    @property
    def sampled(self) -> float:
        """Seconds between the first and the last scrape: over these the counters grew, not over the whole window."""
        return self.moments[-1].time - self.moments[0].time


def engine_window(key: EngineKey, series: EngineSeries, *, snapshot: FleetSnapshot) -> EngineWindow | None:
    """What one engine did in the state window; None when its last sample is stale or it reports nothing usable."""
    running, waiting = series.gauges.get(Meaning.RUNNING), series.gauges.get(Meaning.WAITING)
    if series.unreadable or running is None or waiting is None or not running.times:
        return None
    # Its own pace where it shows one: in a fleet of mixed intervals the slowest would let a dead engine look alive.
    interval = running.pace or snapshot.scrape_interval or UNKNOWN_INTERVAL
    if running.is_stale(at=snapshot.at, interval=interval):
        return None
    start = snapshot.at - (series.window or snapshot.state_window)
    moments = tuple(moment for moment in _moments(series) if moment.time > start)
    if not moments:
        return None

    def parts(meaning: Meaning) -> Mapping[str, float]:
        grown = {
            part: plain_increase(since(one, start=start, end=snapshot.at).values)
            for part, one in series.counters.get(meaning, {}).items()
        }
        return {part: growth for part, growth in grown.items() if growth is not None}

    def grown(meaning: Meaning) -> float | None:
        known = parts(meaning)
        return sum(known.values()) if known else None

    computed = parts(Meaning.PROMPT_TOKENS_BY_SOURCE).get(COMPUTED)
    prompted, hits = grown(Meaning.PROMPT_TOKENS), grown(Meaning.PREFIX_HITS)
    if computed is None and prompted is not None and hits is not None:
        # Hits are counted when a request is scheduled, its tokens with its first output token.
        computed = max(0.0, prompted - hits)
    prefill = series.sums.get(Meaning.PREFILL_TIME)
    return EngineWindow(
        key=key,
        moments=moments,
        preemptions=grown(Meaning.PREEMPTIONS),
        finished=grown(Meaning.FINISHED),
        prompt_tokens=prompted,
        generation_tokens=grown(Meaning.GENERATION_TOKENS),
        stalled_for=_stalled_for(series),
        busy_for=_busy_for(series),
        itl=distribution_of([series], Meaning.ITL, snapshot=snapshot).mean,
        pool=_pool(series.cache_info.labels if series.cache_info is not None else None),
        labels=series.labels,
        rejected=grown(Meaning.REJECTED),
        finished_by=parts(Meaning.FINISHED),
        prompt_tokens_computed=computed,
        accepted_tokens=grown(Meaning.ACCEPTED_TOKENS),
        prefix_hits=hits,
        prefix_queries=grown(Meaning.PREFIX_QUERIES),
        prefill_seconds=None
        if prefill is None
        else plain_increase(since(prefill, start=start, end=snapshot.at).values),
        started=series.started,
        earlier=_earlier(series),
        lately=_lately(series),
    )


def _earlier(series: EngineSeries) -> Endings | None:
    finished = {part: one.values[0] for part, one in series.counters.get(Meaning.FINISHED, {}).items() if one.values}
    if not finished:
        return None
    tokens, requests = series.sums.get(Meaning.OUTPUT_LENGTH), series.counts.get(Meaning.OUTPUT_LENGTH)
    mean = None
    if tokens is not None and requests is not None and requests.values[0] > 0:
        mean = tokens.values[0] / requests.values[0]
    return Endings(
        finished=sum(finished.values()),
        by_length=finished.get(BY_LENGTH, 0.0),
        output_mean=mean,
        failed=finished.get(BY_ERROR, 0.0),
    )


def _lately(series: EngineSeries) -> Endings | None:
    grown = {part: plain_increase(one.values) for part, one in series.counters.get(Meaning.FINISHED, {}).items()}
    finished = sum(growth for growth in grown.values() if growth is not None)
    if not finished:
        return None
    tokens, requests = series.sums.get(Meaning.OUTPUT_LENGTH), series.counts.get(Meaning.OUTPUT_LENGTH)
    summed = plain_increase(tokens.values) if tokens is not None else None
    counted = plain_increase(requests.values) if requests is not None else None
    mean = summed / counted if summed is not None and counted else None
    return Endings(
        finished=finished,
        by_length=grown.get(BY_LENGTH) or 0.0,
        output_mean=mean,
        failed=grown.get(BY_ERROR) or 0.0,
    )


def _stalled_for(series: EngineSeries) -> float | None:
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
    # Not until now: of the time since its last scrape nothing is known, and that may be a minute.
    return series.gauges[Meaning.RUNNING].times[-1] - max(moved)


def _busy_for(series: EngineSeries) -> float:
    running, waiting = series.gauges[Meaning.RUNNING], _by_time(series.gauges.get(Meaning.WAITING))
    newest_first = zip(reversed(running.times), reversed(running.values), strict=True)
    idle = (time for time, many in newest_first if not many and not waiting.get(time))
    return running.times[-1] - next(idle, -math.inf)


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


def distribution_of(series: Sequence[EngineSeries], meaning: Meaning, *, snapshot: FleetSnapshot) -> Distribution:
    """The histogram `meaning` over the state window, all `series` together."""
    parts = []
    for one in series:
        start = snapshot.at - (one.window or snapshot.state_window)
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
        blocks_given=_whole(info.get("num_gpu_blocks_override")) is not None,
        given=any(_whole(info.get(name)) is not None for name in ("num_gpu_blocks_override", "kv_cache_memory_bytes")),
    )


def _whole(text: str | None) -> int | None:
    value = _fraction(text)
    return None if value is None else int(value)


def _fraction(text: str | None) -> float | None:
    # Labels say "None" for what an engine has not resolved.
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if SMALLEST <= value <= LARGEST else None
