"""What is measured in one window of a change, and what that one window says: for people, who watch it being tried.

What all windows say together, and with it what becomes of the change, is `comparison`'s and `before_after`'s.
Must not: decide. Missing data is evidence for nothing.
"""

from datetime import UTC, datetime
from enum import StrEnum

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.status import ChangeTarget, Measurement
from vllm_autotuner.diagnosis.case import Case, tpot_mean, tpot_reading
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.reading import number

__all__ = ["Judgement", "WindowVerdict", "is_baseline", "judge_window", "measure", "measure_per_pod"]


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
        ttft_mean_seconds=_rounded(number(observation.ttft.mean)),
        tpot_mean_seconds=_rounded(number(tpot_mean(case))),
        requests_per_second=_rounded(observation.finished_per_second),
        rejected_per_second=_rounded(observation.rejected_per_second),
        tokens_per_second=_rounded(observation.generated_per_second),
        running=sum(moment.running for moment in last) if last else None,
        waiting=sum(moment.waiting for moment in last) if last else None,
    )


def measure_per_pod(observation: Observation, *, targets: Targets) -> Measurement:
    """A measurement that can be compared with one of more or fewer pods: what adds up is divided by them."""
    found, pods = measure(observation, targets=targets), len({engine.key.pod for engine in observation.engines})
    if pods <= 1:
        return found

    def each(value: float | None) -> float | None:
        return None if value is None else value / pods

    return found.updated(
        requests_per_second=each(found.requests_per_second),
        rejected_per_second=each(found.rejected_per_second),
        tokens_per_second=each(found.tokens_per_second),
        running=each(found.running),
        waiting=each(found.waiting),
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


def _hurt(before: float, after: float, target: Target) -> bool:
    """Over its objective, and worse than before by more than noise. Inside the objective nothing is hurt."""
    return after > target.seconds and after > before * (1 + NOISE)


def _helped(before: float, after: float, target: Target) -> bool:
    """Clearly better than before, or inside an objective that was missed."""
    return after < before * (1 - NOISE) or (after <= target.seconds < before)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)
