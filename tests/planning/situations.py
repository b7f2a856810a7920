"""A service whose seats are all taken while its KV cache is half empty, but for what a test names."""

from collections.abc import Sequence
from dataclasses import replace

from tests.builders import engine, latency, named, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import IntBounds, ScaleIn, ScaleOut, Scaling, Tuning
from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.observation import Observation, StepPoint
from vllm_autotuner.planning.situation import Situation

SEATS = 64

CAPPED = observation(engine(running=64.0, waiting=100.0, kv=0.32))
"""64 sequences take 32 % of the pool: with a tenth left free it holds 180."""
SLOW = observation(engine(running=64.0, kv=0.32), tpot=latency(0.08), itl=latency(0.08))
"""Tokens come at 80 ms; the default objective is 50 ms."""


def line(*batches: float, base: float, per_sequence: float) -> tuple[StepPoint, ...]:
    """Windows that lie exactly on a line (seconds)."""
    return tuple(StepPoint(running=batch, itl=base + per_sequence * batch, tokens=1000) for batch in batches)


def bounds(low: int, high: int) -> Tuning:
    return Tuning(max_num_seqs=IntBounds(min=low, max=high))


def scaling(low: int = 1, high: int = 4) -> Scaling:
    return Scaling(min_replicas=low, max_replicas=high, scale_out=ScaleOut(), scale_in=ScaleIn())


def diagnosis(primary: DiagnosisClass, *, confidence: Confidence = Confidence.HIGH, since: float = 0.0) -> Diagnosis:
    return Diagnosis(primary=primary, confidence=confidence, since=since, message="A sentence.")


def situation(
    seen: Observation = CAPPED,
    *,
    primary: DiagnosisClass | None = None,
    seats: int | None = SEATS,
    tuning: Tuning | None = None,
    failed: Sequence[int] = (),
    against: Targets | None = None,
    replicas: int = 1,
    scale: Scaling | None = None,
) -> Situation:
    """With the diagnosis that the observation gets, or the one that is named."""
    wanted = against or targets()
    found = named(seen, seats=seats, against=wanted) if primary is None else diagnosis(primary)
    return Situation(
        observation=seen,
        diagnosis=found,
        targets=wanted,
        knobs=EngineKnobs(max_num_seqs=seats),
        tuning=tuning if tuning is not None else bounds(1, 4096),
        replicas=replicas,
        scaling=scale,
        failed_seats=tuple(failed),
    )


def with_steps(seen: Observation, steps: tuple[StepPoint, ...]) -> Observation:
    return replace(seen, steps=steps)
