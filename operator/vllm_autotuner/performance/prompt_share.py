"""Normalises windows with other prompt lengths to the current one, so that one step-time line fits all of them.

Separate from the line of `step_time`, which depends on the batch only. While prompts grow, windows of many length mixes
lie side by side, and a line through them has a base and a slope that fit none of them. The step time without sequences
is the same for all mixes, because the weights are read in every step.
Pure; numpy only. Must not: change windows of one mix, or of an engine that does not export prompt tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.non_negative import BETTER, non_negative
from vllm_autotuner.performance.outliers import outlying

__all__ = ["with_newest_prompts"]

FEWEST: Final = 5
"""Three parameters and two windows that can contradict."""
MOVED: Final = 2.0
"""Times the tenth least prompt tokens per output token that the tenth most must be: below it they have not changed, and
come and go by chance. Our choice, unmeasured."""
EXPLAINED: Final = 0.5
"""Part of what the line by batch misses (squares) that prompts may leave unexplained: else something else moved."""
MOMENTS_OF_NOW: Final = 2
"""Latest moments whose prompts are those of now: one alone may be chance, more are of before. Our choice."""
TOLD_APART: Final = 1e-3
"""Least singular value of the law's terms, each of length one: below it one of them stands for another."""
LEAST_LEFT: Final = 0.1
"""Part of a measured latency that stays, whatever prompts take from it: noise of a window makes none negative."""

FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Law:
    """itl = base + per_sequence * batch + per_prompt * batch * (prompt tokens per output token), seconds.

    Of a mixture of experts and the time to read those of a batch: its bend would be taken for prompts that are fewer in
    larger batches.
    """

    per_prompt: float
    missed: float
    """Sum of squared relative residuals."""


def with_newest_prompts(points: Sequence[StepPoint]) -> list[StepPoint]:
    """Return the points with the latencies that they would have had with the prompts of now.

    Every running sequence makes a token in a step, so prompts of r tokens per output token are batch * r tokens in it.
    Unchanged where prompts have not moved, explain little, or are not told.
    Worked: a step of 10 ms, 0.1 ms a sequence and 0.1 ms a prompt token: 20 sequences take 14 ms at one prompt token
    per output token and 22 ms at five. With the five of now, the first window says 22 ms.
    """
    shares = [point.prompts for point in points]
    known = [share for share in shares if share is not None]
    times = sorted({point.time for point in points if point.time is not None})
    if len(known) < max(FEWEST, len(points)) or len(times) < MOMENTS_OF_NOW or not _moved(known):
        return list(points)
    share = np.array(known)
    if not _are_told_apart(points, share):
        return list(points)
    law, line = _fitted(points, share), _fitted(points, np.zeros(len(points)))
    explains = law.missed <= EXPLAINED * line.missed and line.missed > BETTER * sum(point.tokens for point in points)
    if law.per_prompt <= 0 or not explains:
        return list(points)
    pairs = list(zip(points, known, strict=True))
    newest = [(point.tokens, each) for point, each in pairs if point.time in times[-MOMENTS_OF_NOW:]]
    now = sum(tokens * each for tokens, each in newest) / sum(tokens for tokens, _ in newest)
    return [_moved_to(now, point, each, law=law) for point, each in pairs]


def _moved_to(now: float, point: StepPoint, share: float, *, law: _Law) -> StepPoint:
    itl = point.itl + law.per_prompt * point.running * (now - share)
    return replace(point, itl=max(itl, LEAST_LEFT * point.itl), prompts=now)


def _moved(shares: Sequence[float]) -> bool:
    if max(shares) <= MOVED * min(shares):
        # Nothing between them is further apart, and numpy takes as long for two quantiles as a whole line does.
        return False
    low, high = np.quantile(np.array(shares), (0.1, 0.9))
    return bool(high > MOVED * low)


def _are_told_apart(points: Sequence[StepPoint], share: FloatArray) -> bool:
    """Whether batch and prompts differ enough for the law: of two different windows it has no parameters."""
    terms = _terms(points, share)
    return bool(np.linalg.svd(terms / np.linalg.norm(terms, axis=0), compute_uv=False)[-1] >= TOLD_APART)


def _terms(points: Sequence[StepPoint], share: FloatArray) -> FloatArray:
    """What each parameter is multiplied with, over the latency: (points, 3)."""
    batch, itl = np.array([point.running for point in points]), np.array([point.itl for point in points])
    terms: FloatArray = np.column_stack([np.ones(len(batch)), batch, batch * share]) / itl[:, None]
    return terms


def _read(points: Sequence[StepPoint]) -> list[FloatArray]:
    """What the time to read all experts is multiplied with, over the latency: of a mixture a column, else none."""
    if (experts := points[0].experts) is None:
        return []
    return [np.array([(1 - experts.unread**point.running) / point.itl for point in points])]


def _fitted(points: Sequence[StepPoint], share: FloatArray) -> _Law:
    """Fit by least squares on relative error, once more without the worst outliers; no parameter is negative."""
    weight = np.sqrt(np.array([point.tokens for point in points]))
    rows = np.column_stack([_terms(points, share), *_read(points)])
    kept = np.ones(len(rows), dtype=np.bool_)
    for _ in range(2):
        found = non_negative(rows[kept] * weight[kept, None], weight[kept])
        residual = np.abs(rows @ found - 1)
        kept = residual <= outlying(median(residual.tolist()))
        if kept.sum() < FEWEST:
            kept = np.ones(len(rows), dtype=np.bool_)
    return _Law(per_prompt=float(found[2]), missed=float(np.sum((np.minimum(residual, 1.0) * weight) ** 2)))
