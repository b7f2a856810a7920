"""Underutilized: one replica fewer would carry the same load within every objective."""

import math
from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.api.wording import counted
from vllm_autotuner.diagnosis.case import (
    NEARLY_ALL,
    Case,
    kv_max,
    makes_no_token,
    mean_batch,
    tpot_reading,
    ttft_reading,
)
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.diagnosis.pool import MEAN
from vllm_autotuner.diagnosis.prefill_bound import BUSY, prefill_share
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.reading import number
from vllm_autotuner.performance.consolidation import Slowdown, slowdown

__all__ = ["Underutilized"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Underutilized:
    """With the load on one pod fewer, every objective, the KV cache limit and the slot limit would still be met.

    The slowdown of TPOT follows from this engine's own step times at other batch sizes, or from measurements of other
    engines until the batch size has varied. KV usage, running sequences and TTFT are scaled by both the load per pod
    and this slowdown. A class that is already named stays while no level is over its limit by more than noise
    and the slots suffice. Where max-num-seqs is not known, a number that ran while first tokens came late is its bound.
    """

    diagnosis: ClassVar = DiagnosisClass.UNDERUTILIZED
    kv: Threshold = MEAN
    slots: Threshold = Threshold(
        limit=0.8, unit="of max-num-seqs", reason="leaves free slots for a burst", source="our choice, unmeasured"
    )
    latency: Threshold = Threshold(
        limit=0.8, unit="of the objective", reason="a margin of twice the noise (10 %)", source="our choice"
    )
    prefill: Threshold = BUSY

    def judge(self, case: Case) -> Finding:
        """Hold when no request waits, all pods report, and every level stays below its limit on n - 1 pods."""
        observation, pods = case.observation, len(case.observation.reporting)
        waits = any(moment.waiting > 0 for engine in case.engines for moment in engine.moments)
        waits = waits or any(engine.rejected for engine in case.engines)
        # It may hang: then the others carry its load in a moment.
        stalls = any(makes_no_token(engine, window=observation.window) for engine in case.engines)
        if pods < 2 or not observation.everybody_reports or waits or stalls:
            return Fails()
        more, slots = pods / (pods - 1), _slots(case)
        facts, measured, running = self._facts(case, more=more, slots=slots)
        if any(fact.value is None or fact.threshold is None or fact.value > fact.threshold for fact in facts):
            return Fails()
        message = (
            f"{pods - 1} of {pods} replicas would carry the load within every objective, with {more - 1:.0%} more load "
            "each."
        )
        if slots is None:
            most = counted(math.ceil(running), "sequence")
            message += f" max-num-seqs is not known: {most} would run in each, which it has to allow."
        return Holds(message=message, evidence=facts, confidence=Confidence.MEDIUM if measured else Confidence.LOW)

    def _facts(self, case: Case, *, more: float, slots: float | None) -> tuple[tuple[Evidence, ...], bool, float]:
        """Return each level as predicted on one pod fewer, whether these engines' own steps support it, and how many
        sequences would run in each of them at most.

        `slots`: the most that may run in each. A latency that is not measured counts as over its limit.
        """
        targets, window = case.targets, case.observation.window
        usages = [kv_max(engine) for engine in case.engines]
        running = max(moment.running for engine in case.engines for moment in engine.moments)
        shares = [prefill_share(engine) or 0.0 for engine in case.engines]
        usage = None if None in usages else max(usage or 0.0 for usage in usages)
        ttft, tpot = number(ttft_reading(case)), number(tpot_reading(case))
        step = number(case.observation.itl.mean)
        if step is None:
            slower = Slowdown(more, measured=False)
        else:
            slower = slowdown(case.observation.steps, running=_decoding(case), itl=step, more=more)
        held = more * slower.factor
        holding = self.diagnosis in case.holding
        # A forecast that moves by noise around a limit must not name the class and clear it by turns.
        room = 1 + NOISE if holding else 1.0
        levels = [
            ("KV usage", usage, held, room * self.kv.limit, "share"),
            ("TTFT", ttft, held, room * self.latency.limit * targets.ttft.seconds, "s"),
            ("TPOT", tpot, slower.factor, room * self.latency.limit * targets.tpot.seconds, "s"),
            ("prefill time per second", max(shares), more, room * self.prefill.limit, "share"),
        ]
        if slots is not None:
            # Free slots are for a burst: one that takes them is no reason to clear the class.
            levels.append(("running", running, held, slots if holding else self.slots.limit * slots, "sequences"))
        late = "" if case.knobs.max_num_seqs is not None else f"; first tokens came late while {slots or 0:.0f} ran"
        facts = tuple(
            Evidence(
                name=f"{name} with one replica fewer",
                value=None if now is None else round(now * times, 4),
                unit=unit,
                threshold=round(limit, 4),
                window=window,
                note=("not measured" if now is None else f"now {now:.3g}") + (late if name == "running" else ""),
            )
            for name, now, times, limit, unit in levels
        )
        return facts, slower.measured, running * held


def _slots(case: Case) -> float | None:
    """Return max-num-seqs; where it is not known, the most that ran, if first tokens came late while so many did.

    Whatever the limit was, so many sequences were too many: after a scale-out the queue is gone, and the limit is not.
    """
    steps, target = case.observation.steps, case.targets.ttft.seconds
    if case.knobs.max_num_seqs is not None or not steps:
        return case.knobs.max_num_seqs
    most = max(point.running for point in steps)
    full = {point.time for point in steps if point.running >= NEARLY_ALL * most}
    late = any(each.time in full and each.mean > target for each in case.observation.first_tokens)
    return most if late else None


def _decoding(case: Case) -> float:
    """Mean number of sequences that decode at once in one engine, by Little's law from the inter-token latencies."""
    between, seconds = case.observation.itl.total, sum(engine.sampled for engine in case.engines)
    return between / seconds if between is not None and seconds else mean_batch(case)
