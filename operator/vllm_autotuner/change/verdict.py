"""Measures one window of a change and rates that single window, as shown in status.

The verdict on the change uses all windows and is in `comparison` and `before_after`.
Must not: decide. Missing data is no evidence.
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
    """The rating of one window."""

    GOOD = "Good"
    BAD = "Bad"
    INCONCLUSIVE = "Inconclusive"
    NO_DATA = "NoData"


class Judgement(StrEnum):
    """The verdict of all windows together."""

    KEEP = "Keep"
    REVERT = "Revert"
    INCONCLUSIVE = "Inconclusive"


def measure(observation: Observation, *, targets: Targets) -> Measurement:
    """Reduce an observation to the numbers of a verdict. Unknown numbers stay None."""
    case = Case(observation=observation, targets=targets, knobs=EngineKnobs())
    last = [engine.moments[-1] for engine in observation.engines]
    return Measurement(
        at=datetime.fromtimestamp(observation.at, tz=UTC),
        ttft_seconds=number(observation.ttft.quantile(targets.ttft.quantile)),
        tpot_seconds=number(tpot_reading(case)),
        ttft_mean_seconds=number(observation.ttft.mean),
        tpot_mean_seconds=number(tpot_mean(case)),
        requests_per_second=observation.finished_per_second,
        rejected_per_second=observation.rejected_per_second,
        tokens_per_second=observation.generated_per_second,
        prompt_tokens_per_second=observation.prompted_per_second,
        running=sum(moment.running for moment in last) if last else None,
        waiting=sum(moment.waiting for moment in last) if last else None,
    )


def measure_per_pod(observation: Observation, *, targets: Targets) -> Measurement:
    """A measurement that is comparable between different numbers of pods: rates and counts are per pod."""
    found, pods = measure(observation, targets=targets), len(observation.reporting)
    if pods <= 1:
        return found

    def each(value: float | None) -> float | None:
        return None if value is None else value / pods

    return found.updated(
        requests_per_second=each(found.requests_per_second),
        rejected_per_second=each(found.rejected_per_second),
        tokens_per_second=each(found.tokens_per_second),
        prompt_tokens_per_second=each(found.prompt_tokens_per_second),
        running=each(found.running),
        waiting=each(found.waiting),
    )


def is_baseline(measurement: Measurement) -> bool:
    """Whether the measurement is complete enough to compare later ones with it."""
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
        case ChangeTarget.GPUS | ChangeTarget.START:
            # What it is for no window shows: one is good that does no harm.
            helped = True
    return WindowVerdict.GOOD if helped else WindowVerdict.INCONCLUSIVE


def _hurt(before: float, after: float, target: Target) -> bool:
    """Over its objective, and worse than before by more than noise. Within the objective nothing counts as hurt."""
    return after > target.seconds and after > before * (1 + NOISE)


def _helped(before: float, after: float, target: Target) -> bool:
    """Better than before by more than noise, or within an objective that was missed."""
    return after < before * (1 - NOISE) or (after <= target.seconds < before)
