"""ConcurrencyCapped: every seat is taken, the pool has room, tokens come fast enough: the cap itself is the limit."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import (
    NEARLY_ALL,
    Case,
    Sustained,
    is_late,
    kv_max,
    seats_taken_share,
    tpot_reading,
    ttft_reading,
)
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold, absence
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.diagnosis.pool import HIGHEST, has_room
from vllm_autotuner.observation.engine_window import EngineWindow

__all__ = ["ConcurrencyCapped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyCapped:
    """Requests wait, running stands at max-num-seqs, the KV cache has room and TPOT is inside its objective.

    max-num-seqs is not exported by the engine. Where nobody tells it, a running count pinned at its own maximum
    while the pool is far from full is taken as the cap, with less confidence.
    Seats that are nearly enough make a queue that comes and goes. Where first tokens are too late by it, and seats are
    taken whenever requests wait, it need not last: the objective is missed all the same, and by nothing else.
    """

    diagnosis: ClassVar = DiagnosisClass.CONCURRENCY_CAPPED
    sustained: Sustained = Sustained()
    seats_taken: Threshold = Threshold(
        limit=0.7,
        unit="of scrapes",
        reason="a seat is empty for a moment between two requests (28 of 30 scrapes in the recording)",
        source="recording seats-saturation",
    )
    kv_room: Threshold = HIGHEST

    def judge(self, case: Case) -> Finding:
        """Hold when most of the queueing engines are pinned at their seats and nothing else binds."""
        holding = self.diagnosis in case.holding
        late = is_late(ttft_reading(case), case.targets.ttft)
        lasting = case.queueing(holding=holding, sustained=self.sustained)
        queueing = case.queueing(holding=True, sustained=self.sustained) if late else lasting
        pinned = [
            engine
            for engine in queueing
            if self._pinned(engine, case=case, holding=holding) or (late and self._waits_for_seats(engine, case=case))
        ]
        if not queueing or 2 * len(pinned) <= len(queueing):
            return Fails()
        if is_late(tpot_reading(case), case.targets.tpot):
            return Fails()
        engine = max(pinned, key=lambda one: one.moments[-1].waiting)
        seats, known = self._seats(engine, case=case), case.knobs.max_num_seqs is not None
        usage = kv_max(engine)
        space = "an unknown share" if usage is None else f"{usage:.0%}"
        how = "" if known else " (max-num-seqs is not known; running never exceeded this)"
        if engine in lasting:
            wait = f" and {engine.moments[-1].waiting:.0f} requests wait"
        else:
            wait = f" whenever requests wait (up to {max(moment.waiting for moment in engine.moments):.0f} did)"
        message = f"All {seats:.0f} seats are taken{how}{wait}, while the KV cache is used to {space} at most."
        limit = self.sustained.limit(holding=holding or late)
        window = case.observation.window
        taken = round(self._taken(engine, seats=seats, case=case), 3)
        return Holds(
            message=message,
            evidence=(
                case.waiting_evidence(engine, limit=limit),
                Evidence(
                    name="scrapes with all seats taken",
                    value=taken,
                    unit="share",
                    threshold=self.seats_taken.limit,
                    window=window,
                    note=f"max-num-seqs {seats:.0f}" + ("" if known else ", inferred"),
                ),
                Evidence(
                    name="KV usage, maximum",
                    value=usage,
                    unit="share",
                    threshold=self.kv_room.limit,
                    window=window,
                    note=absence(usage),
                ),
                case.ttft_evidence(),
                case.tpot_evidence(),
            ),
            confidence=Confidence.HIGH if known and usage is not None else Confidence.MEDIUM,
        )

    def _seats(self, engine: EngineWindow, *, case: Case) -> float:
        return case.knobs.max_num_seqs or max(moment.running for moment in engine.moments)

    def _pinned(self, engine: EngineWindow, *, case: Case, holding: bool) -> bool:
        seats = self._seats(engine, case=case)
        limit = self.sustained.stay.limit if holding else self.seats_taken.limit
        return seats >= 1 and self._taken(engine, seats=seats, case=case) >= limit and has_room(engine)

    def _waits_for_seats(self, engine: EngineWindow, *, case: Case) -> bool:
        """Whether every seat is taken whenever a request waits, by a number of seats that is known."""
        seats, waiting = case.knobs.max_num_seqs, [moment for moment in engine.moments if moment.waiting > 0]
        if seats is None or not waiting or not has_room(engine):
            return False
        return all(moment.running >= NEARLY_ALL * seats for moment in waiting)

    def _taken(self, engine: EngineWindow, *, seats: float, case: Case) -> float:
        # Nearly all of a guessed number, or beside a pool that nobody knows, says too little.
        unsure = case.knobs.max_num_seqs is None or kv_max(engine) is None
        return seats_taken_share(engine, seats=seats, exactly=unsure)
