"""HeadOfLineBlocking: a few huge requests make everybody else's tail."""

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
    reason="one such request is the work of ten; chat traffic stays below",
    source="our choice; Azure conversation trace 2023: prompts 4.1, outputs 4.7",
)
TTFTS: Final = Threshold(
    limit=10, unit="p99 over p50", reason="ten times the usual wait is no spread any more", source="our choice"
)
FEWEST_REQUESTS: Final = Threshold(
    limit=50, unit="requests", reason="with fewer a p99 is the one slowest request", source="our choice"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """How far the tails reach: p99 over p50 of the longer-tailed of prompts and outputs, and of TTFT."""

    what: str
    lengths: float
    p50: float
    p99: float
    ttft: float


def few_block_many(case: Case) -> Tail | None:
    """The tails, where a few requests make them: TTFT is late at its quantile and at the median it is not."""
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
    """TTFT is late at its quantile, most requests are fine, and lengths have a tail as extreme as TTFT's.

    Tokens may be late at their quantile as well: a huge prompt stands in the step of everybody who decodes. Where they
    are late for most requests, the batch is the nearer cause.
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
            f"Most requests are fine; the slowest 1 % wait {tail.ttft:.0f} times as long as the median one, and the "
            f"longest 1 % of {tail.what}s have {tail.p99:.0f} tokens against {tail.p50:.0f}: a few huge requests "
            "block the head of the line."
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
