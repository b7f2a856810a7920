"""PrefillBound: an objective is missed because prompts take long to compute, not because a limit is reached."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.api.wording import told_apart, told_seconds, told_waiting
from vllm_autotuner.diagnosis.case import (
    FEWEST_FINISHED,
    SLOTS_USED,
    Case,
    Sustained,
    is_late,
    is_not_exported,
    late_from,
    most_waiting,
    slots_used_share,
    tpot_reading,
    tpot_surely,
    ttft_reading,
)
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold, absence
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.diagnosis.head_of_line_blocking import few_block_many
from vllm_autotuner.diagnosis.past_tpot_knee import PastTPOTKnee
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
    reason="the prefill times of finished requests add up to at least half of the window",
    source="our choice; the recordings kv-saturation (0.11) and seats-saturation (0.03) queue for other reasons",
)


def prefill_share(engine: EngineWindow) -> float | None:
    """Sum of prefill times over the length of the window; above 1 where prompts are computed in parallel."""
    if engine.prefill_seconds is None or engine.sampled <= 0:
        return None
    return engine.prefill_seconds / engine.sampled


def prefill_shares(engines: Iterable[EngineWindow]) -> list[float]:
    """The prefill shares of the engines that export prefill times."""
    return [share for engine in engines if (share := prefill_share(engine)) is not None]


def is_prefilling(engine: EngineWindow) -> bool | None:
    """Whether the engine spends most of its time on prompts; None if prefill times are not exported."""
    share = prefill_share(engine)
    return None if share is None else share >= BUSY.limit


CONTENDING: Final = Threshold(
    limit=0.7,
    unit="of the time",
    reason="above it a prompt waits longer for other prompts than it computes: 0.7 / (1 - 0.7) / 2 = 1.2 times",
    source="queueing theory (Pollaczek-Khinchine, prompts of equal length); our choice of the limit",
)


def prompts_contend(case: Case) -> bool:
    """Whether prompts wait for each other inside the engines, which no queue shows; more replicas make them faster.

    If TPOT misses its objective too, half of the time on prompts is enough, because decoding waits for prompts.
    """
    late = is_late(tpot_reading(case), case.targets.tpot)
    return _reaches(BUSY if late else CONTENDING, prefill_shares(case.engines))


def _reaches(threshold: Threshold, shares: Sequence[float]) -> bool:
    """Whether the mean share does; not where none is known."""
    return bool(shares) and sum(shares) >= threshold.limit * len(shares)


DOMINANT: Final = Threshold(
    limit=8,
    unit="prompt tokens computed per output token",
    reason="at this ratio prompts are three quarters of what a sequence adds to a step, and decoding is one quarter",
    source="measured step-time slopes at 1,024/128 and 1,024/1,024 tokens, at two tensor-parallel sizes",
)


def prompts_dominate(engines: Sequence[EngineWindow]) -> bool:
    """Whether steps are long because of the prompts in them, so that TPOT is high without too large a batch."""
    # Engines that tell neither the source of prompt tokens nor hits: there all prompt tokens count as computed.
    prompts = sum(
        (engine.prompt_tokens or 0.0) if engine.prompt_tokens_computed is None else engine.prompt_tokens_computed
        for engine in engines
    )
    generated = sum(engine.generation_tokens or 0.0 for engine in engines)
    return prompts > 0 and prompts >= DOMINANT.limit * generated


def _works_on_prompts(engine: EngineWindow) -> bool:
    # Prefill times are counted when a request finishes: until enough have, use the token counts.
    too_few = (engine.finished or 0.0) < FEWEST_FINISHED
    return bool(is_prefilling(engine)) or (too_few and prompts_dominate([engine]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillBound:
    """TTFT misses its objective and prefill is the larger part of it, or tokens are late as they wait for prompts.

    There are two cases of a late TTFT. Either no requests wait and prefill is most of it (the engine's TTFT is queue
    time plus prefill time), or requests wait although the KV cache has room and slots are free, while the engine is
    busy with prompts. If TPOT misses its objective too, the class holds only where prompts are what makes the steps
    long; otherwise the batch size is the more likely cause. Where TTFT is in time, or late by a queue that comes and
    goes, TPOT is late beyond chance, no smaller batch would do (PastTPOTKnee), and prompts are most of what is computed
    and half of the time, tokens wait for them. If no step-time model tells whether a smaller batch would do, prompts
    have to contend.
    """

    diagnosis: ClassVar = DiagnosisClass.PREFILL_BOUND
    sustained: Sustained = Sustained()
    prefill: Threshold = Threshold(
        limit=0.5,
        unit="of TTFT",
        reason="above it prefill is the larger part of TTFT",
        source="field reports F3 (triage) and F5 (triage card)",
    )
    busy: Threshold = BUSY
    dominant: Threshold = DOMINANT
    slots_used: Threshold = SLOTS_USED

    def judge(self, case: Case) -> Finding:
        """Hold when an objective is missed and neither KV cache, nor slots, nor a few huge requests explain it."""
        holding = self.diagnosis in case.holding
        reading, target = ttft_reading(case), case.targets.ttft
        if not isinstance(reading, Measured) or few_block_many(case) is not None:
            return Fails()
        if reading.value <= late_from(target, holding=holding):
            return self._between_tokens(case, holding=holding)
        if is_late(tpot_reading(case), case.targets.tpot) and not prompts_dominate(case.engines):
            return Fails()
        queueing = case.queueing(holding=holding, sustained=self.sustained)
        found = self._queued(queueing, case=case) if queueing else self._alone(case)
        if found is None:
            # A queue that comes and goes is a part of TTFT that neither case explains. Tokens may tell the same cause.
            return Fails() if queueing else self._between_tokens(case, holding=holding)
        why, confidence = found
        late, wanted = told_apart(reading.value, target.seconds)
        message = f"TTFT {target.label} is {late} (objective {wanted}): {why}."
        return Holds(message=message, evidence=self._evidence(case), confidence=confidence)

    def _between_tokens(self, case: Case, *, holding: bool) -> Finding:
        """Hold where few others wait for prompts, as most steps have some in them, and first tokens tell nothing.

        A batch that can shrink is past its knee, whatever is in its steps. While no step-time model says so, prompts
        that contend explain late tokens better.
        """
        reading, target = tpot_surely(case), case.targets.tpot
        late = isinstance(reading, Measured) and reading.value > late_from(target, holding=holding)
        shares = prefill_shares(case.engines)
        if not late or not _reaches(self.busy, shares) or not prompts_dominate(case.engines):
            return Fails()
        knee = PastTPOTKnee().judge(case)
        if isinstance(knee, Holds) and (knee.confidence is not Confidence.LOW or not _reaches(CONTENDING, shares)):
            return Fails()
        measured, first = number(tpot_reading(case)), case.targets.ttft
        now, wanted = told_apart(target.seconds if measured is None else measured, target.seconds)
        message = (
            f"TPOT {target.label} is {now} (objective {wanted}): prompts are computed between the tokens, and prefill "
            f"takes {max(shares):.1f} s of every second."
        )
        if isinstance(ttft := ttft_reading(case), Measured) and is_late(ttft, first):
            waited, limit = told_apart(ttft.value, first.seconds)
            message += f" TTFT {first.label} is {waited} (objective {limit})."
        return Holds(message=message, evidence=self._evidence(case), confidence=Confidence.MEDIUM)

    def _queued(self, queueing: tuple[EngineWindow, ...], *, case: Case) -> tuple[str, Confidence] | None:
        """Return why prefill causes the queue in most of the engines that queue; None if it does not."""
        blocked = [engine for engine in queueing if is_full(engine) or self._slots_bind(engine, case)]
        prefilling = [engine for engine in queueing if engine not in blocked and _works_on_prompts(engine)]
        if 2 * len(prefilling) <= len(queueing):
            return None
        waiting = sum(most_waiting(engine) for engine in prefilling)
        share = max(prefill_share(engine) or 0.0 for engine in prefilling)
        what = f"takes {share:.1f} s of every second" if share >= BUSY.limit else "is most of the computation"
        why = f"up to {told_waiting(waiting)} although the KV cache has room and slots are free, and prefill {what}"
        sure = case.knobs.max_num_seqs is not None and share >= BUSY.limit
        return why, Confidence.HIGH if sure else Confidence.MEDIUM

    def _alone(self, case: Case) -> tuple[str, Confidence] | None:
        """Return why prefill causes a late TTFT without a queue; None if the engine's figures contradict it."""
        ttft, prefill = number(case.observation.ttft.mean), number(case.observation.prefill_time.mean)
        if ttft is not None and prefill is not None:
            if prefill < self.prefill.limit * ttft:
                return None
            return (
                f"prefill takes {told_seconds(prefill)} of the mean TTFT of {told_seconds(ttft)}, and no requests wait",
                Confidence.HIGH,
            )
        if any(moment.waiting > 0 for engine in case.engines for moment in engine.moments):
            return None
        if not is_not_exported(case.observation.prefill_time.mean):
            # No request has ended in the window: what is computed tells.
            why = "no requests wait, and most of what is computed are prompts"
            return (why, Confidence.LOW) if prompts_dominate(case.engines) else None
        return "no requests wait; long prompts are likely, but prefill times are not exported", Confidence.LOW

    def _slots_bind(self, engine: EngineWindow, case: Case) -> bool:
        slots = case.knobs.max_num_seqs
        return slots is not None and slots_used_share(engine, slots=slots) >= self.slots_used.limit

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
            case.tpot_evidence(),
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
