"""HeadOfLineBlocking: a few requests with huge prompts delay all others.

Long outputs delay nobody's first token while slots are free, and where they are not the class is ConcurrencyCapped.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import Case, by_chance, late_from, ttft_reading
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.reading import Measured, number

__all__ = ["FEWEST_REQUESTS", "TAIL", "HeadOfLineBlocking", "Spread", "Tail", "few_block_many"]

TAIL: Final = Threshold(
    limit=10,
    unit="p99 over p50",
    reason="one such prompt costs as much as ten typical ones, and ten times the median wait exceeds normal spread",
    source="our choice; Azure conversation trace 2023: prompts 4.1",
)
FEWEST_REQUESTS: Final = Threshold(
    limit=50, unit="requests", reason="with fewer requests the p99 is a single request", source="our choice"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and p99 of one distribution."""

    p50: float
    p99: float
    highest: float
    """The p99 that counts: while the class is named, the highest that chance allows."""

    @property
    def ratio(self) -> float:
        """p99 over p50 as measured."""
        return self.p99 / self.p50

    @property
    def at_most(self) -> float:
        """The ratio that counts."""
        return self.highest / self.p50


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The spread of TTFT, and that of prompt lengths."""

    lengths: Spread
    ttft: Spread


def few_block_many(case: Case) -> Tail | None:
    """Return the tails if a few requests cause them: TTFT misses its objective, but the median TTFT does not.

    A class that is already named stays until the latencies are over by more than noise, and a tail by more than chance.
    """
    reading, target = ttft_reading(case), case.targets.ttft
    observation, holding = case.observation, DiagnosisClass.HEAD_OF_LINE_BLOCKING in case.holding
    median = number(observation.ttft.quantile(0.5))
    if not isinstance(reading, Measured) or reading.value <= late_from(target, holding=holding):
        return None
    highest = target.seconds * (1 + NOISE if holding else 1.0)
    if median is None or median > highest or observation.ttft.count < FEWEST_REQUESTS.limit:
        return None
    if observation.prompt_length.count < FEWEST_REQUESTS.limit:
        return None
    waits, lengths = (_spread(each, holding=holding) for each in (observation.ttft, observation.prompt_length))
    if waits is None or lengths is None or min(lengths.at_most, waits.at_most) < TAIL.limit:
        return None
    return Tail(lengths=lengths, ttft=waits)


def _spread(seen: Distribution, *, holding: bool) -> Spread | None:
    """Five of 500 requests are beyond p99: which of the huge ones a window has moves it by several times."""
    high = min(1.0, 0.99 + by_chance(0.99, of=seen.count)) if holding else 0.99
    p50, p99, highest = (number(seen.quantile(quantile)) for quantile in (0.5, 0.99, high))
    if p50 is None or p99 is None or highest is None or p50 <= 0:
        return None
    return Spread(p50=p50, p99=p99, highest=highest)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOfLineBlocking:
    """TTFT misses its objective, the median TTFT does not, and both TTFT and prompts have an extreme tail.

    TPOT may miss its objective at its quantile too, because a huge prompt slows all sequences in the same step. If TPOT
    misses it at the median, the batch size is the more likely cause and this class does not hold. A class that is
    already named stays until a tail is over by more than chance.
    """

    diagnosis: ClassVar = DiagnosisClass.HEAD_OF_LINE_BLOCKING
    tail: Threshold = TAIL
    requests: Threshold = FEWEST_REQUESTS

    def judge(self, case: Case) -> Finding:
        """Hold when both tails are extreme."""
        tail = few_block_many(case)
        tpot = number(case.observation.tpot.quantile(0.5))
        if tail is None or (tpot is not None and tpot > case.targets.tpot.seconds):
            return Fails()
        message = (
            f"A few huge requests block the others: TTFT p99 is {tail.ttft.ratio:.0f} times the median, and the "
            f"prompt length p99 is {tail.lengths.p99:.0f} tokens (median {tail.lengths.p50:.0f})."
        )
        window = case.observation.window
        return Holds(
            message=message,
            evidence=(
                case.ttft_evidence(),
                Evidence(
                    name="TTFT, p99 over p50",
                    value=round(tail.ttft.ratio, 1),
                    unit="ratio",
                    threshold=self.tail.limit,
                    window=window,
                    note=_chance(tail.ttft),
                ),
                Evidence(
                    name="prompt length, p99 over p50",
                    value=round(tail.lengths.ratio, 1),
                    unit="ratio",
                    threshold=self.tail.limit,
                    note=_chance(tail.lengths),
                ),
            ),
            confidence=Confidence.MEDIUM,
        )


def _chance(spread: Spread) -> str:
    return f"up to {spread.at_most:.1f} by chance" if spread.highest > spread.p99 else ""
