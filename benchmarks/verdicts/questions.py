"""What is asked of the verdict: which effect the candidate has, what the change was for, and when a Keep is harm.

Must not: draw noise, or judge.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.verdicts.noise import Effects, Noise, drawn
from benchmarks.verdicts.rates import Rates, objectives, verdict_of
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.change.comparison import LOOKS
from vllm_autotuner.change.verdict import Judgement

__all__ = ["EFFECTS", "FEWEST", "QUESTIONS", "TIGHTNESS", "WINDOWS", "Answer", "Question", "answer"]

WINDOWS: Final = 10
"""What an analysis keeps at most, and what its default of 5 minutes sees in windows of 30 s."""
FEWEST: Final = LOOKS[0]
"""What an analysis of 5 minutes sees where Prometheus scrapes every 15 s: then a window is stretched to 60 s, and it
waits for the windows of the first look."""
TIGHTNESS: Final = (0.7, 1.5)
"""Objective over what the reference does, drawn log-evenly: from missed by a good deal to met with room."""
EFFECTS: Final = (-0.3, -0.25, -0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
"""Of the latency that the question is about: -0.3 is 30 % less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A kind of change. `ttft` and `tpot`: times the reference, as a base for the effect on `about`."""

    name: str
    told: str
    about: ChangeTarget
    target: ChangeTarget
    ttft: float = 1.0
    tpot: float = 1.0
    gpus: int = 1
    """Of the candidate, where the reference has one."""
    relieved: bool = False
    """The objective was missed before the change, and the extra pods of the trial put the reference in time."""

    @property
    def tightness(self) -> tuple[float, float]:
        """Objective over what the reference does: from and to."""
        return (1.0, TIGHTNESS[1]) if self.relieved else TIGHTNESS

    def effects(self, effect: float) -> Effects:
        """What the candidate does when the latency in question changes by `effect`."""
        of_ttft, of_tpot = (effect, 0.0) if self.about is ChangeTarget.TTFT else (0.0, effect)
        return Effects(ttft=self.ttft * (1 + of_ttft), tpot=self.tpot * (1 + of_tpot))


QUESTIONS: Final = (
    Question(
        name="tpot",
        told="a change for TPOT; TTFT stays",
        about=ChangeTarget.TPOT,
        target=ChangeTarget.TPOT,
    ),
    Question(
        name="ttft_paid_with_tpot",
        told="a change for TTFT, which it truly halves; TPOT pays",
        about=ChangeTarget.TPOT,
        target=ChangeTarget.TTFT,
        ttft=0.5,
    ),
    Question(
        name="ttft",
        told="a change for TTFT; TPOT stays",
        about=ChangeTarget.TTFT,
        target=ChangeTarget.TTFT,
    ),
    Question(
        name="tpot_with_twice_the_gpus",
        told="twice the GPUs for a TPOT that was missed before, and that the pods of the trial put in time",
        about=ChangeTarget.TPOT,
        target=ChangeTarget.TPOT,
        gpus=2,
        relieved=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The verdicts on one effect: all of them, and those where the candidate truly breaks an objective by it."""

    effect: float
    rates: Rates
    breaking: Rates

    @property
    def promoted_inside(self) -> float:
        """The part of all that was kept and breaks no objective."""
        kept = self.rates.count(Judgement.KEEP) - self.breaking.count(Judgement.KEEP)
        return kept / self.rates.total if self.rates.total else 0.0


def answer(
    question: Question,
    *,
    effect: float,
    noises: Sequence[Noise],
    trials: int,
    source: np.random.Generator,
    windows: int = WINDOWS,
) -> Answer:
    """Judge `trials` candidates with this effect, each under noise and objectives drawn anew."""
    found = Answer(effect=effect, rates=Rates(), breaking=Rates())
    effects, (low, high) = question.effects(effect), question.tightness
    missed = frozenset({question.about}) if question.relieved else frozenset()
    for _ in range(trials):
        noise = noises[int(source.integers(len(noises)))]
        tight = np.exp(source.uniform(math.log(low), math.log(high), size=2)).tolist()
        ttft, tpot = noise.centre
        targets = objectives(ttft=ttft * tight[0], tpot=tpot * tight[1])
        pairs = drawn(noise, effects=effects, windows=windows, source=source)
        verdict = verdict_of(pairs, targets=targets, target=question.target, gpus=question.gpus, missed_before=missed)
        found.rates.add(verdict, service=noise.seed)
        if (effects.ttft > 1 and effects.ttft > tight[0]) or (effects.tpot > 1 and effects.tpot > tight[1]):
            found.breaking.add(verdict, service=noise.seed)
    return found
