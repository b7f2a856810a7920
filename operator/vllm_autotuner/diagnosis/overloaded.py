"""Overloaded: requests wait for capacity, and no class of higher precedence explains the queue."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.wording import told_waiting
from vllm_autotuner.diagnosis.case import (
    Case,
    Sustained,
    is_late,
    kv_max,
    makes_no_token,
    most_waiting,
    ttft_reading,
    undecided,
)
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, absence
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds, Unknown
from vllm_autotuner.observation.engine_window import EngineWindow

__all__ = ["Overloaded", "first_tokens_wait"]


def first_tokens_wait(case: Case) -> bool:
    """Whether TTFT misses its objective while requests wait for capacity, regardless of other classes.

    The queue need not last, as in `ConcurrencyCapped`: a queue that appears and drains misses the objective too.
    """
    late = is_late(ttft_reading(case), case.targets.ttft)
    return late and bool(_overloaded(case, holding=True, sustained=Sustained()))


def _overloaded(case: Case, *, holding: bool, sustained: Sustained) -> list[EngineWindow]:
    """Return the engines with a lasting queue that compute tokens: a hang must not look like load."""
    queueing = case.queueing(holding=holding, sustained=sustained)
    return [one for one in queueing if not makes_no_token(one, window=case.observation.window)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overloaded:
    """Requests keep waiting for capacity while the engine computes tokens; an engine that hangs is not overloaded."""

    diagnosis: ClassVar = DiagnosisClass.OVERLOADED
    sustained: Sustained = Sustained()

    def judge(self, case: Case) -> Finding:
        """Hold when any engine has a lasting queue and computes tokens."""
        holding = self.diagnosis in case.holding
        moving = _overloaded(case, holding=holding, sustained=self.sustained)
        if not moving:
            return Fails()
        if why := undecided(case, moving):
            return Unknown(why)
        engine = max(moving, key=most_waiting)
        waiting = sum(most_waiting(one) for one in moving)
        away = sum(one.rejected or 0.0 for one in moving)
        turned = f"; {away:.0f} were rejected" if away else ""
        window, usage = case.observation.window, kv_max(engine)
        wait = f"Up to {told_waiting(waiting)}"
        return Holds(
            message=f"{wait} for capacity on {len(moving)} of {len(case.engines)} engine(s){turned}.",
            evidence=(
                case.waiting_evidence(engine, limit=self.sustained.limit(holding=holding)),
                Evidence(name="KV usage, maximum", value=usage, unit="share", window=window, note=absence(usage)),
                Evidence(
                    name="running, maximum",
                    value=max(moment.running for moment in engine.moments),
                    unit="sequences",
                    threshold=case.knobs.max_num_seqs,
                    window=window,
                ),
                case.ttft_evidence(),
                case.tpot_evidence(),
            ),
        )
