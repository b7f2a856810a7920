"""The verdict on a change in place: windows before against windows after, corrected for a change of load.

Separate from `comparison`, which has pairs: here the load may change between the two periods. A window after the change
therefore counts only where its load does not favour the conclusion:
  better or safe: windows with at least the load of before (within tolerance), as a lighter load proves nothing;
  worse:          windows with at most the load of before (within tolerance), as a heavier load explains a regression.
Load is the rate of incoming requests: finished requests plus the growth of running and waiting ones since the previous
window. Running requests alone do not measure load, because most changes alter them. If requests queued before and still
do, a longer TTFT only shows a longer queue; it counts only in windows with clearly fewer tokens per second than before.
Nor does a shorter queue alone prove an improvement (`shorter_queue`).
With too few comparable windows it waits for more, and is Inconclusive when time is up.
Bounds come from `rank_sum`, rules from `objective_effect`.
Must not: read a clock, or fill in missing numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import median
from typing import Final

from vllm_autotuner.api.status import MEASUREMENTS_LENGTH, ChangeTarget, Measurement
from vllm_autotuner.change.comparison import (
    FEWEST_REQUESTS,
    GROSS,
    GROSS_WINDOWS,
    KEEP_FROM,
    LIKELY,
    LOOKS,
    Comparison,
    comparison,
    level_at,
    when_due,
)
from vllm_autotuner.change.measured_window import (
    LATENCIES,
    is_complete,
    level_of,
    mean_of,
    mean_queue,
    most_tell,
    requests_in,
    stood_still,
    window_length,
)
from vllm_autotuner.change.objective_effect import (
    Merits,
    ObjectiveEffect,
    Question,
    concluded,
    latency_effect,
    target_of,
    throughput_effect,
)
from vllm_autotuner.change.rank_sum import difference
from vllm_autotuner.change.rejections import Rejections, rejected_share, rejections, rejects_grossly
from vllm_autotuner.change.shorter_queue import is_shorter_queue_alone, without_luck
from vllm_autotuner.change.signed_rank import Interval, interval
from vllm_autotuner.change.verdict import Judgement
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.noise import NOISE

__all__ = ["compare_periods", "with_window_before"]

SAME_LOAD: Final = NOISE
"""Loads that differ by less count as equal: below 10 % is noise. The tolerance grows to the chance variation of the
request count per window (1 / square root of it) where that is larger."""
FEWEST_BEFORE: Final = 3
"""Windows before the change that an early verdict needs. With fewer, only the last look counts. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Period:
    """The windows with data of one configuration, and the load of each."""

    windows: tuple[Measurement, ...]
    loads: tuple[float | None, ...]
    length: timedelta | None
    """Of a window."""

    def typical(self, objective: ChangeTarget) -> float | None:
        """The median level."""
        known = [level for window in self.windows if (level := level_of(window, objective)) is not None]
        return median(known) if known else None

    @property
    def load(self) -> float | None:
        """The median load."""
        known = [load for load in self.loads if load is not None]
        return median(known) if known else None

    @property
    def same(self) -> float:
        """Relative tolerance within which another load counts as equal: arrivals are random, windows are short."""
        known = [count for window in self.windows if (count := requests_in([window], length=self.length))]
        return max(SAME_LOAD, 1 / math.sqrt(median(known))) if known else SAME_LOAD

    @property
    def queued(self) -> bool:
        """Whether requests waited on average: bursts that no usual window shows leave a queue as well."""
        return mean_queue(self.windows) >= 1


def compare_periods(
    before: Sequence[Measurement],
    after: Sequence[Measurement],
    *,
    targets: Targets,
    target: ChangeTarget | None,
    final: bool,
    gpus: tuple[int, int] = (1, 1),
) -> Comparison:
    """Judge what was measured `after` by what was measured `before`, both oldest first. Otherwise as `compare`."""
    question = Question(targets=targets, target=target or ChangeTarget.THROUGHPUT, final=final, gpus=gpus)
    length = window_length((*before, *after))
    old, new = _period(before, length=length), _period(after, length=length)
    requests = requests_in(new.windows, length=length), requests_in(old.windows, length=length)
    effects = _effects(old, new, question=question) if old.windows and new.windows else ()
    # If all requests are rejected there is no latency: count every window that reports rejections.
    counted = _counted(before, length=length), _counted(after, length=length)
    rejected = _rejections(*counted, level=level_at(len(new.windows)))
    if _rejects_grossly(*counted):
        judgement: Judgement | None = Judgement.REVERT
        why = "rejects far more requests"
    else:
        judgement, why = _judged(old, new, effects, rejected, requests, question=question)
    found = comparison(judgement, why, effects=effects, rejected=rejected, windows=len(new.windows), requests=requests)
    return replace(found, relieved=_is_relieved(old, new))


def with_window_before(
    before: Sequence[Measurement], found: Measurement, *, target: ChangeTarget | None
) -> tuple[Measurement, ...]:
    """Return `before` with one more window of the old configuration, if it adds to what the change is compared with.

    None with clearly less load, which is not what the change is for, and ten at most: none of the others goes for it.
    The two must not overlap. What saves GPUs is for the load that there is: by windows chosen for theirs, a first one
    that was busy by chance would be the least of them, and all after the change lighter.
    """
    known, length = tuple(before), window_length((*before, found))
    if not is_complete(found) or len(known) >= MEASUREMENTS_LENGTH:
        return known
    old, load = _period(known, length=length), _period((*known, found), length=length).loads[-1]
    lighter = old.load is not None and (load is None or load < old.load * (1 - old.same))
    return known if lighter and target is not ChangeTarget.GPUS else (*known, found)


def _period(measured: Sequence[Measurement], *, length: timedelta | None) -> _Period:
    return _with_loads(tuple(window for window in measured if is_complete(window)), length=length)


def _counted(measured: Sequence[Measurement], *, length: timedelta | None) -> _Period:
    return _with_loads(tuple(window for window in measured if rejected_share([window]) is not None), length=length)


def _with_loads(windows: tuple[Measurement, ...], *, length: timedelta | None) -> _Period:
    earlier = (None, *windows)[: len(windows)]
    loads = tuple(_load(one, window) for one, window in zip(earlier, windows, strict=True))
    return _Period(windows=windows, loads=loads, length=length)


def _load(earlier: Measurement | None, window: Measurement) -> float | None:
    """Incoming requests per second: finished, rejected and newly running or waiting; None if unknown."""
    finished = window.requests_per_second
    if finished is None or not 0 < (finished := finished + (window.rejected_per_second or 0.0)) < math.inf:
        return None
    if earlier is None or earlier.at >= window.at or None in (one := (*_held(earlier), *_held(window))):
        return finished
    was_running, was_waiting, running, waiting = (level or 0.0 for level in one)
    grown = running + waiting - was_running - was_waiting
    return max(0.0, finished + grown / (window.at - earlier.at).total_seconds())


def _held(window: Measurement) -> tuple[float | None, float | None]:
    return window.running, window.waiting


def _judged(
    old: _Period,
    new: _Period,
    effects: Sequence[ObjectiveEffect],
    rejected: Rejections | None,
    requests: tuple[float | None, float | None],
    *,
    question: Question,
) -> tuple[Judgement | None, str]:
    if gross := _gross(old, new, targets=question.targets):
        return Judgement.REVERT, f"{gross.value} misses its objective and is over {GROSS[gross]:g}x its level before"
    waiting = Judgement.INCONCLUSIVE if question.final else None
    count = len(new.windows)
    if not old.windows or count < LOOKS[0]:
        return waiting, f"{count} of {LOOKS[0]} windows with data after the change, {len(old.windows)} before"
    # Only after the change: a single window before cannot have that many, and the bounds allow for that.
    if requests[0] is None or requests[0] < FEWEST_REQUESTS:
        return waiting, f"fewer than {FEWEST_REQUESTS:.0f} requests measured after the change"
    harder = _comparable(old, new, question=question)
    # Of windows with the same load by chance every second has less: those that can show anything are waited for. Not
    # fewer than a Keep needs, as at the level of the last look six of them bound nothing.
    last = question.final or (count >= LOOKS[-1] and len(harder) >= KEEP_FROM)
    late = count % LOOKS[-1] == 0  # what has become worse is looked for in the meantime
    if not last and not late and (count not in LOOKS or len(old.windows) < FEWEST_BEFORE):
        return None, "more windows are needed"
    if not effects:
        return when_due(Judgement.INCONCLUSIVE, windows=count, last=last), "too few windows with comparable load"
    judgement, why = concluded(effects, rejected=rejected, question=question)
    if judgement is Judgement.INCONCLUSIVE and _is_shorter_queue_alone(question.target, old, harder):
        why = "requests waited before and wait now, and fewer of them explain TTFT: no more tokens are generated"
    return when_due(judgement, windows=count, last=last), why


def _rejections(old: _Period, new: _Period, *, level: float) -> Rejections | None:
    """Rejected shares: worse only counts at no more load than before, as good only at no less."""
    if not old.windows or not new.windows:
        return None
    lighter = _under(new, at_most=_scaled(old.load, 1 + old.same))
    harder = _under(new, at_least=_scaled(old.load, 1 - old.same))
    apart = difference(_shares(lighter or new.windows), _shares(old.windows), level=level)
    shown = rejections(lighter or new.windows, old.windows, apart=apart)
    proven = rejections(harder or new.windows, old.windows, apart=apart)
    if shown is None or proven is None:
        return None
    return replace(shown, hurt=shown.hurt and len(lighter) >= LOOKS[0], safe=proven.safe)


def _rejects_grossly(old: _Period, new: _Period) -> bool:
    newest, usual = new.windows[-GROSS_WINDOWS:], rejected_share(old.windows)
    lighter = _under(new, at_most=_scaled(old.load, 1 + old.same))
    if usual is None or len(newest) < GROSS_WINDOWS or not all(window in lighter for window in newest):
        return False
    return rejects_grossly(newest, [usual] * len(newest), length=old.length)


def _shares(windows: Sequence[Measurement]) -> list[float]:
    return [share for window in windows if (share := rejected_share([window])) is not None]


def _effects(old: _Period, new: _Period, *, question: Question) -> tuple[ObjectiveEffect, ...]:
    """The effects on the objectives that have enough comparable windows."""
    level = level_at(len(new.windows))
    harder = _comparable(old, new, question=question)
    effects = []
    for objective in LATENCIES:
        good = _latency(objective, old, harder, level=level, question=question)
        bad = _latency(objective, old, _blamed(objective, old, new), level=level, question=question)
        if (shown := good or bad) is not None:
            merits = Merits() if good is None else good.merits
            merits = without_luck(merits) if _is_shorter_queue_alone(objective, old, harder) else merits
            effects.append(replace(shown, hurt=bad is not None and bad.hurt, merits=merits))
    if (tokens := _throughput(old, harder, level=level, question=question)) is not None:
        effects.append(tokens)
    return tuple(effects)


def _is_shorter_queue_alone(objective: ChangeTarget, old: _Period, windows: Sequence[Measurement]) -> bool:
    tokens = [level for window in windows if (level := level_of(window, ChangeTarget.THROUGHPUT)) is not None]
    before = old.typical(ChangeTarget.THROUGHPUT)
    served = None if before is None or not tokens else median(tokens) / before
    return is_shorter_queue_alone(objective, windows, old.windows, served=served)


def _comparable(old: _Period, new: _Period, *, question: Question) -> Sequence[Measurement]:
    """The windows that can show that nothing became worse: those with no less load than before.

    All of them where a change must only do no harm and the load was the same on the whole: of windows with the same
    load by chance every second is lighter, and without them too few are left.
    """
    alike = old.load is not None and new.load is not None and new.load >= old.load * (1 - old.same)
    if question.target is ChangeTarget.GPUS and alike:
        return [window for window, load in zip(new.windows, new.loads, strict=True) if load is not None]
    return _under(new, at_least=_scaled(old.load, 1 - old.same))


def _scaled(load: float | None, factor: float) -> float | None:
    return None if load is None else load * factor


def _under(period: _Period, *, at_least: float | None = None, at_most: float | None = None) -> list[Measurement]:
    """The windows with a load in this range; empty if no bound is known."""
    if at_least is None and at_most is None:
        return []
    low, high = at_least or 0.0, math.inf if at_most is None else at_most
    pairs = zip(period.windows, period.loads, strict=True)
    return [window for window, load in pairs if load is not None and low <= load <= high]


def _is_relieved(old: _Period, new: _Period) -> bool:
    """Whether there are too few comparable windows only because the load of the others was lighter."""
    harder = _under(new, at_least=_scaled(old.load, 1 - old.same))
    known = [load for load in new.loads if load is not None]
    return old.load is not None and len(harder) < KEEP_FROM <= len(known)


def _blamed(objective: ChangeTarget, old: _Period, new: _Period) -> list[Measurement]:
    """The windows in which the load does not explain a higher latency."""
    lighter = _under(new, at_most=_scaled(old.load, 1 + old.same))
    if objective is not ChangeTarget.TTFT or not old.queued:
        return lighter
    tokens = old.typical(ChangeTarget.THROUGHPUT)
    return [window for window in lighter if not (window.waiting or 0) >= 1 or _fewer_tokens(window, tokens)]


def _fewer_tokens(window: Measurement, before: float | None) -> bool:
    now = window.tokens_per_second  # 0 is fewer, and no level
    return now is not None and before is not None and now < before * (1 - NOISE)


def _latency(
    objective: ChangeTarget, old: _Period, windows: Sequence[Measurement], *, level: float, question: Question
) -> ObjectiveEffect | None:
    if len(windows) < LOOKS[0]:
        return None
    limit = target_of(objective, question.targets).seconds
    ours, theirs = _logs(windows, objective, unit=limit), _logs(old.windows, objective, unit=limit)
    return latency_effect(
        objective,
        ratio=difference(ours, theirs, level=level),
        likely=difference(ours, theirs, level=LIKELY).high,
        mean=_mean(objective, old, windows, level=level),
        ours=interval(ours, level=level),
        theirs=interval(theirs, level=LIKELY),
        question=question,
    )


def _mean(objective: ChangeTarget, old: _Period, windows: Sequence[Measurement], *, level: float) -> Interval | None:
    """The difference of the means; None unless most windows have one, before and after."""
    ours, theirs = (
        [math.log(mean) for window in period if (mean := mean_of(window, objective)) is not None]
        for period in (windows, old.windows)
    )
    known = most_tell(ours, windows) and most_tell(theirs, old.windows)
    return difference(ours, theirs, level=level) if known else None


def _throughput(
    old: _Period, windows: Sequence[Measurement], *, level: float, question: Question
) -> ObjectiveEffect | None:
    ours = _logs(windows, ChangeTarget.THROUGHPUT, unit=1.0)
    theirs = _logs(old.windows, ChangeTarget.THROUGHPUT, unit=1.0)
    known = most_tell(ours, windows) and most_tell(theirs, old.windows) and not stood_still((*windows, *old.windows))
    if len(ours) < LOOKS[0] or not known:
        return None
    return throughput_effect(
        ratio=difference(ours, theirs, level=level),
        ours=math.exp(median(ours)),
        theirs=math.exp(median(theirs)),
        question=question,
    )


def _logs(windows: Sequence[Measurement], objective: ChangeTarget, *, unit: float) -> list[float]:
    levels = (level_of(window, objective) for window in windows)
    return [math.log(level / unit) for level in levels if level is not None]


def _gross(old: _Period, new: _Period, *, targets: Targets) -> ChangeTarget | None:
    """The latency that was grossly violated in all of the newest windows; None if none was."""
    newest = new.windows[-GROSS_WINDOWS:]
    if len(newest) < GROSS_WINDOWS:
        return None
    for objective in LATENCIES:
        usual, limit = old.typical(objective), target_of(objective, targets).seconds
        blamed = _blamed(objective, old, new)
        levels = [level_of(window, objective) for window in newest if window in blamed]
        bad = [
            level
            for level in levels
            if level is not None and usual is not None and level > max(GROSS[objective] * usual, limit)
        ]
        if len(bad) == GROSS_WINDOWS:
            return objective
    return None
