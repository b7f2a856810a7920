"""DecodeBandwidthBound: TPOT misses its objective even for one or two sequences; no smaller batch helps."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.api.wording import told_apart, told_seconds
from vllm_autotuner.diagnosis.case import Case, late_from, mean_batch, tpot_reading
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.communication_bound import no_faster_than_fewer_gpus
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds, Unknown
from vllm_autotuner.diagnosis.prefill_bound import is_prefilling, prompts_dominate
from vllm_autotuner.observation.reading import Measured, number
from vllm_autotuner.performance.step_time import NoFit, fit_step_time

__all__ = ["DecodeBandwidthBound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBandwidthBound:
    """TPOT is over its objective at batch size 1 or 2, measured or by the step-time model's intercept."""

    diagnosis: ClassVar = DiagnosisClass.DECODE_BANDWIDTH_BOUND
    smallest_batch: Threshold = Threshold(
        limit=2, unit="sequences", reason="a smaller batch is not practical", source="design choice"
    )

    def judge(self, case: Case) -> Finding:
        """Hold when TPOT is over its objective and no batch is small enough to meet it."""
        target, reading = case.targets.tpot, tpot_reading(case)
        if not isinstance(reading, Measured):
            return Fails()
        limit = late_from(target, holding=self.diagnosis in case.holding)
        if reading.value <= limit:
            return Fails()
        itl, a_step = number(case.observation.itl.mean), case.observation.tokens_per_step
        if itl is not None and itl / a_step <= limit:
            # Finished requests also reflect the past; the inter-token latency reflects the current steps.
            return Fails()
        prefilling = any(is_prefilling(engine) for engine in case.engines) or prompts_dominate(case.engines)
        if no_faster_than_fewer_gpus(case) is not None or prefilling:
            # Steps with prompts in them are long, whatever the memory bandwidth.
            return Fails()
        batch = mean_batch(case)
        alone: float | None = None
        if batch > self.smallest_batch.limit:
            model = fit_step_time(case.observation.steps)
            if isinstance(model, NoFit):
                return Unknown(f"TPOT misses its objective at batch size {batch:.0f}; {model.why}")
            # Without the tail: it comes from bursts of the current batch, which a single sequence does not have.
            alone = model.predict(1) / a_step
            if alone <= target.seconds:
                return Fails()
            how = f"the model fitted to {model.points} windows predicts {told_seconds(alone)} for a single sequence"
            confidence = Confidence.HIGH if model.low <= self.smallest_batch.limit else Confidence.MEDIUM
        else:
            how, confidence = "there is no smaller batch to use", Confidence.HIGH
        if (case.knobs.tensor_parallel_size or 1) > 1 and confidence is Confidence.HIGH:
            # Communication between the GPUs looks the same until a lower degree has been measured.
            confidence = Confidence.MEDIUM
        now, wanted = told_apart(reading.value, target.seconds)
        message = (
            f"TPOT {target.label} is {now} at batch size {batch:.1f} (objective {wanted}); {how}. A single step is too "
            "slow."
        )
        return Holds(
            message=message,
            evidence=(
                case.tpot_evidence(),
                Evidence(
                    name="running, mean per engine",
                    value=round(batch, 2),
                    unit="sequences",
                    threshold=self.smallest_batch.limit,
                    window=case.observation.window,
                ),
                Evidence(
                    name="TPOT of a single sequence",
                    value=alone,
                    unit="s",
                    threshold=target.seconds,
                    note=how,
                ),
            ),
            confidence=confidence,
        )
