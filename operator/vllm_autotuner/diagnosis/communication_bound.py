"""CommunicationBound: at this tensor-parallel size a step is no faster than it was on fewer GPUs."""

from dataclasses import dataclass
from typing import ClassVar, Final

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.diagnosis.case import Case, mean_batch, tpot_reading
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.observation.reading import Measured

__all__ = ["GAIN", "CommunicationBound", "Slower", "no_faster_than_fewer_gpus"]

GAIN: Final = Threshold(
    limit=0.9,
    unit="of the step time at the smaller size",
    reason="a smaller gain is within noise (10 %); a communication share of 15 % is already too much",
    source="our choice between guardrail G08 (10 % noise) and field report F4 (sweep, Llama-70B on 4 A100)",
)
"""A step at the larger tensor-parallel size must take less than this share of one at the smaller size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """The mean step time now (seconds) and at the lower degree for the same batch size."""

    degree: int
    lower_degree: int
    batch: float
    now: float
    before: float
    covered: bool
    """Whether the lower degree was ever seen at this batch."""


def no_faster_than_fewer_gpus(case: Case) -> Slower | None:
    """Compare with the nearest lower degree that this service ran at; None without one, or if more GPUs helped."""
    degree, measured = case.knobs.tensor_parallel_size, case.observation.itl.mean
    lower = max((known for known in case.learned if degree is not None and known < degree), default=None)
    batch = mean_batch(case)
    if degree is None or lower is None or not isinstance(measured, Measured) or batch < 1:
        return None
    model = case.learned[lower]
    before = model.predict(batch)
    if measured.value < GAIN.limit * before:
        return None
    return Slower(
        degree=degree,
        lower_degree=lower,
        batch=batch,
        now=measured.value,
        before=before,
        covered=model.covers(batch),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationBound:
    """TPOT is over its objective, and a step is no faster than it was at a smaller tensor-parallel size.

    Requires history: the class is never named for a service that never ran at a smaller size, because one measurement
    cannot separate slow links from slow memory.
    """

    diagnosis: ClassVar = DiagnosisClass.COMMUNICATION_BOUND
    gain: Threshold = GAIN

    def judge(self, case: Case) -> Finding:
        """Hold when TPOT misses its objective and more GPUs did not make it better."""
        reading, target = tpot_reading(case), case.targets.tpot
        if not isinstance(reading, Measured) or reading.value <= target.seconds:
            return Fails()
        found = no_faster_than_fewer_gpus(case)
        if found is None:
            return Fails()
        message = (
            f"A step takes {told_seconds(found.now)} on {found.degree} GPUs at batch size {found.batch:.0f}; it took "
            f"{told_seconds(found.before)} on {found.lower_degree}. Communication cancels the gain of more GPUs."
        )
        return Holds(
            message=message,
            evidence=(
                case.tpot_evidence(),
                Evidence(
                    name="step time, ratio to the smaller tensor-parallel size",
                    value=round(found.now / found.before, 3),
                    unit="ratio",
                    threshold=self.gain.limit,
                    window=case.observation.window,
                    note=f"tensor-parallel-size {found.lower_degree} before, {found.degree} now",
                ),
            ),
            confidence=Confidence.MEDIUM if found.covered else Confidence.LOW,
        )
