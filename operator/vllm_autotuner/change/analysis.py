"""One window after the other until a verdict: both arms of a canary at the same time, or before against after in place.

Apart from the machine, because what a window says is one question, and what follows from it another.
Must not: undo anything, or look at pods. The judgement is `comparison`'s (both sides at once) or `before_after`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final, assert_never

from vllm_autotuner.api.spec import Strategy, StrategyType
from vllm_autotuner.api.status import ActiveChange, Analysis, Measurement
from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.change.before_after import compare_periods
from vllm_autotuner.change.comparison import LOOKS, Comparison, Pair, compare
from vllm_autotuner.change.edges import late
from vllm_autotuner.change.verdict import Judgement, WindowVerdict, judge_window, measure_per_pod
from vllm_autotuner.change.world import World
from vllm_autotuner.observation.observation import Observation

__all__ = ["Finding", "analyze", "bake_harms", "in_short", "longest"]

LONGEST_ANALYSIS: Final = 2
"""How many times spec.tuning.strategy.analysis may be spent until the windows of the last look are there: they are long
where Prometheus scrapes seldom, and six cannot tell that a latency that grew stays inside its target. Our choice."""
FEWEST_TO_LOOK: Final = LOOKS[0] + 2
"""Windows for which there is always time: those of the first verdict, one without data, and one that just began."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The change with one window more, where one has passed; `judgement` None while more are needed."""

    change: ActiveChange
    judgement: Judgement | None = None
    why: str = ""
    """For people, with the judgement."""
    outnumbered: bool = False
    """More replicas than the change began with have taken the load that it was to be judged under."""


def longest(strategy: Strategy, *, window: timedelta) -> timedelta:
    """How long a verdict is sought. It needs its windows, however short the analysis is meant to be."""
    return max(LONGEST_ANALYSIS * strategy.analysis, FEWEST_TO_LOOK * window)


def analyze(change: ActiveChange, world: World) -> Finding:
    """Look at one more window, if one has passed since the last, and judge when there are enough."""
    if change.strategy is StrategyType.IN_PLACE:
        change = _anew_since_replicas_came(change, world)
        if world.rollout.ready < world.rollout.replicas and not late(change, now=world.now):
            return Finding(change)  # the queue that replicas are starting for is not the candidate's doing
    analysis = _begun(change.analysis, change, now=world.now)
    since, window = _last_look(analysis, now=world.now), timedelta(seconds=world.observation.window)
    if world.now - since < window:
        return Finding(change)
    change = _without_unseen(change, looked=max(since, change.state_since or since), window=window, now=world.now)
    analysis = _with_window(analysis, change, world)
    change = change.updated(analysis=analysis)
    found = _compared(analysis, change, world, before=_before(change), final=late(change, now=world.now))
    more = change.replicas is not None and world.rollout.ready > change.replicas
    return Finding(change, found.judgement, _told(change, found), outnumbered=more and found.relieved)


def _anew_since_replicas_came(change: ActiveChange, world: World) -> ActiveChange:
    """Begin again once more replicas serve: what was measured is of a smaller fleet.

    Each replica has less to do then than it had before the change, and a lighter load proves nothing good: unless the
    load grows as the fleet did, this ends without a judgement. Nothing runs the old value to compare with.
    Not for longer than twice the longest analysis in all: pods that come and go must not prolong it for ever.
    """
    newest, analysis = world.rollout.newest_since, change.analysis
    if newest is None or analysis is None or analysis.started_at is None or newest <= analysis.started_at:
        return change
    limit = longest(world.strategy, window=timedelta(seconds=world.observation.window))
    latest = (change.state_since or newest) + 2 * limit
    if newest >= latest:
        return change
    return change.updated(analysis=Analysis(started_at=newest), deadline=min(newest + limit, latest))


def _compared(
    analysis: Analysis, change: ActiveChange, world: World, *, before: Sequence[Measurement], final: bool
) -> Comparison:
    """Both sides at the same time where there are pods for it, else `before` against now with the load taken out."""
    gpus = change.from_.tensor_parallel_size or 1, change.to.tensor_parallel_size or 1
    if not analysis.reference:
        return compare_periods(
            before, analysis.last, targets=world.targets, target=change.target, final=final, gpus=gpus
        )
    waited = [window.ttft_seconds for window in change.before if window.ttft_seconds is not None]
    return compare(
        _pairs(analysis),
        targets=world.targets,
        target=change.target,
        final=final,
        gpus=gpus,
        queued=bool(waited) and median(waited) > world.targets.ttft.seconds,
    )


def _before(change: ActiveChange) -> Sequence[Measurement]:
    # A change that an older version began took only its baseline with it.
    return change.before or ((change.baseline,) if change.baseline is not None else ())


def bake_harms(change: ActiveChange, world: World) -> tuple[ActiveChange, str]:
    """Look at one more window of the bake; say what harm there is, empty when there is none.

    Only lasting harm ends a bake: that the change is better was found before.
    """
    bake = _begun(change.bake, change, now=world.now)
    if world.now - _last_look(bake, now=world.now) < timedelta(seconds=world.observation.window):
        return change, ""
    bake = _with_window(bake, change, world)
    # Beside the pods of a trial each had fewer requests than it has now: the load was this one before the change.
    tested = change.analysis.reference if change.analysis is not None else ()
    found = _compared(bake, change, world, before=change.before or tested or _before(change), final=False)
    harm = found.text if found.judgement is Judgement.REVERT else ""
    if len(bake.last) >= LOOKS[-1]:
        # A look at every further window would find harm by chance: the next ones are a comparison of their own.
        bake = Analysis(started_at=world.now)
    return change.updated(bake=bake), harm


def _pairs(analysis: Analysis) -> list[Pair]:
    # An edited status may hold sides of different length: the newest belong together.
    sides = zip(reversed(analysis.last), reversed(analysis.reference), strict=False)
    return [Pair(candidate=candidate, reference=reference) for candidate, reference in sides][::-1]


def in_short(change: ActiveChange, world: World) -> str:
    """What led to the change being kept."""
    if change.analysis is None:
        return _figures(change)
    return _told(change, _compared(change.analysis, change, world, before=_before(change), final=True))


def _told(change: ActiveChange, found: Comparison) -> str:
    return found.text if found.effects else f"{_figures(change)}: {found.text}"


def _figures(change: ActiveChange) -> str:
    """Before and after in one line: the baseline and the newest window."""
    analysis = change.analysis
    before = change.baseline
    after = analysis.last[-1] if analysis and analysis.last else None
    if before is None or after is None:
        return "no figures"
    parts = [
        f"{name} {_told_or_unknown(old)} -> {_told_or_unknown(new)}"
        for name, old, new in (
            ("TTFT", before.ttft_seconds, after.ttft_seconds),
            ("TPOT", before.tpot_seconds, after.tpot_seconds),
        )
    ]
    return ", ".join(parts)


def _begun(analysis: Analysis | None, change: ActiveChange, *, now: datetime) -> Analysis:
    """Keep when it began, also where an edited status lost it: one that began "now" at every look would never end."""
    known = analysis or Analysis()
    return known.updated(started_at=known.started_at or change.state_since or now)


def _last_look(analysis: Analysis, *, now: datetime) -> datetime:
    # Windows must not overlap: one bad minute counted twice is not two bad minutes.
    return max((measured.at for measured in analysis.last), default=analysis.started_at or now)


def _without_unseen(change: ActiveChange, *, looked: datetime, window: timedelta, now: datetime) -> ActiveChange:
    """Time in which nobody looked (a leader died, another took over) is no part of the time to find a verdict."""
    unseen = now - looked - window
    if unseen <= window or change.deadline is None:
        return change
    return change.updated(deadline=change.deadline + unseen)


def _with_window(analysis: Analysis, change: ActiveChange, world: World) -> Analysis:
    """One window more. Both sides at the same time where pods with the old configuration still serve."""
    found, reference = _sides(change, world)
    verdict = judge_window(found, before=reference or change.baseline, targets=world.targets, target=change.target)
    return _counted(analysis, verdict).updated(
        last=(*analysis.last, found), reference=() if reference is None else (*analysis.reference, reference)
    )


def _sides(change: ActiveChange, world: World) -> tuple[Measurement, Measurement | None]:
    """The new configuration and the old one in the same window; None where no pod has the old one any more."""
    variants = world.variants
    if change.strategy is StrategyType.IN_PLACE:
        return measure_per_pod(world.observation, targets=world.targets), None
    new = world.observation if change.promoted or variants.canary is None else variants.canary.observation
    if change.baseline_ref is not None and variants.baseline is not None:
        old: Observation | None = variants.baseline.observation
    else:
        old = None if change.promoted else world.observation
    found = measure_per_pod(new, targets=world.targets)
    return found, None if old is None else measure_per_pod(old, targets=world.targets)


def _counted(analysis: Analysis, verdict: WindowVerdict) -> Analysis:
    match verdict:
        case WindowVerdict.GOOD:
            return analysis.updated(windows_good=analysis.windows_good + 1, consecutive_bad=0)
        case WindowVerdict.BAD:
            return analysis.updated(windows_bad=analysis.windows_bad + 1, consecutive_bad=analysis.consecutive_bad + 1)
        case WindowVerdict.INCONCLUSIVE:
            return analysis.updated(windows_inconclusive=analysis.windows_inconclusive + 1, consecutive_bad=0)
        case WindowVerdict.NO_DATA:
            return analysis.updated(no_data=analysis.no_data + 1)
        case unreachable:
            assert_never(unreachable)


def _told_or_unknown(seconds: float | None) -> str:
    return "unknown" if seconds is None else told_seconds(seconds)
