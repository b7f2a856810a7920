"""ContextOversized: max-model-len is far above what requests need. Contributes only; never the primary class."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.observation.reading import number

__all__ = ["ContextOversized"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOversized:
    """The 99.9th percentile of prompt plus that of output, with a margin, is at most half of max-model-len.

    The sum of two percentiles is used as an upper estimate of the percentile of the sum. A V1 engine reserves nothing
    for max-model-len: lowering it bounds the worst case and frees no KV cache by itself (correction to F4).
    """

    diagnosis: ClassVar = DiagnosisClass.CONTEXT_OVERSIZED
    margin: Threshold = Threshold(
        limit=1.25,
        unit="times the p99.9",
        reason="leaves room for longer requests to come",
        source="our choice; field report F4: 3,000 -> 4,096",
    )
    used: Threshold = Threshold(
        limit=0.5,
        unit="of max-model-len",
        reason="lengths are usually powers of two: half is the next smaller one",
        source="field report F4 (sweep, Llama-70B on 4 A100)",
    )
    requests: Threshold = Threshold(
        limit=1000, unit="requests", reason="a p99.9 needs at least 1,000 requests", source="arithmetic"
    )

    def judge(self, case: Case) -> Finding:
        """Hold beside the bottleneck when the longest requests need less than half."""
        observation = case.observation
        lengths = [engine.pool.max_model_len for engine in case.engines if engine.pool.max_model_len is not None]
        longest = case.knobs.max_model_len or max(lengths, default=None)
        seen = min(observation.prompt_length.count, observation.output_length.count)
        prompt, output = (
            number(distribution.quantile(0.999))
            for distribution in (observation.prompt_length, observation.output_length)
        )
        if longest is None or prompt is None or output is None or seen < self.requests.limit:
            return Fails()
        needed = self.margin.limit * (prompt + output)
        if needed > self.used.limit * longest:
            return Fails()
        message = (
            f"max-model-len is {longest}; requests need at most {needed:.0f} tokens (p99.9 with margin). Lowering it "
            "bounds the worst case and frees no KV cache by itself."
        )
        fact = Evidence(
            name="total length, p99.9 with margin",
            value=round(needed),
            unit="tokens",
            threshold=self.used.limit * longest,
            note=f"of {seen:.0f} requests",
        )
        return Holds(message=message, evidence=(fact,), primary=False)
