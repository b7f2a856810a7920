"""The recordings of a real engine, and what really held in them, second by second.

The truth was read from the samples, not from the load generator's phases: it shared the CPU and fell behind, and a
backlog outlives the phase that made it (tests/data/vllm-0.32/README.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.builders import diagnosed

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Objectives
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis, History
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.observation.observation import Observation, observe
from vllm_autotuner.observation.questions import MetricsSource
from vllm_autotuner.observation.recording import Recording, load_recording
from vllm_autotuner.observation.snapshot import WindowSettings, take_snapshot

RECORDINGS = Path(__file__).parents[1] / "data" / "vllm-0.32" / "recordings"
TICK = 5.0
TWO_WINDOWS = 60.0


@dataclass(frozen=True, slots=True)
class Span:
    """What held from `start` to `end` (seconds after the recording's start). Empty: nothing that has one name."""

    start: float
    end: float
    holds: frozenset[DiagnosisClass]


def _span(start: float, end: float, *holds: DiagnosisClass) -> Span:
    return Span(start, end, frozenset(holds))


LIGHT = (DiagnosisClass.HEALTHY, DiagnosisClass.IDLE)
TRUTH = {
    "healthy": (_span(0, 181, *LIGHT),),
    "kv-saturation": (
        _span(0, 76, *LIGHT),
        # Five preemptions a second, 0.9 for each finished request: the milder name contributes.
        _span(76, 188, DiagnosisClass.PREEMPTION_THRASH),
        _span(188, 223, *LIGHT),
    ),
    "seats-saturation": (
        _span(0, 40, *LIGHT),
        # All seats taken in 10 of 30 samples, at most 8 waiting: neither name is wrong, and no name is right.
        _span(40, 107, *LIGHT, DiagnosisClass.UNCLEAR, DiagnosisClass.CONCURRENCY_CAPPED),
        _span(107, 168, DiagnosisClass.CONCURRENCY_CAPPED),
        _span(168, 223, *LIGHT),
    ),
}
SEATS = {"healthy": 64, "kv-saturation": 64, "seats-saturation": 4}


@cache
def recording(name: str) -> Recording:
    """Load once; asking does not change it."""
    return load_recording(RECORDINGS / f"{name}.om.gz")


async def observed(source: MetricsSource, *, at: float) -> Observation:
    """Look at all engines of the source at `at` (Unix seconds)."""
    snapshot = await take_snapshot(source, at=at, settings=WindowSettings())
    return observe(snapshot, snapshot.engines)


async def timeline(
    source: MetricsSource, *, moments: Sequence[float], seats: int | None
) -> Sequence[tuple[float, Diagnosis]]:
    """Evaluate `moments` in order, each with the history of those before."""
    history, found = History(), []
    for at in moments:
        named, history = diagnosed(
            await observed(source, at=at),
            targets=targets_of(Objectives()),
            knobs=EngineKnobs(max_num_seqs=seats),
            history=history,
        )
        found.append((at, named))
    return found


def moments_of(name: str) -> Sequence[float]:
    """Every 5 s of the recording, its start left out."""
    samples = recording(name)
    count = int((samples.last - samples.first) / TICK)
    return [samples.first + TICK * index for index in range(1, count + 1)]
