"""PastTPOTKnee: TPOT misses its objective at the current batch size, and a smaller batch would meet it."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.api.wording import told_apart
from vllm_autotuner.diagnosis.case import Case, busy_batch, late_from, mean_batch, step_time, tpot_reading, tpot_tail
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds, Unknown
from vllm_autotuner.observation.reading import Measured
from vllm_autotuner.performance.knee import largest_batch_at_quantile
from vllm_autotuner.performance.step_time import NoFit, StepTime

__all__ = ["PastTPOTKnee"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTPOTKnee:
    """TPOT misses its objective at the current batch size; the step-time model predicts that a smaller batch meets it.

    Without a fitted model the class holds with low confidence.
    """

    diagnosis: ClassVar = DiagnosisClass.PAST_TPOT_KNEE
    smallest_batch: Threshold = Threshold(
        limit=4,
        unit="sequences",
        reason="below it a single step is too slow, not the batch too large",
        source="design choice: DecodeBandwidthBound at batch 1-2; our choice for the margin",
    )

    def judge(self, case: Case) -> Finding:
        """Hold when TPOT is over its objective with a batch that can shrink."""
        target = case.targets.tpot
        reading = tpot_reading(case)
        if not isinstance(reading, Measured):
            return Unknown(f"TPOT: {reading.why}")
        if reading.value <= late_from(target, holding=self.diagnosis in case.holding):
            return Fails()
        batch = mean_batch(case)
        if batch < self.smallest_batch.limit:
            return Fails()
        model = step_time(case.observation)
        match model:
            case StepTime():
                # The objective is a quantile, the model predicts the mean: apply the ratio of the two.
                knee = largest_batch_at_quantile(model, target=target.seconds, tail=tpot_tail(case), seen_at=batch)
                if knee is None:
                    return Fails()
                # The tail arises where the batch is largest.
                if knee >= max(busy_batch(engine) for engine in case.engines):
                    return Unknown(f"TPOT misses its objective, but the step-time model allows a batch size of {knee}")
                fit = f"the model fitted to {model.points} windows meets it at {knee}"
                confidence = Confidence.HIGH if model.covers(knee) else Confidence.MEDIUM
            case NoFit(why):
                knee, fit, confidence = None, f"no step-time model yet ({why})", Confidence.LOW
        now, wanted = told_apart(reading.value, target.seconds)
        message = f"TPOT {target.label} is {now} at batch size {batch:.0f} (objective {wanted}); {fit}."
        window = case.observation.window
        return Holds(
            message=message,
            evidence=(
                case.tpot_evidence(),
                Evidence(name="running, mean per engine", value=round(batch, 2), unit="sequences", window=window),
                Evidence(name="largest batch within the objective", value=knee, unit="sequences", note=fit),
            ),
            confidence=confidence,
        )
