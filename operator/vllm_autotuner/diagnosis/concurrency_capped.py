"""ConcurrencyCapped: all slots (max-num-seqs) are in use while the KV cache has room and TPOT meets its objective."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.api.wording import told_waiting
from vllm_autotuner.diagnosis.case import (
    NEARLY_ALL,
    Case,
    Sustained,
    is_late,
    kv_max,
    most_waiting,
    slots_used_share,
    tpot_reading,
    ttft_reading,
    undecided,
)
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds, Unknown
from vllm_autotuner.diagnosis.pool import HIGHEST, has_room
from vllm_autotuner.diagnosis.prefill_bound import BUSY, prefill_share
from vllm_autotuner.observation.engine_window import EngineWindow

__all__ = ["ConcurrencyCapped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyCapped:
    """Requests wait, max-num-seqs sequences run, the KV cache has room and TPOT meets its objective.

    The engine does not export max-num-seqs. Where the spec does not set it, a running count pinned at its own maximum
    while the KV cache is far from full is taken as the cap, with less confidence, unless half of what runs are prompts.
    If TTFT misses its objective and all slots are in use whenever requests wait, the queue need not last: slots that
    are nearly sufficient cause a queue that appears and drains.
    """

    diagnosis: ClassVar = DiagnosisClass.CONCURRENCY_CAPPED
    sustained: Sustained = Sustained()
    slots_used: Threshold = Threshold(
        limit=0.7,
        unit="of scrapes",
        reason="a slot is empty for a moment between two requests (28 of 30 scrapes were full in the recording)",
        source="recording seats-saturation",
    )
    kv_room: Threshold = HIGHEST

    def judge(self, case: Case) -> Finding:
        """Hold when most queueing engines run at max-num-seqs and no other limit applies."""
        holding = self.diagnosis in case.holding
        late = is_late(ttft_reading(case), case.targets.ttft)
        lasting = case.queueing(holding=holding, sustained=self.sustained)
        pinned = self._capped(case, holding=holding)
        if not pinned:
            return Fails()
        if why := undecided(case, pinned):
            return Unknown(why)
        if is_late(tpot_reading(case), case.targets.tpot):
            return Fails()
        engine = max(pinned, key=most_waiting)
        slots, known = self._slots(engine, case=case), case.knobs.max_num_seqs is not None
        usage = kv_max(engine) or 0.0
        how = "max-num-seqs" if known else "highest running count; max-num-seqs is not known"
        if engine in lasting:
            wait = f" and up to {told_waiting(most_waiting(engine))}"
        else:
            wait = f" whenever requests wait (up to {most_waiting(engine):.0f})"
        taken = f"The only slot ({how}) is" if slots == 1 else f"All {slots:.0f} slots ({how}) are"
        message = f"{taken} in use{wait}; KV cache usage peaked at {usage:.0%}."
        limit = self.sustained.limit(holding=holding or late)
        # Where slots are in use only while requests wait, no share of scrapes decided.
        share = self._limit(holding=holding) if self._pinned(engine, case=case, holding=holding) else None
        window = case.observation.window
        used = round(self._used(engine, slots=slots, case=case), 3)
        return Holds(
            message=message,
            evidence=(
                case.waiting_evidence(engine, limit=limit),
                Evidence(
                    name="scrapes with all slots in use",
                    value=used,
                    unit="share",
                    threshold=share,
                    window=window,
                    note=f"max-num-seqs {slots:.0f}" + ("" if known else ", inferred"),
                ),
                Evidence(
                    name="KV usage, maximum",
                    value=usage,
                    unit="share",
                    threshold=self.kv_room.limit,
                    window=window,
                ),
                case.ttft_evidence(),
                case.tpot_evidence(),
            ),
            confidence=Confidence.HIGH if known else Confidence.MEDIUM,
        )

    def slots_seen(self, case: Case) -> int | None:
        """How many slots there seem to be where max-num-seqs is not known: all run while requests wait."""
        pinned = self._capped(case, holding=self.diagnosis in case.holding)
        return max((round(self._slots(engine, case=case)) for engine in pinned), default=None)

    def _capped(self, case: Case, *, holding: bool) -> list[EngineWindow]:
        """The engines that queue for slots; empty unless they are most of those that queue."""
        late = is_late(ttft_reading(case), case.targets.ttft)
        queueing = case.queueing(holding=holding or late, sustained=self.sustained)
        pinned = [
            engine
            for engine in queueing
            if self._pinned(engine, case=case, holding=holding) or (late and self._waits_for_slots(engine, case=case))
        ]
        return pinned if 2 * len(pinned) > len(queueing) else []

    def _slots(self, engine: EngineWindow, *, case: Case) -> float:
        return case.knobs.max_num_seqs or max(moment.running for moment in engine.moments)

    def _pinned(self, engine: EngineWindow, *, case: Case, holding: bool) -> bool:
        slots = self._slots(engine, case=case)
        if case.knobs.max_num_seqs is None and (prefill_share(engine) or 0.0) >= BUSY.limit * slots:
            # Long prompts are computed a few at a time, and that is what runs: no cap, which would be far above it.
            return False
        used = self._used(engine, slots=slots, case=case)
        return slots >= 1 and used >= self._limit(holding=holding) and has_room(engine)

    def _limit(self, *, holding: bool) -> float:
        return (self.sustained.stay if holding else self.slots_used).limit

    def _waits_for_slots(self, engine: EngineWindow, *, case: Case) -> bool:
        """Whether all slots are in use whenever a request waits; False if max-num-seqs is not known."""
        slots, waiting = case.knobs.max_num_seqs, [moment for moment in engine.moments if moment.waiting > 0]
        if slots is None or not waiting or not has_room(engine):
            return False
        return all(moment.running >= NEARLY_ALL * slots for moment in waiting)

    def _used(self, engine: EngineWindow, *, slots: float, case: Case) -> float:
        # With an inferred max-num-seqs "nearly all" is too weak: require all.
        return slots_used_share(engine, slots=slots, exactly=case.knobs.max_num_seqs is None)
