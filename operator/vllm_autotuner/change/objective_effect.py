"""What a change does to one objective, and when that counts as hurt, safe or helped. One rule for every comparison.

With m the margin of an objective (`MARGINS`), it is
  hurt    when the interval of candidate / reference lies above 1 + m, and the candidate's level over the target;
  safe    when it ends below 1 + m, or when the interval of the candidate's level ends below the target by `INSIDE`;
  helped  when it ends below 1, and the centre is better by m, or inside a target that the reference misses;
  cured   when it is helped, the reference misses the target, and the interval of the candidate's level ends below it;
  inside  when the centre of the candidate's level is below the target, and so is the reference's level with all that
          the mean may have grown by (where no mean is known: the interval of the candidate's level).
Where the means are known they must agree: a quantile lies somewhere in its bucket, so near an edge it moves by a sixth
for 2 % of difference, and hides or invents harm. Hurt: the mean is worse by half of m as well. Safe: the interval of
its ratios ends below 1 + m as well, or what it grew by leaves the reference's level inside the target.
Hurt and safe thus both have to be shown, and what shows neither is unclear. Beside a cure `inside` is enough: whoever
goes back for what is not quite shown misses the other objective for certain.
Apart from how ratios come about: `comparison` takes them from the same windows of two arms, `before_after` from
different times of one.
Must not: know windows, count them, or conclude anything about the change as a whole.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.change.measured_window import LATENCIES
from vllm_autotuner.change.rejections import Rejections
from vllm_autotuner.change.signed_rank import Interval
from vllm_autotuner.change.verdict import Judgement
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.observation.noise import NOISE

__all__ = ["Merits", "ObjectiveEffect", "Question", "concluded", "latency_effect", "target_of", "throughput_effect"]

INSIDE: Final = 0.05
"""Part of a target that must be left for an objective to count as safe whatever the reference does. Our choice: half of
`NOISE`, as the bound and not the centre has to keep it."""

MARGINS: Final = {ChangeTarget.TTFT: 0.25, ChangeTarget.TPOT: NOISE, ChangeTarget.THROUGHPUT: NOISE}
"""How much worse than the reference is still as good, and how much better is better. Our choice for TTFT, by the error
rates of `benchmarks/verdict.py`: between identical pods its p95 differs by 30 % from window to window, and where
requests queue by far more, so 10 windows cannot tell 10 %."""

MANY_TIMES: Final = 3.0
"""Ratio from which it is told as a factor: +37229% is read by nobody."""
_WELL_INSIDE: Final = math.log1p(-INSIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a comparison is to answer."""

    targets: Targets
    target: ChangeTarget
    """What the change is meant to improve."""
    final: bool
    """No more windows will come."""
    gpus: tuple[int, int]
    """Of one replica of the reference and of the candidate."""
    queued: bool = False
    """Requests came too late before the change: for the first token the objective was missed."""

    @property
    def dearer(self) -> float:
        """Times the GPUs."""
        return self.gpus[1] / self.gpus[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merits:
    """What of one objective speaks for the candidate. Each has to be shown: without windows that can, nothing does."""

    safe: bool = False
    helped: bool = False
    cured: bool = False
    inside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveEffect:
    """What the candidate does to one objective."""

    objective: ChangeTarget
    candidate: float
    """Its level, the centre over the windows: seconds, or tokens per second."""
    reference: float
    ratio: float
    """Candidate / reference: 0.8 is a fifth less."""
    low: float
    """The ratio is at least this, by the level of the look; 0 when nobody can tell."""
    high: float
    """The ratio is at most this; infinite when nobody can tell."""
    hurt: bool
    """It speaks against the candidate, whatever the merits."""
    merits: Merits

    def told(self) -> str:
        """For people: levels and ratio with its bounds."""
        if self.objective is ChangeTarget.THROUGHPUT:
            levels = f"{self.reference:.0f} -> {self.candidate:.0f} tokens/s"
        else:
            levels = f"{told_seconds(self.reference)} -> {told_seconds(self.candidate)}"
        bounds = "" if math.isinf(self.high) else f", {_change(self.low)} to {_change(self.high)}"
        return f"{self.objective.value} {levels} ({_change(self.ratio)}{bounds})"


def concluded(
    effects: Sequence[ObjectiveEffect], *, turned_away: Rejections | None, question: Question
) -> tuple[Judgement, str]:
    """Keep when the target is helped and all else safe, Revert when one is hurt; with the reason for people.

    Where the target is cured, all else need only be inside. What takes fewer GPUs must only be safe. So must what is
    meant against a queue that is gone in both arms: the pods of the trial took it away, and they will not stay. Then
    tokens must come as fast as well, whatever is left of their objective. `turned_away`: None where nobody knows.
    """
    if hurt := [effect.objective.value for effect in effects if effect.hurt]:
        return Judgement.REVERT, f"worse: {', '.join(hurt)}"
    if turned_away is not None and turned_away.hurt:
        return Judgement.REVERT, "worse: it turns requests away"
    latencies = [effect for effect in effects if effect.objective is not ChangeTarget.THROUGHPUT]
    serves_all = turned_away is None or turned_away.safe
    if serves_all and latencies and all(effect.merits.safe for effect in latencies):
        if any(effect.merits.helped for effect in effects if effect.objective is question.target):
            return Judgement.KEEP, f"better: {question.target.value}"
        if question.dearer < 1:
            return Judgement.KEEP, "as good on fewer GPUs"
        if _is_relieved(effects, question=question):
            return Judgement.KEEP, "as good, and the queue that it is meant for is gone beside the pods of the trial"
    cured = any(effect.merits.cured for effect in effects if effect.objective is question.target)
    if cured and serves_all and all(effect.merits.safe or effect.merits.inside for effect in latencies):
        return Judgement.KEEP, f"better: {question.target.value} meets the objective that was missed"
    return Judgement.INCONCLUSIVE, "neither better nor worse"


def _is_relieved(effects: Sequence[ObjectiveEffect], *, question: Question) -> bool:
    """Whether the trial itself has taken away what the candidate is meant to, and the candidate is as fast."""
    if not question.queued or question.target is not ChangeTarget.TTFT or question.dearer != 1:
        return False
    first, tokens = (next((one for one in effects if one.objective is each), None) for each in LATENCIES)
    if first is None or tokens is None:
        return False
    return first.reference <= question.targets.ttft.seconds and tokens.high < 1 + MARGINS[ChangeTarget.TPOT]


def latency_effect(
    objective: ChangeTarget,
    *,
    ratio: Interval,
    likely: float,
    mean: Interval | None,
    ours: Interval,
    theirs: Interval,
    question: Question,
) -> ObjectiveEffect:
    """Judge a latency. Intervals of logarithms: candidate / reference, candidate / target, reference / target.

    `mean`: candidate / reference of the means; None where they are not known. `likely`: the upper bound of `ratio` at
    `comparison.LIKELY`, which is enough where the mean is sure.
    A candidate that takes more GPUs only helps where the reference misses the objective.
    """
    seconds, margin = target_of(objective, question.targets).seconds, math.log1p(MARGINS[objective])
    over, missed = ours.estimate > 0, theirs.estimate > 0
    enough = ratio.estimate <= -margin or (missed and not over)
    helped = ratio.high < 0 and enough and (missed or question.dearer <= 1)
    well_inside, as_good, worse = ours.high < _WELL_INSIDE, ratio.high < margin, ratio.low > margin
    highest = ours.high if mean is None else theirs.estimate + mean.high
    if mean is not None:
        well_inside = well_inside and theirs.estimate + mean.estimate < _WELL_INSIDE
        as_good = likely < margin and mean.high < margin
        worse = worse and mean.estimate > margin / 2
    return ObjectiveEffect(
        objective=objective,
        candidate=math.exp(ours.estimate) * seconds,
        reference=math.exp(theirs.estimate) * seconds,
        ratio=math.exp(ratio.estimate),
        low=math.exp(ratio.low),
        high=math.exp(ratio.high),
        hurt=worse and over,
        merits=Merits(
            safe=as_good or well_inside,
            helped=helped,
            cured=helped and missed and ours.high < 0,
            inside=not over and highest < 0,
        ),
    )


def throughput_effect(*, ratio: Interval, ours: float, theirs: float, question: Question) -> ObjectiveEffect:
    """Judge tokens per second and GPU. Levels in tokens per second, `ratio` in logarithms.

    No hard objective: fewer tokens hurt nobody whose latencies are safe.
    """
    cost, margin = math.log(question.dearer), math.log1p(MARGINS[ChangeTarget.THROUGHPUT])
    return ObjectiveEffect(
        objective=ChangeTarget.THROUGHPUT,
        candidate=ours,
        reference=theirs,
        ratio=math.exp(ratio.estimate),
        low=math.exp(ratio.low),
        high=math.exp(ratio.high),
        hurt=False,
        merits=Merits(safe=True, helped=ratio.low > cost and ratio.estimate >= cost + margin),
    )


def target_of(objective: ChangeTarget, targets: Targets) -> Target:
    """The service level of a latency. Raises ValueError for throughput, which has none."""
    match objective:
        case ChangeTarget.TTFT:
            return targets.ttft
        case ChangeTarget.TPOT:
            return targets.tpot
        case ChangeTarget.THROUGHPUT:
            raise ValueError("throughput has no service level")


def _change(ratio: float) -> str:
    """A ratio as people say it: +12%, but 370 times."""
    return f"{ratio - 1:+.0%}" if ratio < MANY_TIMES else f"{ratio:.0f} times"
