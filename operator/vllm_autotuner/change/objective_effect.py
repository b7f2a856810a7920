"""The effect of a change on one objective, and when it counts as hurt, safe or helped. Used by both comparisons.

With m the margin of an objective (`MARGINS`), it is
  hurt    when the interval of candidate / reference lies above 1 + m, and the candidate's level over the target;
  safe    when it ends below 1 + m, or when the interval of the candidate's level ends below the target by `INSIDE`;
  helped  when it ends below 1, and the centre is better by m, or inside a target that the reference misses;
  cured   when it is helped, the interval of the reference's level lies above the target, the candidate's centre below;
  inside  when the interval of the candidate's level ends below the target.
If the means are known, they must agree: a quantile is only known to its bucket, so near an edge it moves by a sixth for
a difference of 2 %, and hides or invents harm. Hurt: the mean is worse by half of m as well. Safe: the interval of the
mean's ratios ends below 1 + m as well, or its growth leaves the reference's level inside the target. Inside: the
reference's level, with all that the mean may have grown by, is below the target as well.
Both hurt and safe need proof; without proof of either, the effect is unclear. If another objective is cured, or helped
while more tokens are generated, `inside` is enough: a rollback would certainly miss that objective again, by more.
Separate from how the ratios are obtained: `comparison` takes them from the same windows of candidate and reference,
`before_after` from different times of one service.
Must not: look at windows, or count them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.change.rejections import Rejections
from vllm_autotuner.change.signed_rank import Interval
from vllm_autotuner.change.verdict import Judgement
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.observation.noise import NOISE

__all__ = ["Merits", "ObjectiveEffect", "Question", "concluded", "latency_effect", "target_of", "throughput_effect"]

INSIDE: Final = 0.05
"""Reserve below a target, as a share of it, that makes an objective safe regardless of the reference. Our choice: half
of `NOISE`, because the bound must keep it and not only the centre."""

MARGINS: Final = {ChangeTarget.TTFT: 0.25, ChangeTarget.TPOT: NOISE, ChangeTarget.THROUGHPUT: NOISE}
"""Margin within which the candidate counts as good as the reference. Our choice for TTFT, by the error rates of
`benchmarks/verdict.py`: between identical pods its p95 differs by a quarter from window to window, and by far more
where requests queue, so 10 windows cannot resolve 10 %."""

MANY_TIMES: Final = 3.0
"""Ratio from which it is shown as a factor instead of a percentage, as +37229% is hard to read."""
_WELL_INSIDE: Final = math.log1p(-INSIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The parameters of a comparison."""

    targets: Targets
    target: ChangeTarget
    """What the change is meant to improve."""
    final: bool
    """No more windows will come."""
    gpus: tuple[int, int]
    """Of one replica of the reference and of the candidate."""
    missed_before: frozenset[ChangeTarget] = frozenset()
    """The objectives that were missed before the change: the extra pods of a trial take load from the reference."""
    larger_cache: bool = False
    """The change is for a larger KV cache, and the pods of its trial export one."""

    @property
    def gpu_ratio(self) -> float:
        """GPUs of the candidate relative to the reference."""
        return self.gpus[1] / self.gpus[0]

    def aims_at(self, latency: ChangeTarget) -> bool:
        """Whether the change is kept for this latency: most of what cures a queue saves GPUs as well."""
        return self.target in (latency, ChangeTarget.GPUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merits:
    """The proven advantages of the candidate for one objective. All false without windows that can prove them."""

    safe: bool = False
    as_good: bool = False
    """Safe by the ratio, whatever reserve the objective has."""
    helped: bool = False
    cured: bool = False
    inside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveEffect:
    """The effect of the candidate on one objective."""

    objective: ChangeTarget
    candidate: float
    """Its level, the centre over the windows: seconds, or tokens per second."""
    reference: float
    ratio: float
    """Candidate / reference: 0.8 is a fifth less."""
    low: float
    """Lower bound of the ratio at the level of the look; 0 if unknown."""
    high: float
    """Upper bound of the ratio; infinite if unknown."""
    hurt: bool
    """A proven regression: overrides the merits."""
    merits: Merits

    def told(self) -> str:
        """Levels and ratio with its bounds, in words. Worked: `TTFT 508 ms -> 32 ms (-93%, -95% to -89%)`."""
        if self.objective is ChangeTarget.THROUGHPUT:
            levels = f"{self.reference:.0f} -> {self.candidate:.0f} tokens/s"
        else:
            levels = f"{told_seconds(self.reference)} -> {told_seconds(self.candidate)}"
        bounds = "" if math.isinf(self.high) else f", {_change(self.low)} to {_change(self.high)}"
        return f"{self.objective.value} {levels} ({_change(self.ratio)}{bounds})"


def concluded(
    effects: Sequence[ObjectiveEffect], *, rejected: Rejections | None, question: Question
) -> tuple[Judgement, str]:
    """Keep if the target is helped and all else is safe, Revert if any objective is hurt; with the reason in words.

    If the target is cured, or was missed and is helped while throughput is too, all else need only be inside. A
    candidate that saves GPUs must only be safe, or cure either latency in that way: it is asked for no more than one
    that only cures. One against a queue that is gone on both sides must only be safe as well, because the extra pods
    of the trial drained it and will not stay; TPOT must then be as good, too, even if its objective has reserve,
    unless the candidate has shown the larger KV cache that it is for. `rejected`: None if unknown.
    """
    if hurt := [effect.objective.value for effect in effects if effect.hurt]:
        return Judgement.REVERT, f"{' and '.join(hurt)} regressed"
    if rejected is not None and rejected.hurt:
        return Judgement.REVERT, "rejects more requests"
    latencies = [effect for effect in effects if effect.objective is not ChangeTarget.THROUGHPUT]
    serves_all = rejected is None or rejected.safe
    if serves_all and latencies and all(effect.merits.safe for effect in latencies):
        if any(effect.merits.helped for effect in effects if effect.objective is question.target):
            return Judgement.KEEP, f"{question.target.value} improved"
        if question.gpu_ratio < 1 or question.target is ChangeTarget.GPUS:
            return Judgement.KEEP, "no regression, and fewer GPUs are needed"
        if _is_relieved(effects, question=question):
            ended = "drained the queue" if question.target is ChangeTarget.TTFT else "ended the late tokens"
            return Judgement.KEEP, f"no regression; the extra pods of the trial {ended}"
    aims = [each for each in latencies if question.aims_at(each.objective)]
    if serves_all and all(effect.merits.safe or effect.merits.inside for effect in latencies):
        if cured := [each.objective.value for each in aims if each.merits.cured]:
            return Judgement.KEEP, f"{cured[0]} improved and now meets its objective"
        # More in all: throughput helps by the GPU, and fewer GPUs may generate less.
        tokens = [each for each in effects if each.objective is ChangeTarget.THROUGHPUT]
        more = any(each.merits.helped and each.low > 1 for each in tokens)
        missed = [each for each in aims if each.reference > target_of(each.objective, question.targets).seconds]
        if more and (helped := [each.objective.value for each in missed if each.merits.helped]):
            return Judgement.KEEP, f"{helped[0]} improved, and more tokens are generated"
    return Judgement.INCONCLUSIVE, "neither better nor worse"


def _is_relieved(effects: Sequence[ObjectiveEffect], *, question: Question) -> bool:
    """Whether the extra pods of the trial ended what the candidate is for, and it is as fast or holds more."""
    if question.target not in question.missed_before or question.gpu_ratio != 1:
        return False
    found = {effect.objective: effect for effect in effects}
    target, tokens = found.get(question.target), found.get(ChangeTarget.TPOT)
    if target is None or tokens is None:
        return False
    relieved = target.reference <= target_of(question.target, question.targets).seconds
    return relieved and (tokens.merits.as_good or question.larger_cache)


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

    `mean`: candidate / reference of the means; None if unknown. `likely`: the upper bound of `ratio` at
    `comparison.LIKELY`, which is enough if the bound of the mean is safe as well. `theirs` is at `LIKELY`, too.
    A candidate with more GPUs only helps if the reference misses the objective, or all pods did before the change.
    """
    seconds, margin = target_of(objective, question.targets).seconds, math.log1p(MARGINS[objective])
    over, missed = ours.estimate > 0, theirs.estimate > 0
    enough = ratio.estimate <= -margin or (missed and not over)
    wanted = question.gpu_ratio <= 1 or missed or objective in question.missed_before
    helped = ratio.high < 0 and enough and wanted
    well_inside, as_good, worse = ours.high < _WELL_INSIDE, ratio.high < margin, ratio.low > margin
    inside = ours.high < 0
    if mean is not None:
        well_inside = well_inside and theirs.estimate + mean.estimate < _WELL_INSIDE
        as_good = likely < margin and mean.high < margin
        worse = worse and mean.estimate > margin / 2
        inside = inside and theirs.estimate + mean.high < 0
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
            as_good=as_good,
            helped=helped,
            cured=helped and theirs.low > 0 and not over,
            inside=inside,
        ),
    )


def throughput_effect(*, ratio: Interval, ours: float, theirs: float, question: Question) -> ObjectiveEffect:
    """Judge tokens per second and GPU. Levels in tokens per second, `ratio` in logarithms.

    Never hurt: fewer tokens per second do no harm while the latencies are safe.
    """
    cost, margin = math.log(question.gpu_ratio), math.log1p(MARGINS[ChangeTarget.THROUGHPUT])
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
        case ChangeTarget.THROUGHPUT | ChangeTarget.GPUS | ChangeTarget.START:
            raise ValueError(f"{objective.value} has no service level")


def _change(ratio: float) -> str:
    """A ratio in words. Worked: +12%, and 370x for large ones."""
    return f"{ratio - 1:+.0%}" if ratio < MANY_TIMES else f"{ratio:.0f}x"
