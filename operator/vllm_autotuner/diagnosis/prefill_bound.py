"""PrefillBound: first tokens are late because prompts take long to compute, not because a pool or a cap is full."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.diagnosis.case import (
    FEWEST_FINISHED,
    Case,
    Sustained,
    is_late,
    seats_taken_share,
    tpot_reading,
    ttft_reading,
)
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold, absence
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.diagnosis.head_of_line_blocking import few_block_many
from vllm_autotuner.diagnosis.pool import is_full
from vllm_autotuner.observation.engine_window import EngineWindow
from vllm_autotuner.observation.reading import Measured, number

__all__ = [
    "BUSY",
    "CONTENDING",
    "PrefillBound",
    "is_prefilling",
    "prefill_share",
    "prefill_shares",
    "prompts_contend",
    "prompts_dominate",
]

BUSY: Final = Threshold(
    limit=0.5,
    unit="of the time",
    reason="prefill times of finished requests, one after the other, fill at least half of the window",
    source="our choice; recordings kv-saturation 0.11 and seats-saturation 0.03 queue for something else",
)


def prefill_share(engine: EngineWindow) -> float | None:
    """Sum of prefill times over the time they happened in; above 1 where prompts are computed side by side."""
    if engine.prefill_seconds is None or engine.sampled <= 0:
        return None
    return engine.prefill_seconds / engine.sampled


def prefill_shares(engines: Iterable[EngineWindow]) -> list[float]:
    """Those of the engines that tell."""
    return [share for engine in engines if (share := prefill_share(engine)) is not None]


def is_prefilling(engine: EngineWindow) -> bool | None:
    """Whether the engine spends its time on prompts; None where it does not tell."""
    share = prefill_share(engine)
    return None if share is None else share >= BUSY.limit


CONTENDING: Final = Threshold(
    limit=0.7,
    unit="of the time",
    reason="a prompt then waits longer for others than it takes itself: 0.7 / (1 - 0.7) / 2 = 1.2 times",
    source="queueing theory (Pollaczek-Khinchine, prompts of equal length); our choice of the point",
)


def prompts_contend(case: Case) -> bool:
    """Whether prompts wait for each other inside the engines, where no queue shows it: fewer on each are faster.

    Where tokens come late as well it is seen from both sides, and half of the time on prompts is enough: whatever
    decodes meanwhile waits for them.
    """
    shares, late = prefill_shares(case.engines), is_late(tpot_reading(case), case.targets.tpot)
    return bool(shares) and sum(shares) >= (BUSY if late else CONTENDING).limit * len(shares)


DOMINANT: Final = Threshold(
    limit=8,
    unit="prompt tokens computed per output token",
    reason="computing these takes three quarters of what a sequence adds to a step, decoding one token the rest",
    source="measured facts 1.1: slopes at 1,024/128 against 1,024/1,024 tokens, both tensor-parallel degrees",
)


def prompts_dominate(engines: Sequence[EngineWindow]) -> bool:
    """Whether steps are long because of the prompts in them, so that tokens come late without too many sequences."""
    # Without their source all prompt tokens count: an engine that old is rarely asked twice.
    prompts = sum(
        (engine.prompt_tokens or 0.0) if engine.prompt_tokens_computed is None else engine.prompt_tokens_computed
        for engine in engines
    )
    generated = sum(engine.generation_tokens or 0.0 for engine in engines)
    return prompts > 0 and prompts >= DOMINANT.limit * generated


def _works_on_prompts(engine: EngineWindow) -> bool:
    # Prefill times are told when a request finishes: until some have, only the tokens of the prompts speak.
    untold = (engine.finished or 0.0) < FEWEST_FINISHED
    return bool(is_prefilling(engine)) or (untold and prompts_dominate([engine]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillBound:
    """TTFT is over its objective, and what it consists of is prefill.

    Two shapes. Nothing waits, and prefill is most of TTFT (server-side, TTFT is queue and prefill). Or requests wait
    although the pool has room and seats are free, while the engine is busy with prompts all the time: then the queue
    is for prefill. A queue beside an engine that prefills little is something else. Where tokens come too late as well,
    the prompts must be what makes the steps long: else the batch does, and that is the nearer cause.
    """

    diagnosis: ClassVar = DiagnosisClass.PREFILL_BOUND
    sustained: Sustained = Sustained()
    prefill: Threshold = Threshold(
        limit=0.5, unit="of TTFT", reason="then the prompt is the larger part of the wait", source="field guide F3, F5"
    )
    busy: Threshold = BUSY
    dominant: Threshold = DOMINANT
    stay: Threshold = Threshold(
        limit=0.9, unit="of the objective", reason="leaves only when clearly inside again", source="our choice"
    )
    seats_taken: Threshold = Threshold(
        limit=0.5, unit="of scrapes", reason="with every seat taken the seats are the nearer limit", source="our choice"
    )

    def judge(self, case: Case) -> Finding:
        """Hold on a late first token that neither pool nor seats nor a few huge requests explain."""
        holding = self.diagnosis in case.holding
        reading, target = ttft_reading(case), case.targets.ttft
        if not isinstance(reading, Measured):
            return Fails()
        if reading.value <= target.seconds * (self.stay.limit if holding else 1.0) or few_block_many(case) is not None:
            return Fails()
        if is_late(tpot_reading(case), case.targets.tpot) and not prompts_dominate(case.engines):
            return Fails()
        queueing = case.queueing(holding=holding, sustained=self.sustained)
        found = self._queued(queueing, case=case) if queueing else self._alone(case)
        if found is None:
            return Fails()
        why, confidence = found
        late, wanted = told_seconds(reading.value), told_seconds(target.seconds)
        message = f"TTFT {target.label} is {late}, over the objective of {wanted}: {why}."
        return Holds(message=message, evidence=self._evidence(case), confidence=confidence)

    def _queued(self, queueing: tuple[EngineWindow, ...], *, case: Case) -> tuple[str, Confidence] | None:
        """The queue is for prefill in most of the engines that queue."""
        blocked = [engine for engine in queueing if is_full(engine) or self._seats_bind(engine, case)]
        prefilling = [engine for engine in queueing if engine not in blocked and _works_on_prompts(engine)]
        if 2 * len(prefilling) <= len(queueing):
            return None
        waiting = sum(engine.moments[-1].waiting for engine in prefilling)
        share = max(prefill_share(engine) or 0.0 for engine in prefilling)
        what = f"takes {share:.1f} s of every second" if share >= BUSY.limit else "is nearly all that is computed"
        why = f"{waiting:.0f} requests wait although the KV cache has room and seats are free, and prefill {what}"
        sure = case.knobs.max_num_seqs is not None and share >= BUSY.limit
        return why, Confidence.HIGH if sure else Confidence.MEDIUM

    def _alone(self, case: Case) -> tuple[str, Confidence] | None:
        """Nothing waits: what is left of TTFT is prefill, if the engine does not say otherwise."""
        ttft, prefill = number(case.observation.ttft.mean), number(case.observation.prefill_time.mean)
        if ttft is not None and prefill is not None:
            if prefill < self.prefill.limit * ttft:
                return None
            return (
                f"{told_seconds(prefill)} of the mean TTFT of {told_seconds(ttft)} are prefill, and nothing waits",
                Confidence.HIGH,
            )
        if any(moment.waiting > 0 for engine in case.engines for moment in engine.moments):
            return None
        return "nothing waits; prefill times are not exported, so long prompts are only likely", Confidence.LOW

    def _seats_bind(self, engine: EngineWindow, case: Case) -> bool:
        seats = case.knobs.max_num_seqs
        return seats is not None and seats_taken_share(engine, seats=seats) >= self.seats_taken.limit

    def _evidence(self, case: Case) -> tuple[Evidence, ...]:
        observation, window = case.observation, case.observation.window
        shares = prefill_shares(case.engines)
        busy = max(shares, default=None)
        facts = (
            ("prefill time, mean", number(observation.prefill_time.mean), "s"),
            ("queue time, mean", number(observation.queue_time.mean), "s"),
            ("prompt tokens", observation.prompted_per_second, "tokens/s"),
            ("prompt length, p50", number(observation.prompt_length.quantile(0.5)), "tokens"),
            ("prefix cache hit rate", observation.prefix_hit_rate, "share"),
        )
        return (
            case.ttft_evidence(),
            Evidence(
                name="prefill time per second",
                value=busy,
                unit="share",
                threshold=self.busy.limit,
                window=window,
                note=absence(busy),
            ),
            *(Evidence(name=name, value=it, unit=unit, window=window, note=absence(it)) for name, it, unit in facts),
        )
