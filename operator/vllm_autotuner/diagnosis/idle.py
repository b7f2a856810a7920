"""Idle: metrics are fresh and there are no requests."""

from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds, Unknown

__all__ = ["Idle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """No request arrived, ran or waited in the whole window."""

    diagnosis: ClassVar = DiagnosisClass.IDLE

    def judge(self, case: Case) -> Finding:
        """Hold when every scrape of every engine is empty and no counter moved."""
        unknown = False
        for engine in case.engines:
            if any(moment.running > 0 or moment.waiting > 0 or (moment.deferred or 0) > 0 for moment in engine.moments):
                return Fails()
            # A short request may begin and end between two scrapes: the counters still show it. Of an embedding only
            # that of prompt tokens does.
            counted = (engine.finished, engine.generation_tokens, engine.prompt_tokens)
            if any(each is not None and each > 0 for each in counted):
                return Fails()
            unknown = unknown or (engine.sampled > 0 and all(each is None for each in counted))
        if unknown:
            return Unknown("no counter tells of requests that begin and end between two scrapes")
        seen = Evidence(name="requests", value=0, unit="requests", window=case.observation.window)
        return Holds(message="No requests; the metrics are fresh.", evidence=(seen,))
