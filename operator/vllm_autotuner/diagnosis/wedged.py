"""Wedged: the engine hangs with requests but computes no token. Queue-driven scalers take this for overload."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.diagnosis.case import HANGS_AFTER, Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.observation.engine_window import EngineWindow

__all__ = ["Hang", "Wedged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """An engine that hangs: its pod, what is seen of it in words, the seconds without a token, and how many it had."""

    pod: str
    told: str
    seconds: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wedged:
    """Requests run or wait on a Ready engine, but it has computed neither prompt nor output tokens for minutes."""

    diagnosis: ClassVar = DiagnosisClass.WEDGED
    stalled: Threshold = HANGS_AFTER
    stalled_queue: Threshold = Threshold(
        limit=30,
        unit="s",
        reason="requests wait and none runs; a healthy scheduler admits at once",
        source="reported vLLM scheduler deadlocks while /health returns 200",
    )

    def judge(self, case: Case) -> Finding:
        """Hold when an engine hangs."""
        for engine in case.engines:
            if (found := self.hang(engine, at=case.observation.at)) is not None:
                message = f"{found.told}. The engine hangs: restart it; more replicas do not help."
                value = round(found.seconds)
                seen = Evidence(name="time without a token", value=value, unit="s", threshold=found.limit)
                return Holds(message=message, evidence=(seen,))
        return Fails()

    def hang(self, engine: EngineWindow, *, at: float) -> Hang | None:
        """Return how long an engine with requests has computed no token, if for longer than the limit; else None.

        `at`: of the observation, in Unix seconds.
        """
        if engine.stalled_for is None or not all(one.running > 0 or one.waiting > 0 for one in engine.moments):
            return None
        # After minutes without a request the first one may take a while.
        stalled = min(engine.stalled_for, engine.busy_for)
        none_runs = all(moment.running == 0 for moment in engine.moments)
        limit = self.stalled_queue.limit if none_runs else self.stalled.limit
        if stalled < limit or _fills_cache(engine, since=at - stalled):
            return None
        last = engine.moments[-1]
        told = (
            f"{engine.key.pod or 'The engine'} has {last.running:.0f} running and {last.waiting:.0f} waiting "
            f"requests but computed no token for {stalled:.0f} s (threshold {limit:.0f} s)"
        )
        return Hang(pod=engine.key.pod, told=told, seconds=stalled, limit=limit)


def _fills_cache(engine: EngineWindow, *, since: float) -> bool:
    """Whether the KV cache moved after `since` (Unix seconds).

    Tokens of a prompt are counted with its first output token: 128,000 of them in chunks take minutes on a small GPU.
    An engine core that hangs sets no gauge any more.
    """
    return len({moment.kv for moment in engine.moments if moment.kv is not None and moment.time > since}) > 1
