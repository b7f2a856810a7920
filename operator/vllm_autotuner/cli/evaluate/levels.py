"""The numbers of one evaluation that plots and live tables show; None where unknown.

Must not: judge. Seconds, shares 0..1, requests.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from vllm_autotuner.diagnosis.case import Case, kv_max, kv_mean, tpot_reading
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.reading import number

__all__ = ["Levels", "levels_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """One service at one moment (Unix seconds). Latencies at the quantiles of the objectives."""

    time: float
    named: DiagnosisClass
    engines: int
    ttft: float | None
    tpot: float | None
    kv_mean: float | None
    kv_max: float | None
    running: float | None
    waiting: float | None


def levels_of(case: Case, *, named: DiagnosisClass) -> Levels:
    """Read the levels; several engines add up in their requests, and the fullest one is the maximum of KV usage."""
    observation = case.observation
    means = _known(kv_mean(engine) for engine in case.engines)
    latest = [engine.moments[-1] for engine in case.engines]
    return Levels(
        time=observation.at,
        named=named,
        engines=len(case.engines),
        ttft=number(observation.ttft.quantile(case.targets.ttft.quantile)),
        tpot=number(tpot_reading(case)),
        kv_mean=sum(means) / len(means) if means else None,
        kv_max=max(_known(kv_max(engine) for engine in case.engines), default=None),
        running=sum(moment.running for moment in latest) if latest else None,
        waiting=sum(moment.waiting for moment in latest) if latest else None,
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
