"""HeadOfLineBlocking: a few huge requests delay all others."""

from dataclasses import dataclass
from typing import ClassVar, Final

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import Case, ttft_reading
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.reading import Measured, number

__all__ = ["FEWEST_REQUESTS", "LENGTHS", "TTFTS", "HeadOfLineBlocking", "Tail", "few_block_many"]

LENGTHS: Final = Threshold(
    limit=10,
    unit="p99 over p50",
    reason="one such request costs as much as ten typical ones; chat traffic stays below",
    source="our choice; Azure conversation trace 2023: prompts 4.1, outputs 4.7",
)
TTFTS: Final = Threshold(
    limit=10, unit="p99 over p50", reason="ten times the median wait exceeds normal spread", source="our choice"
)
FEWEST_REQUESTS: Final = Threshold(
    limit=50, unit="requests", reason="with fewer requests the p99 is a single request", source="our choice"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Tail ratios: p99 over p50 of TTFT, and of prompt or output lengths, whichever has the longer tail."""

    what: str
    lengths: float
    p50: float
    p99: float
    ttft: float


def few_block_many(case: Case) -> Tail | None:
    """Return the tails if a few requests cause them: TTFT misses its objective, but the median TTFT does not."""
    reading, target = ttft_reading(case), case.targets.ttft
    observation = case.observation
    median = number(observation.ttft.quantile(0.5))
    if not isinstance(reading, Measured) or reading.value <= target.seconds:
        return None
    if median is None or median > target.seconds or observation.ttft.count < FEWEST_REQUESTS.limit:
        return None
    waits = _spread(observation.ttft)
    tails = [
        (spread[1] / spread[0], what, *spread)
        for what, lengths in (("prompt", observation.prompt_length), ("output", observation.output_length))
        if lengths.count >= FEWEST_REQUESTS.limit and (spread := _spread(lengths)) is not None
    ]
    if waits is None or not tails:
        return None
    ratio, what, p50, p99 = max(tails)
    late = waits[1] / waits[0]
    if ratio < LENGTHS.limit or late < TTFTS.limit:
        return None
    return Tail(what=what, lengths=ratio, p50=p50, p99=p99, ttft=late)


def _spread(seen: Distribution) -> tuple[float, float] | None:
    p50, p99 = number(seen.quantile(0.5)), number(seen.quantile(0.99))
    return (p50, p99) if p50 is not None and p99 is not None and p50 > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOfLineBlocking:
    """TTFT misses its objective, the median TTFT does not, and both TTFT and lengths have an extreme tail.

    TPOT may miss its objective at its quantile too, because a huge prompt slows all sequences in the same step. If TPOT
    misses it at the median, the batch size is the more likely cause and this class does not hold.
    """

    diagnosis: ClassVar = DiagnosisClass.HEAD_OF_LINE_BLOCKING
    lengths: Threshold = LENGTHS
    ttfts: Threshold = TTFTS
    requests: Threshold = FEWEST_REQUESTS

    def judge(self, case: Case) -> Finding:
        """Hold when both tails are extreme."""
        tail = few_block_many(case)
        tpot = number(case.observation.tpot.quantile(0.5))
        if tail is None or (tpot is not None and tpot > case.targets.tpot.seconds):
            return Fails()
        message = (
            f"A few huge requests block the others: TTFT p99 is {tail.ttft:.0f} times the median, and the {tail.what} "
            f"length p99 is {tail.p99:.0f} tokens (median {tail.p50:.0f})."
        )
        window = case.observation.window
        return Holds(
            message=message,
            evidence=(
                case.ttft_evidence(),
                Evidence(
                    name="TTFT, p99 over p50",
                    value=round(tail.ttft, 1),
                    unit="ratio",
                    threshold=self.ttfts.limit,
                    window=window,
                ),
                Evidence(
                    name=f"{tail.what} length, p99 over p50",
                    value=round(tail.lengths, 1),
                    unit="ratio",
                    threshold=self.lengths.limit,
                ),
            ),
            confidence=Confidence.MEDIUM,
        )
