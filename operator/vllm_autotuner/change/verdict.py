"""Good or bad, on measured TTFT and TPOT: one window at a time, then all of them.

Before/after in place: the load may have moved in between, so a window only counts as good when nothing is hurt and the
target of the change is clearly better or met. Missing data is evidence for nothing.
Must not: know how a change came about, or undo it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from statistics import median
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.status import ChangeTarget, Measurement
from vllm_autotuner.diagnosis.case import Case, tpot_reading
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.reading import number
from vllm_autotuner.planning.ranking import NOISE, Effect, best

__all__ = ["FEWEST_WINDOWS", "Judgement", "WindowVerdict", "conclude", "is_baseline", "judge_window", "measure"]

FEWEST_WINDOWS: Final = 3
"""Conclusive windows before a verdict. Our choice: one may be chance, three in a row are a state."""


class WindowVerdict(StrEnum):
    """What one window says."""

    GOOD = "Good"
    BAD = "Bad"
    INCONCLUSIVE = "Inconclusive"
    NO_DATA = "NoData"


class Judgement(StrEnum):
    """What all windows say together."""

    KEEP = "Keep"
    REVERT = "Revert"
    INCONCLUSIVE = "Inconclusive"


def measure(observation: Observation, *, targets: Targets) -> Measurement:
    """Reduce an observation to what a verdict needs. Numbers that are not known stay None."""
    case = Case(observation=observation, targets=targets, knobs=EngineKnobs())
    last = [engine.moments[-1] for engine in observation.engines]
    return Measurement(
        at=datetime.fromtimestamp(observation.at, tz=UTC),
        ttft_seconds=_rounded(number(observation.ttft.quantile(targets.ttft.quantile))),
        tpot_seconds=_rounded(number(tpot_reading(case))),
        requests_per_second=_rounded(observation.finished_per_second),
        tokens_per_second=_rounded(observation.generated_per_second),
        running=sum(moment.running for moment in last) if last else None,
        waiting=sum(moment.waiting for moment in last) if last else None,
    )


def is_baseline(measurement: Measurement) -> bool:
    """Whether a later measurement can be compared with this one."""
    known = (measurement.ttft_seconds, measurement.tpot_seconds, measurement.tokens_per_second)
    return None not in known


def judge_window(
    after: Measurement, *, before: Measurement | None, targets: Targets, target: ChangeTarget | None
) -> WindowVerdict:
    """Compare one window with the baseline."""
    if after.ttft_seconds is None or after.tpot_seconds is None:
        return WindowVerdict.NO_DATA
    if before is None or before.ttft_seconds is None or before.tpot_seconds is None:
        return WindowVerdict.INCONCLUSIVE
    ttft = (before.ttft_seconds, after.ttft_seconds, targets.ttft)
    tpot = (before.tpot_seconds, after.tpot_seconds, targets.tpot)
    if _hurt(*ttft) or _hurt(*tpot):
        return WindowVerdict.BAD
    match target:
        case ChangeTarget.TTFT:
            helped = _helped(*ttft)
        case ChangeTarget.TPOT:
            helped = _helped(*tpot)
        case ChangeTarget.THROUGHPUT | None:
            tokens = (before.tokens_per_second, after.tokens_per_second)
            helped = tokens[0] is not None and tokens[1] is not None and tokens[1] > tokens[0] * (1 + NOISE)
    return WindowVerdict.GOOD if helped else WindowVerdict.INCONCLUSIVE


def conclude(
    measurements: Sequence[Measurement],
    *,
    good: int,
    bad: int,
    before: Measurement | None,
    targets: Targets,
    gpus: tuple[int, int] = (1, 1),
) -> Judgement:
    """Keep only what most windows call good *and* what is better on the whole than the baseline.

    `gpus`: of one replica, before and after. The same replicas serve on both sides of a change in place.
    """
    if bad > 0 and bad >= good:
        return Judgement.REVERT
    if before is None or good < FEWEST_WINDOWS:
        return Judgement.INCONCLUSIVE
    sides = {"before": _effect([before], gpus=gpus[0]), "after": _effect(measurements, gpus=gpus[1])}
    known = {name: effect for name, effect in sides.items() if effect is not None}
    if len(known) < len(sides):
        return Judgement.INCONCLUSIVE
    return Judgement.KEEP if best(known, targets=targets, current="before") == "after" else Judgement.REVERT


def _hurt(before: float, after: float, target: Target) -> bool:
    """Over its objective, and worse than before by more than noise. Inside the objective nothing is hurt."""
    return after > target.seconds and after > before * (1 + NOISE)


def _helped(before: float, after: float, target: Target) -> bool:
    """Clearly better than before, or inside an objective that was missed."""
    return after < before * (1 - NOISE) or (after <= target.seconds < before)


def _effect(measurements: Sequence[Measurement], *, gpus: int) -> Effect | None:
    ttft = [m.ttft_seconds for m in measurements if m.ttft_seconds is not None]
    tpot = [m.tpot_seconds for m in measurements if m.tpot_seconds is not None]
    tokens = [m.tokens_per_second for m in measurements if m.tokens_per_second is not None]
    if not (ttft and tpot and tokens):
        return None
    return Effect(ttft=median(ttft), tpot=median(tpot), tokens_per_second=median(tokens), gpus=gpus)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)
