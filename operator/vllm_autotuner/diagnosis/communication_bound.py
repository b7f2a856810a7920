"""CommunicationBound: at this tensor-parallel degree tokens come no faster than they did on fewer GPUs."""

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
    unit="of the step time at the lower degree",
    reason="what more GPUs gain less than this is noise, and F4 calls a communication share of 15 % too much",
    source="our choice between G08 (10 % noise) and field guide F4",
)
"""A step at the higher degree must take less than this share of one at the lower degree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """A step now (seconds, mean) and what the lower degree took at the same batch."""

    degree: int
    lower_degree: int
    batch: float
    now: float
    before: float
    covered: bool
    """Whether the lower degree was ever seen at this batch."""


def no_faster_than_fewer_gpus(case: Case) -> Slower | None:
    """Compare with the nearest lower degree that this service ran at; None without one, or when more GPUs did help."""
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
    """TPOT is over its objective, and the step is no faster than this service's own at a lower degree.

    Needs a history: a service that never ran at a lower degree is not called so, because one measurement cannot tell
    a slow link from slow memory.
    """

    diagnosis: ClassVar = DiagnosisClass.COMMUNICATION_BOUND
    gain: Threshold = GAIN

    def judge(self, case: Case) -> Finding:
        """Hold when more GPUs made a missed objective no better."""
        reading, target = tpot_reading(case), case.targets.tpot
        if not isinstance(reading, Measured) or reading.value <= target.seconds:
            return Fails()
        found = no_faster_than_fewer_gpus(case)
        if found is None:
            return Fails()
        message = (
            f"A step takes {told_seconds(found.now)} on {found.degree} GPUs at a batch of {found.batch:.0f}; on "
            f"{found.lower_degree} it took {told_seconds(found.before)}. Communication eats what the GPUs add."
        )
        return Holds(
            message=message,
            evidence=(
                case.tpot_evidence(),
                Evidence(
                    name="step time over that at the lower degree",
                    value=round(found.now / found.before, 3),
                    unit="ratio",
                    threshold=self.gain.limit,
                    window=case.observation.window,
                    note=f"tensor parallel {found.lower_degree} before, {found.degree} now",
                ),
            ),
            confidence=Confidence.MEDIUM if found.covered else Confidence.LOW,
        )
