"""How many requests per second one replica serves within the objectives: the model that every decision follows from.

A steady state. Requests arrive at a rate; each holds a slot for its output tokens times the inter-token latency; the
latency grows with the batch, and the batch with the rate (Little's law). What ends the growth is the first of: the
TPOT objective at its quantile, the TTFT objective (prompts that wait for each other, requests that wait for a slot),
max-num-seqs, and the sequences that the KV cache holds.
Apart from `planning`, which says what another configuration changes. Pure.
Must not: trust the step-time line beyond `FARTHEST` times the largest batch seen, or return a rate without its low
end.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from vllm_autotuner.performance.queueing import wait_for_slot
from vllm_autotuner.performance.step_time import SHORTEST_STEP, StepTime

__all__ = [
    "FARTHEST",
    "Capacity",
    "FirstToken",
    "Limits",
    "Load",
    "Replica",
    "busy_tpot",
    "capacity",
    "load_at",
    "replicas_for",
]

MISS: Final = 0.09
"""Relative, per doubling beyond the batches seen: how far the line may be off. 42 extrapolations by one doubling of 23
measured curves missed by 0.01 in the median, 0.09 in nine of ten, 0.18 at worst."""
FARTHEST: Final = 4.0
"""Times the largest batch seen up to which the line is used at all: `MISS` was measured over one doubling, and a load
that one engine fewer has to carry needs up to two. Our choice."""
LEAST_ERROR: Final = 0.01
"""Relative error that a line of many windows still has: they share what is wrong with all of them. Our choice; lines of
measured curves miss by 0.01 to 0.04."""
BUSIEST: Final = 0.95
"""Share of the time with prompts that counts as full, so that what is measured at a queue keeps a finite answer."""
PRECISION: Final = 1 / 512
"""Of the batch: far below the noise of what it is computed from."""
ROUNDING: Final = 1e-9
"""Keeps a load that fits exactly from needing one replica more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """TTFT at the quantile of its objective, as measured where no request waits for a slot; seconds."""

    seconds: float
    rate: float
    """Requests per second of one replica at which it was measured."""
    batch: float
    prompts: float
    """Share of the time in which a replica computed prompts then; above 1 where it could not have."""
    alone: float = 0.0
    """Of the prompt of such a request if no other were computed; 0 where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica of a configuration under the lengths of now."""

    step: StepTime
    """Mean inter-token latency (seconds) by batch."""
    empty: float = 0.0
    """Seconds of a step without a sequence, by engines in general, where the line of the batches seen has next to none:
    below these it goes there. 0: the line is as good."""
    output: float
    """Mean output tokens of a request."""
    held_longer: float = 1.0
    """Time for which a request holds its slot over its output tokens times the inter-token latency: its prompt, too.
    Below 1 where a step makes several tokens of a sequence."""
    seats: int | None = None
    """max-num-seqs; None: not known, and taken for no limit."""
    held: float | None = None
    """Sequences that the KV cache holds, with a margin."""
    crowding: float = 1.0
    """Batch in busy moments over the mean batch."""
    tail: float = 1.0
    """TPOT at its quantile over the mean inter-token latency of the busy batch."""
    tail_at: float = 0.0
    """The busy batch at which the tail was measured. In a smaller one it shrinks with what the batch adds."""
    first: FirstToken | None = None
    """None: not measured; then TTFT is only the wait for a slot."""
    burstiness: float = 1.0
    """Variance of the arrivals in a window over their mean: 1 where requests come independently of each other."""

    @property
    def slots(self) -> float:
        """The most sequences that run at once."""
        return min(math.inf if self.seats is None else self.seats, math.inf if self.held is None else self.held)

    def itl(self, batch: float, *, surely: bool = False) -> float:
        """Mean inter-token latency in seconds. `surely`: longer by what the line may err, and more the farther the
        batch is from those seen.

        However wide: a larger batch makes no token faster, and a smaller one makes no more of them. A token is made in
        the company of its own sequence at least, whatever the mean over time.
        """
        line, batch = self.step, batch if batch > 1.0 else 1.0
        # Asked hundreds of times a decision: comparisons in place of min and max, and no error where none is asked for.
        seen = batch if batch > line.low else line.low
        if seen > line.high:
            seen = line.high if line.high > 1.0 else 1.0
        as_seen, wide = line.predict(seen), line.predict(batch)
        if surely:
            error = max(LEAST_ERROR, line.error / math.sqrt(max(1, line.points)))
            doublings = math.log2(batch / seen) if batch > seen else min(1.0, math.log2(seen / batch))
            as_seen *= 1 + error
            wide *= 1 + error + MISS * doublings
        in_proportion = as_seen * batch / seen
        if batch >= seen:
            fastest, slowest = as_seen, in_proportion
        else:
            fastest, slowest = in_proportion + self.empty * (1 - batch / seen), as_seen
        bounded = wide if wide > fastest else fastest
        bounded = bounded if bounded < slowest else slowest
        return bounded if bounded > SHORTEST_STEP else SHORTEST_STEP

    def rate(self, batch: float, *, surely: bool = False) -> float:
        """Requests per second that finish while so many sequences run."""
        return batch / self.held_for(self.itl(batch, surely=surely))

    def held_for(self, itl: float) -> float:
        """Seconds for which a request holds its slot at an inter-token latency."""
        return self.output * self.held_longer * itl


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Objectives; seconds and shares (0..1)."""

    tpot: float
    ttft: float
    ttft_quantile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one replica does at a rate; seconds at the objectives' quantiles."""

    batch: float
    tpot: float
    ttft: float
    """Without a measured one only the wait for a slot. Infinite where more requests come than finish."""
    rate: float
    """Requests per second that finish: those that come, or the most that the slots allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Requests per second that one replica serves within the objectives."""

    rate: float
    """0: the objectives are not met by a single sequence."""
    low: float
    """What it surely serves, by what the line may err."""
    batch: float
    """Mean sequences that run then."""
    limited_by: str
    """`TPOT`, `TTFT`, `max-num-seqs`, `KV cache` or `batches seen`."""

    def times(self, cores: int) -> "Capacity":
        """Return the capacity of so many engine cores in one pod; the batch stays that of each."""
        return self if cores == 1 else replace(self, rate=self.rate * cores, low=self.low * cores)


def load_at(replica: Replica, rate: float, *, limits: Limits) -> Load:
    """Return what a replica does when so many requests per second come. Worked: see `capacity`."""
    most = min(replica.slots, FARTHEST * max(1.0, replica.step.high))
    if replica.rate(most) < rate:
        # More comes than ever finishes: the queue grows without end.
        return Load(batch=most, tpot=_tpot(replica, most), ttft=math.inf, rate=replica.rate(most))
    low, high = 0.0, most
    while high - low > PRECISION * max(PRECISION, high):
        middle = (low + high) / 2
        low, high = (middle, high) if replica.rate(middle) < rate else (low, middle)
    return Load(batch=high, tpot=_tpot(replica, high), ttft=_ttft(replica, high, limits), rate=rate)


@lru_cache(maxsize=64)
def capacity(replica: Replica, *, limits: Limits) -> Capacity:
    """Return how many requests per second a replica serves within the objectives, and how many it surely does.

    One decision asks for a quarter of them twice; nothing older is of use.
    Worked: 10 ms + 0.1 ms a sequence, outputs of 200 tokens, TPOT 20 ms with a tail of 1.25 and no other limit. The
    mean may be 16 ms: a batch of 60, and 60 / (200 * 0.016) = 18.75 requests/s. With 30 slots and a TTFT of 1 s they
    are fewer than 30 / (200 * 0.013) = 11.5: by as much as keeps the wait for a slot within a second.
    """
    batch, limited_by = _largest_batch(replica, limits)
    sure_batch, _ = _largest_batch(replica, limits, surely=True)
    likely, low = replica.rate(batch), replica.rate(sure_batch, surely=True)
    return Capacity(rate=likely, low=min(low, likely), batch=batch, limited_by=limited_by)


def replicas_for(rate: float, capacity: float) -> int | None:
    """Return the number of replicas that serve `rate` requests per second; None if one serves none within objectives.

    Worked: 20 requests/s where one replica serves 7.5 within the objectives: 2.67, so 3.
    """
    needed = rate / capacity if capacity > 0 else math.inf
    return max(1, math.ceil(needed - ROUNDING)) if math.isfinite(needed) else None


def _largest_batch(replica: Replica, limits: Limits, *, surely: bool = False) -> tuple[float, str]:
    """The largest mean batch within the objectives, and what ends it."""
    seen = FARTHEST * max(1.0, replica.step.high)
    most = min(replica.slots, seen)
    ends = "max-num-seqs" if replica.slots == replica.seats else "KV cache"
    slots = "batches seen" if replica.slots > seen else ends
    within_tpot = _last(lambda batch: _tpot(replica, batch, surely=surely) <= limits.tpot, most)
    within_both = _last(lambda batch: _ttft(replica, batch, limits, surely=surely) <= limits.ttft, within_tpot)
    if within_both == within_tpot:
        return within_both, "TPOT" if within_tpot < most else slots
    # Waiting for a slot is what too few slots cost: they are the limit, and not the objective.
    beyond = min(within_tpot, within_both * (1 + 4 * PRECISION))
    wait = _slot_wait(replica, beyond, limits, itl=replica.itl(beyond, surely=surely))
    waits = wait > _ttft(replica, beyond, limits, surely=surely) / 2
    return within_both, slots if waits else "TTFT"


def _last(meets: Callable[[float], bool], most: float) -> float:
    """The largest batch up to `most` that meets; 0 if none does."""
    if meets(most):
        return most
    if not meets(0.0):
        return 0.0
    low, high = 0.0, most
    while high - low > PRECISION * max(PRECISION, high):
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def _tpot(replica: Replica, batch: float, *, surely: bool = False) -> float:
    """TPOT at its quantile: that of the busy moments, in which no more sequences run than there are slots."""
    return busy_tpot(replica, max(batch, min(batch * replica.crowding, replica.slots)), surely=surely)


def busy_tpot(replica: Replica, batch: float, *, surely: bool = False) -> float:
    """TPOT at its quantile (seconds) where the busy moments have this batch.

    A single sequence has no tail: below the batch at which it was measured, the quantile lies above the base by what
    the batch adds, and shrinks with it. Above that batch it grows with the latency.
    """
    itl, tail, base = replica.itl(batch, surely=surely), replica.tail, replica.step.base
    added = replica.step.predict(replica.tail_at) - base
    if batch >= replica.tail_at or tail <= 1 or added <= 0:
        return itl * tail
    return min(itl * tail, base + (itl - base) * (tail * (base + added) - base) / added)


def _ttft(replica: Replica, batch: float, limits: Limits, *, surely: bool = False) -> float:
    """TTFT at its quantile: as measured, by as much as prompts and steps take longer, and the wait for a slot."""
    itl, first = replica.itl(batch, surely=surely), replica.first
    wait = _slot_wait(replica, batch, limits, itl=itl)
    if first is None:
        return wait
    # Seconds of computing that a prompt takes: what is measured as the share of time in which prompts are computed.
    each = first.prompts / first.rate if first.rate > 0 else 0.0
    now = each * (batch / replica.held_for(itl))
    if now >= 1:
        return math.inf
    # An engine that serves one prompt after the other: the time in it grows by 1 / (1 - share) (M/G/1).
    longer = (1 - min(first.prompts, BUSIEST)) / (1 - now) * itl / replica.itl(first.batch)
    return max(first.seconds * longer, min(first.seconds, first.alone or each)) + wait


def _slot_wait(replica: Replica, batch: float, limits: Limits, *, itl: float) -> float:
    slots = replica.slots
    if math.isinf(slots):
        return 0.0
    return wait_for_slot(
        batch,
        slots=max(1, int(slots)),
        held=replica.held_for(itl),
        quantile=limits.ttft_quantile,
        burstiness=replica.burstiness,
    )
