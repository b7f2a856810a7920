"""Arms by the thousand: windows drawn from noise that was fitted to simulated arms without any difference.

Apart from `variants`, because this takes a millisecond where that takes minutes. Drawn for one case at a time:
  the ratio of the arms: the case's own standing difference between two pods, in either direction, and a deviation that
  remembers a part of the one before it (first-order, the part is estimated over all cases, its bias for short series
  corrected), with steps taken from the case's own deviations, TTFT and TPOT of one window together;
  the level of the reference: that of the same window.
Of each latency the quantile and the mean are drawn, all four of one window together.
Assumes that an effect multiplies a latency. Must not: judge, or know an objective.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import numpy as np

from benchmarks.verdicts.variants import Played
from vllm_autotuner.api.status import Measurement
from vllm_autotuner.change.comparison import Pair
from vllm_autotuner.change.measured_window import is_complete

__all__ = ["COLUMNS", "Effects", "Noise", "drawn", "fitted"]

FloatArray: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

COLUMNS: Final = ("ttft_seconds", "tpot_seconds", "ttft_mean_seconds", "tpot_mean_seconds")
"""Of a measurement: what is drawn of each arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What the candidate truly does: times the reference."""

    ttft: float = 1.0
    tpot: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How two arms of the same configuration differ in one case. Logarithms, with `COLUMNS`."""

    seed: int
    standing: FloatArray
    """Mean difference without its sampling error, shape (4,)."""
    deviations: FloatArray
    """Of each window from it, shape (windows, 4)."""
    levels: FloatArray
    """Of the reference in the same windows, shape (windows, 4)."""
    memory: FloatArray
    """Part of a deviation that the next window keeps, shape (4,)."""
    shapes: tuple[Pair, ...]
    """The same windows, for everything else that is measured."""
    length: timedelta

    @property
    def centre(self) -> tuple[float, float]:
        """The usual TTFT and TPOT of the reference, in seconds."""
        ttft, tpot = np.exp(np.median(self.levels[:, :2], axis=0)).tolist()
        return ttft, tpot


def fitted(played: Sequence[Played]) -> list[Noise]:
    """Fit cases that were played without a difference. Those with fewer than 8 windows with data are left out."""
    series = [(one, [pair for pair in one.pairs if is_complete(pair.candidate) and is_complete(pair.reference)])
              for one in played]  # fmt: skip
    series = [(one, pairs) for one, pairs in series if len(pairs) >= 8]
    ratios = [_logs([p.candidate for p in pairs]) - _logs([p.reference for p in pairs]) for _, pairs in series]
    memory = _memory([ratio - ratio.mean(axis=0) for ratio in ratios])
    return [
        Noise(
            seed=one.case.seed,
            standing=_shrunk(ratio, memory=memory),
            deviations=(ratio - ratio.mean(axis=0)) * np.sqrt(len(ratio) / (len(ratio) - 1)),
            levels=_logs([p.reference for p in pairs]),
            memory=memory,
            shapes=tuple(pairs),
            length=pairs[-1].candidate.at - pairs[-2].candidate.at,
        )
        for (one, pairs), ratio in zip(series, ratios, strict=True)
    ]


def _logs(windows: Sequence[Measurement]) -> FloatArray:
    levels = [[getattr(window, name) or np.nan for name in COLUMNS] for window in windows]
    found: FloatArray = np.log(levels)
    return found


def _shrunk(ratio: FloatArray, *, memory: FloatArray) -> FloatArray:
    """The mean, without what its windows make of it by chance: drawn windows have that chance once more."""
    mean: FloatArray = ratio.mean(axis=0)
    chance = ratio.var(axis=0, ddof=1) / len(ratio) * (1 + memory) / (1 - memory)
    kept: FloatArray = mean * np.sqrt(np.clip(1 - chance / np.maximum(mean**2, 1e-12), 0, 1))
    return kept


def _memory(deviations: Sequence[FloatArray]) -> FloatArray:
    """Mean lag-1 correlation over the cases; a series of n shows (1 + 4 r) / n too little (Kendall)."""
    shown = [(d[1:] * d[:-1]).sum(axis=0) / np.maximum((d**2).sum(axis=0), 1e-12) for d in deviations]
    lengths = np.mean([len(d) for d in deviations])
    found: FloatArray = np.clip((np.mean(shown, axis=0) + 1 / lengths) / (1 - 4 / lengths), 0.0, 0.9)
    return found


def drawn(noise: Noise, *, effects: Effects, windows: int, source: np.random.Generator) -> list[Pair]:
    """Return pairs of a candidate with these effects."""
    rows = source.integers(len(noise.deviations), size=windows)
    steps = noise.deviations[rows]
    keep = np.sqrt(1 - noise.memory**2)
    deviation = np.empty_like(steps)
    deviation[0] = steps[0]
    for index in range(1, windows):
        deviation[index] = noise.memory * deviation[index - 1] + keep * steps[index]
    side = 1 if source.integers(2) else -1
    ratio = side * (noise.standing + deviation) + np.log([effects.ttft, effects.tpot] * 2)
    theirs = noise.levels[rows]
    found = []
    for index, row in enumerate(rows.tolist()):
        shape = noise.shapes[row]
        # Who stands on the other side has the queue and the tokens of that side, too.
        ours, other = (shape.candidate, shape.reference)[::side]
        at = noise.shapes[0].candidate.at + index * noise.length
        found.append(
            Pair(
                candidate=_window(ours, at=at, levels=np.exp(theirs[index] + ratio[index])),
                reference=_window(other, at=at, levels=np.exp(theirs[index])),
            )
        )
    return found


def _window(shape: Measurement, *, at: datetime, levels: FloatArray) -> Measurement:
    return shape.updated(**{"at": at, **dict(zip(COLUMNS, levels.tolist(), strict=True))})
