"""Collects measurement windows until there is a verdict: canary against baseline, or before against after in place.

Separate from the state machine: this file judges, `machine` decides what follows from the judgement.
Must not: roll back, or look at pods. The statistics are in `comparison` (both sides at once) and `before_after`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final, TypeVar, assert_never

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.spec import Strategy, StrategyType
from vllm_autotuner.api.status import (
    ANALYSIS_LENGTH,
    BAKE_LENGTH,
    MEASUREMENTS_LENGTH,
    ActiveChange,
    Analysis,
    Bake,
    ChangeTarget,
    Measurement,
)
from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.change.before_after import compare_periods
from vllm_autotuner.change.comparison import LOOKS, Comparison, Pair, compare
from vllm_autotuner.change.edges import late
from vllm_autotuner.change.measured_window import LATENCIES, is_complete, level_of, mean_queue
from vllm_autotuner.change.objective_effect import target_of
from vllm_autotuner.change.verdict import Judgement, WindowVerdict, judge_window, measure_per_pod
from vllm_autotuner.change.world import World, raises_slots, reaches_the_service
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.observation import Observation

__all__ = ["Finding", "analyze", "bake_harms", "kept_reason", "longest", "shown_windows", "with_unwatched_time"]

LONGEST_ANALYSIS: Final = 6
"""Upper limit of the analysis, in multiples of spec.tuning.strategy.analysis, where that is more than the windows that
are kept of it. Ten of them end it; it lasts longer where they are empty, or have too few requests together. Our choice;
what a third of it cost, and half of the windows: decision 21."""


_Windows = TypeVar("_Windows", bound=Analysis)


@dataclass(frozen=True, slots=True)
class Finding:
    """The change with the newest window added, if one has passed; `judgement` is None while more are needed."""

    change: ActiveChange
    judgement: Judgement | None = None
    why: str = ""
    """The reason in words, shown with the judgement."""
    load_diluted: bool = False
    """A scale-out during the change lowered the load per replica, so the windows prove nothing."""


def longest(strategy: Strategy, *, window: timedelta) -> timedelta:
    """The time limit of the analysis: long enough for the windows that are kept, even if the spec asks for less."""
    return max(LONGEST_ANALYSIS * strategy.analysis, ANALYSIS_LENGTH * window)


def analyze(change: ActiveChange, world: World) -> Finding:
    """Measure the next window once it has passed, and judge when there are enough windows."""
    if change.strategy is StrategyType.IN_PLACE:
        change = _anew_since_replicas_came(change, world)
        if world.rollout.ready < world.rollout.replicas and not late(change, now=world.now):
            return Finding(change)  # replicas are starting because of a queue: not the candidate's fault
    if (why := _no_larger_cache(change, world)) is not None:
        # The same engine sets aside the same memory tomorrow: no use to try again soon.
        return Finding(change.updated(refused=True), Judgement.INCONCLUSIVE, why)
    analysis = _begun(change.analysis or Analysis(), change, now=world.now)
    since, window = _last_look(analysis, now=world.now), timedelta(seconds=world.observation.window)
    if world.now - since < window:
        return Finding(change)
    change = _without_unseen(change, looked=max(since, change.state_since or since), window=window, now=world.now)
    analysis = _with_window(analysis, change, world)
    change = change.updated(analysis=analysis)
    found = _compared(analysis, change, world, before=_before(change), final=late(change, now=world.now))
    more = change.replicas is not None and world.rollout.ready > change.replicas
    return Finding(change, found.judgement, _told(change, found), load_diluted=more and found.relieved)


def _no_larger_cache(change: ActiveChange, world: World) -> str | None:
    """Return why a change for a larger KV cache is for nothing, by what its pods export; None if it is not known to be.

    How much memory an engine sets aside is inferred when the change is proposed: its pods tell.
    """
    before, exported = change.kv_cache_tokens, _cache_of_trial(change, world)
    if before is None or exported is None or _has_larger_cache(change, world):
        return None
    return f"the KV cache is not over {NOISE:.0%} larger: {exported:,.0f} tokens, {before:,.0f} before"


def _has_larger_cache(change: ActiveChange, world: World) -> bool:
    """Whether a change for a larger KV cache is known to have one."""
    before, exported = change.kv_cache_tokens, _cache_of_trial(change, world)
    return before is not None and exported is not None and exported > before * (1 + NOISE)


def _cache_of_trial(change: ActiveChange, world: World) -> float | None:
    return max((engine.pool.tokens for engine in _tried(change, world).engines if engine.pool.tokens), default=None)


def _anew_since_replicas_came(change: ActiveChange, world: World) -> ActiveChange:
    """Restart the analysis after a scale-out: earlier windows were measured with fewer replicas.

    Each replica then has less load than before the change, and a lighter load proves no improvement: unless the load
    grows with the fleet, the analysis ends without a judgement. No pod runs the old value to compare with.
    Limited to twice the longest analysis in total, so that pods that come and go cannot prolong it for ever.
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
    """Canary against baseline if the old configuration still serves, else `before` against now, corrected for load."""
    gpus = change.from_.tensor_parallel_size or 1, change.to.tensor_parallel_size or 1
    # A baseline pod that lost its node, or that nobody asks, must not keep a kept change from being judged.
    mute = change.promoted and not any(map(is_complete, analysis.reference))
    if not analysis.reference or mute:
        return compare_periods(
            before, analysis.last, targets=world.targets, target=change.target, final=final, gpus=gpus
        )
    return compare(
        _pairs(analysis),
        targets=world.targets,
        target=change.target,
        final=final,
        gpus=gpus,
        missed_before=_missed_before(change, world),
        larger_cache=_has_larger_cache(change, world),
    )


def _missed_before(change: ActiveChange, world: World) -> frozenset[ChangeTarget]:
    """The objectives that were missed, as far as it speaks for the change that the extra pods of its trial ended it."""
    missed = {each for each in LATENCIES if _missed(each, change.before, targets=world.targets)}
    lowers = change.knob == Knob.MAX_NUM_SEQS and not raises_slots(change)
    if lowers and not _has_larger_cache(change, world):
        missed.discard(ChangeTarget.TTFT)  # fewer slots alone cannot end a queue
    # Behind a queue that there was before, the bake would not see that they make it longer. Where more replicas end
    # late tokens as well, slots that were lowered for them are raised again to save one.
    proper = lowers and world.fixed_replicas and mean_queue(change.before) < 1
    if not proper and change.knob != Knob.TENSOR_PARALLEL_SIZE:
        missed.discard(ChangeTarget.TPOT)
    return frozenset(missed)


def _missed(objective: ChangeTarget, windows: Sequence[Measurement], *, targets: Targets) -> bool:
    levels = [level for window in windows if (level := level_of(window, objective)) is not None]
    return bool(levels) and median(levels) > target_of(objective, targets).seconds


def _before(change: ActiveChange) -> Sequence[Measurement]:
    # A change that an older version began took only its baseline with it.
    return change.before or ((change.baseline,) if change.baseline is not None else ())


def with_unwatched_time(change: ActiveChange, world: World) -> ActiveChange:
    """Extend the bake by time in which none of its windows was measured: without a leader, harm goes unseen."""
    looked = _last_look(_begun(change.bake or Bake(), change, now=world.now), now=world.now)
    return _without_unseen(change, looked=looked, window=timedelta(seconds=world.observation.window), now=world.now)


def bake_harms(change: ActiveChange, world: World) -> tuple[ActiveChange, str]:
    """Measure one more window of the bake. The text says what regressed; it is empty if nothing did.

    Only a lasting regression ends a bake: the analysis has already shown the improvement.
    """
    bake = _begun(change.bake or Bake(), change, now=world.now)
    if world.now - _last_look(bake, now=world.now) < timedelta(seconds=world.observation.window):
        return change, ""
    bake = _with_window(bake, change, world)
    # During the trial its extra pods took load off each replica: compare with the load before the change.
    tested = change.analysis.reference[-MEASUREMENTS_LENGTH:] if change.analysis is not None else ()
    found = _compared(bake, change, world, before=change.before or tested or _before(change), final=False)
    harm = found.text if found.judgement is Judgement.REVERT else ""
    judged = found.judgement is not None and found.windows >= LOOKS[-1]
    if judged or len(bake.last) >= BAKE_LENGTH:
        # Judging again after every further window would find harm by chance: start a new comparison. Not before that:
        # where every second window has no data, or few requests, ten would never be enough.
        bake = Bake(started_at=world.now)
    return change.updated(bake=bake), harm


def _pairs(analysis: Analysis) -> list[Pair]:
    # An edited status may hold sides of different length: the newest belong together.
    sides = zip(reversed(analysis.last), reversed(analysis.reference), strict=False)
    return [Pair(candidate=candidate, reference=reference) for candidate, reference in sides][::-1]


def kept_reason(change: ActiveChange, world: World) -> str:
    """Why the change was kept, in one line."""
    if change.target is ChangeTarget.START:
        return "the engine starts and serves"
    if change.analysis is None:
        return _figures(change)
    return _told(change, _compared(change.analysis, change, world, before=_before(change), final=True))


def _told(change: ActiveChange, found: Comparison) -> str:
    return found.text if found.effects else f"{_figures(change)}: {found.text}"


def _figures(change: ActiveChange) -> str:
    """Before and after in one line."""
    before, after = shown_windows(change)
    if before is None or after is None:
        return "no measurements"
    parts = [
        f"{name} {_told_or_unknown(old)} -> {_told_or_unknown(new)}"
        for name, old, new in (
            ("TTFT", before.ttft_seconds, after.ttft_seconds),
            ("TPOT", before.tpot_seconds, after.tpot_seconds),
        )
    ]
    return ", ".join(parts)


def shown_windows(change: ActiveChange) -> tuple[Measurement | None, Measurement | None]:
    """Before and after as people see them: the newest window in which both sides were measured completely.

    The last window may lack requests although those before it decided; it is shown only if no complete one exists.
    For a canary, both are per pod and from the same window.
    """
    analysis = change.analysis or Analysis()
    if not analysis.reference:
        windows = [window for window in analysis.last if is_complete(window)] or analysis.last
        return change.baseline, windows[-1] if windows else None
    every = _pairs(analysis)
    pairs = [pair for pair in every if is_complete(pair.candidate) and is_complete(pair.reference)] or every
    return (pairs[-1].reference, pairs[-1].candidate) if pairs else (None, None)


def _begun(known: _Windows, change: ActiveChange, *, now: datetime) -> _Windows:
    """Set the start of the analysis if an edited status lost it: a start of "now" at every tick would never end."""
    return known.updated(started_at=known.started_at or change.state_since or now)


def _last_look(analysis: Analysis, *, now: datetime) -> datetime:
    # Windows must not overlap: one bad minute counted twice is not two bad minutes.
    return max((measured.at for measured in analysis.last), default=analysis.started_at or now)


def _without_unseen(change: ActiveChange, *, looked: datetime, window: timedelta, now: datetime) -> ActiveChange:
    """Extend the deadline by the time without any leader (one died, another took over)."""
    unseen = now - looked - window
    if unseen <= window or change.deadline is None:
        return change
    return change.updated(deadline=change.deadline + unseen)


def _with_window(analysis: _Windows, change: ActiveChange, world: World) -> _Windows:
    """Add one window: of both sides if pods with the old configuration still serve."""
    found, reference = _measured(change, world)
    verdict = judge_window(found, before=reference or change.baseline, targets=world.targets, target=change.target)
    return _counted(analysis, verdict).updated(
        last=(*analysis.last, found), reference=() if reference is None else (*analysis.reference, reference)
    )


def _tried(change: ActiveChange, world: World) -> Observation:
    """The pods with the new configuration: those of the service in place, and once a canary is promoted."""
    canary = None if reaches_the_service(change) else world.variants.canary
    return world.observation if canary is None else canary.observation


def _measured(change: ActiveChange, world: World) -> tuple[Measurement, Measurement | None]:
    """The same window of the new and of the old configuration; None if no pod runs the old one."""
    found, baseline = measure_per_pod(_tried(change, world), targets=world.targets), world.variants.baseline
    if change.strategy is StrategyType.IN_PLACE:
        return found, None
    if change.baseline_ref is not None and baseline is not None:
        old: Observation | None = baseline.observation
    else:
        old = None if change.promoted else world.observation
    return found, None if old is None else measure_per_pod(old, targets=world.targets)


def _counted(analysis: _Windows, verdict: WindowVerdict) -> _Windows:
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
