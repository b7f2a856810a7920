"""One window after the other until a verdict: both arms of a canary at the same time, or before against after in place.

Apart from the machine, because what a window says is one question, and what follows from it another.
Must not: undo anything, or look at pods. The judgement is `comparison`'s (both sides at once) or `verdict`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final, assert_never

from vllm_autotuner.api.spec import StrategyType
from vllm_autotuner.api.status import MEASUREMENTS_LENGTH, ActiveChange, Analysis, Measurement
from vllm_autotuner.change.comparison import LOOKS, Comparison, Pair, compare
from vllm_autotuner.change.edges import late
from vllm_autotuner.change.verdict import FEWEST_WINDOWS, Judgement, WindowVerdict, conclude, judge_window, measure
from vllm_autotuner.change.windows import is_complete
from vllm_autotuner.change.world import World
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.observation import Observation

__all__ = ["BAD_IN_A_ROW", "LONGEST_ANALYSIS", "Finding", "analyze", "bake_harms", "figures", "in_short"]

BAD_IN_A_ROW: Final = 3
"""Bad windows in a row that end the experiment at once. Our choice: one is chance, three are harm."""
LONGEST_ANALYSIS: Final = 2
"""How many times spec.tuning.strategy.analysis may be spent where windows say too little. Our choice."""
MORE_LOAD: Final = 0.25
"""Share by which more requests may finish than ever before in this change, and latency still be the change's doing.
Beyond it the load explains it, and undoing the change would not help. Our choice, unmeasured."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The change with one window more, where one has passed; `judgement` None while more are needed."""

    change: ActiveChange
    judgement: Judgement | None = None
    why: str = ""
    """For people, with the judgement."""


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
    change = change.model_copy(update={"analysis": analysis})
    over = world.now - (analysis.started_at or world.now) >= world.strategy.analysis
    if change.strategy is StrategyType.CANARY:
        return _judged_by_pairs(change, analysis, world, over=over)
    if analysis.consecutive_bad >= BAD_IN_A_ROW:
        return Finding(change, Judgement.REVERT, figures(change))
    enough = analysis.windows_good + analysis.windows_bad >= FEWEST_WINDOWS
    if not over or not (enough or late(change, now=world.now)):
        return Finding(change)
    judgement = conclude(
        analysis.last,
        good=analysis.windows_good,
        bad=analysis.windows_bad,
        before=change.baseline,
        targets=world.targets,
        gpus=_gpus(change),
    )
    return Finding(change, judgement, figures(change))


def _anew_since_replicas_came(change: ActiveChange, world: World) -> ActiveChange:
    """Begin again once more replicas serve: what was measured is of a smaller fleet.

    Not for longer than twice the longest analysis in all: pods that come and go must not prolong it for ever.
    """
    newest, analysis = world.rollout.newest_since, change.analysis
    if newest is None or analysis is None or analysis.started_at is None or newest <= analysis.started_at:
        return change
    longest = LONGEST_ANALYSIS * world.strategy.analysis
    latest = (change.state_since or newest) + 2 * longest
    if newest >= latest:
        return change
    update = {"analysis": Analysis(started_at=newest), "deadline": min(newest + longest, latest)}
    return change.model_copy(update=update)


def _judged_by_pairs(change: ActiveChange, analysis: Analysis, world: World, *, over: bool) -> Finding:
    """Both sides at the same time: the load is the same on both, so nothing has to be taken out of it."""
    pairs = _pairs(analysis)
    usable = sum(is_complete(pair.candidate) and is_complete(pair.reference) for pair in pairs)
    final = late(change, now=world.now) or (over and usable >= LOOKS[0])
    found = _compared(change, pairs, world, final=final)
    return Finding(change, found.judgement, found.text)


def _compared(change: ActiveChange, pairs: Sequence[Pair], world: World, *, final: bool) -> Comparison:
    before = [window.ttft_seconds for window in change.before if window.ttft_seconds is not None]
    return compare(
        pairs,
        targets=world.targets,
        target=change.target,
        final=final,
        gpus=_gpus(change),
        queued=bool(before) and median(before) > world.targets.ttft.seconds,
    )


def bake_harms(change: ActiveChange, world: World) -> tuple[ActiveChange, str]:
    """Look at one more window of the bake; say what harm there is, empty when there is none.

    Only lasting harm ends a bake: that the change is better was found before.
    """
    bake = _begun(change.bake, change, now=world.now)
    if world.now - _last_look(bake, now=world.now) < timedelta(seconds=world.observation.window):
        return change, ""
    bake = _with_window(bake, change, world, tested=change.analysis)
    harm = ""
    if bake.reference:
        found = compare(_pairs(bake), targets=world.targets, target=change.target, final=False, gpus=_gpus(change))
        harm = found.text if found.judgement is Judgement.REVERT else ""
        if len(bake.last) >= LOOKS[-1]:
            # A look at every further window would find harm by chance: the next ones are a comparison of their own.
            bake = Analysis(started_at=world.now)
    elif bake.consecutive_bad >= BAD_IN_A_ROW:
        harm = "latency was over its objective, and worse than before the change"
    return change.model_copy(update={"bake": bake}), harm


def _pairs(analysis: Analysis) -> list[Pair]:
    # An edited status may hold sides of different length: the newest belong together.
    sides = zip(reversed(analysis.last), reversed(analysis.reference), strict=False)
    return [Pair(candidate=candidate, reference=reference) for candidate, reference in sides][::-1]


def _gpus(change: ActiveChange) -> tuple[int, int]:
    return change.from_.tensor_parallel_size or 1, change.to.tensor_parallel_size or 1


def in_short(change: ActiveChange, world: World) -> str:
    """What led to the change being kept: of a canary both sides over all windows, else before and after."""
    analysis = change.analysis
    if analysis is None or not analysis.reference:
        return figures(change)
    return _compared(change, _pairs(analysis), world, final=True).text


def figures(change: ActiveChange) -> str:
    """Before and after in one line: the baseline and the newest window."""
    analysis = change.analysis
    before = change.baseline
    after = analysis.last[-1] if analysis and analysis.last else None
    if before is None or after is None:
        return "no figures"
    parts = [
        f"{name} {_ms(old)} -> {_ms(new)}"
        for name, old, new in (
            ("TTFT", before.ttft_seconds, after.ttft_seconds),
            ("TPOT", before.tpot_seconds, after.tpot_seconds),
        )
    ]
    return ", ".join(parts)


def _begun(analysis: Analysis | None, change: ActiveChange, *, now: datetime) -> Analysis:
    """Keep when it began, also where an edited status lost it: one that began "now" at every look would never end."""
    known = analysis or Analysis()
    return known.model_copy(update={"started_at": known.started_at or change.state_since or now})


def _last_look(analysis: Analysis, *, now: datetime) -> datetime:
    # Windows must not overlap: one bad minute counted twice is not two bad minutes.
    return max((measured.at for measured in analysis.last), default=analysis.started_at or now)


def _without_unseen(change: ActiveChange, *, looked: datetime, window: timedelta, now: datetime) -> ActiveChange:
    """Time in which nobody looked (a leader died, another took over) is no part of the time to find a verdict."""
    unseen = now - looked - window
    if unseen <= window or change.deadline is None:
        return change
    return change.model_copy(update={"deadline": change.deadline + unseen})


def _with_window(analysis: Analysis, change: ActiveChange, world: World, *, tested: Analysis | None = None) -> Analysis:
    """One window more. Both sides at the same time where pods with the old configuration still serve.

    `tested`: in the bake, what led to the verdict.
    """
    found, reference = _sides(change, world)
    before = reference or change.baseline
    verdict = judge_window(found, before=before, targets=world.targets, target=change.target)
    if verdict is WindowVerdict.BAD and tested is not None and reference is None and _more_load(found, change, tested):
        verdict = WindowVerdict.INCONCLUSIVE
    update = {
        "last": (*analysis.last, found)[-MEASUREMENTS_LENGTH:],
        "reference": () if reference is None else (*analysis.reference, reference)[-MEASUREMENTS_LENGTH:],
    }
    return _counted(analysis, verdict).model_copy(update=update)


def _sides(change: ActiveChange, world: World) -> tuple[Measurement, Measurement | None]:
    """The new configuration and the old one in the same window; None where no pod has the old one any more."""
    arms = world.arms
    if change.strategy is StrategyType.IN_PLACE:
        return measure(world.observation, targets=world.targets), None
    new = world.observation if change.promoted or arms.canary is None else arms.canary.observation
    if change.baseline_ref is not None and arms.baseline is not None:
        old: Observation | None = arms.baseline.observation
    else:
        old = None if change.promoted else world.observation
    return _per_pod(new, targets=world.targets), None if old is None else _per_pod(old, targets=world.targets)


def _per_pod(observation: Observation, *, targets: Targets) -> Measurement:
    """A measurement that can be compared with one of more or fewer pods: what adds up is divided by them."""
    found, pods = measure(observation, targets=targets), len({engine.key.pod for engine in observation.engines})
    if pods <= 1:
        return found
    names = ("requests_per_second", "tokens_per_second", "running", "waiting")
    return found.model_copy(
        update={name: value / pods for name in names if (value := getattr(found, name)) is not None}
    )


def _more_load(found: Measurement, change: ActiveChange, tested: Analysis) -> bool:
    """Whether more requests finish than ever while the change was tested: then latency says nothing about it."""
    compared = tested.reference or ((change.baseline,) if change.baseline is not None else ())
    known = [one.requests_per_second for one in (*compared, *tested.last) if one.requests_per_second is not None]
    now = found.requests_per_second
    return now is None or not known or now > max(known) * (1 + MORE_LOAD)


def _counted(analysis: Analysis, verdict: WindowVerdict) -> Analysis:
    match verdict:
        case WindowVerdict.GOOD:
            counted = {"windows_good": analysis.windows_good + 1, "consecutive_bad": 0}
        case WindowVerdict.BAD:
            counted = {"windows_bad": analysis.windows_bad + 1, "consecutive_bad": analysis.consecutive_bad + 1}
        case WindowVerdict.INCONCLUSIVE:
            counted = {"windows_inconclusive": analysis.windows_inconclusive + 1, "consecutive_bad": 0}
        case WindowVerdict.NO_DATA:
            counted = {"no_data": analysis.no_data + 1}
        case unreachable:
            assert_never(unreachable)
    return analysis.model_copy(update=counted)


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
