"""What is said of an engine before it is measured, or from a single load, against what was then measured.

Step times: the priors of the data sheet (`measured_curves.priors`), of which the product has the constants
(`performance.physics`), and the product's own line of engines in general from one load. KV cache: the product's
arithmetic. Prompts: the prior of a prompt token against what a contended engine computed.
Must not: fit. What nothing is known of is None, with the reason.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.gpu_sweeps.tables import GPU, MODELS, Sweep, SweepPoint
from benchmarks.measured_curves.priors import LawPriors, physics_priors
from benchmarks.measured_curves.step_sample import steady_sample
from benchmarks.recordings.read import read_recorded
from vllm_autotuner.diagnosis.prefill_bound import BUSY
from vllm_autotuner.engine.geometry import Geometry, geometry_named
from vllm_autotuner.engine.hardware import gpu_named
from vllm_autotuner.performance.kv_capacity import kv_bytes_per_token_per_gpu
from vllm_autotuner.performance.physics import empty_step

__all__ = ["PART_NAMES", "Prompts", "Told", "kv_bytes", "prompts_of", "told_before", "told_from_one"]

PART_NAMES: Final = ("base", "sequences", "held tokens", "prompts")
BYTES_PER_WEIGHT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One point foretold; seconds."""

    clients: int
    measured: float
    foretold: float | None
    parts: tuple[float, ...] = ()
    """Of what was foretold, as `PART_NAMES`."""

    @property
    def error(self) -> float | None:
        """Relative, signed."""
        return None if self.foretold is None else self.foretold / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Prompt tokens per second of an engine that is kept busy by them."""

    foretold: float
    mean: float
    """Over the phase in which they came, idle moments included."""
    busy: float
    """Over the intervals that began and ended with requests running."""
    busy_share: float
    """Those intervals, of the phase's time."""


def priors_of(model: str) -> LawPriors:
    """Return what is expected before a measurement."""
    gpu = gpu_named(GPU)
    return physics_priors(geometry_named(model), gpu, tensor_parallel_size=1, bytes_per_weight=BYTES_PER_WEIGHT)


def told_before(sweep: Sweep) -> tuple[tuple[Told, ...], str]:
    """Return every point as the priors alone foretell it, and why there is nothing where there is nothing."""
    priors = priors_of(sweep.model)
    means = [
        None if prior is None else prior.mean
        for prior in (priors.base, priors.per_sequence, priors.per_held_token, priors.per_prefill_token)
    ]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(means):
        why = "the weights of this shape are not counted, so there is no prior of the step"
        return tuple(Told(clients=each.clients, measured=each.itl, foretold=None) for each in sweep.points), why
    told = []
    for point in sweep.points:
        work = steady_sample(batch=point.clients, prompt_tokens=point.prompt_tokens, output_tokens=point.output_tokens)
        amounts = (1.0, work.batch, work.held_tokens, work.prefill_tokens)
        parts = tuple(mean * amount for mean, amount in zip(known, amounts, strict=True))
        told.append(Told(clients=point.clients, measured=point.itl, foretold=sum(parts), parts=parts))
    return tuple(told), ""


def told_from_one(sweep: Sweep) -> tuple[Told, ...]:
    """Return the latency of the smallest load as the product's general line tells it from each other load alone.

    Nothing where the lengths differ from load to load.
    """
    lone = sweep.points[0]
    if any(each.prompt_tokens != lone.prompt_tokens for each in sweep.points):
        return ()
    return tuple(
        Told(clients=point.clients, measured=lone.itl, foretold=_general(point, batch=lone.clients))
        for point in sweep.points[1:]
    )


def _general(point: SweepPoint, *, batch: float) -> float:
    # As `planning.current_replica` does without a fitted line.
    alone = empty_step(
        point.itl,
        batch=point.clients,
        context=point.prompt_tokens + point.output_tokens / 2,
        prefilling=min(BUSY.limit, point.prefill_share),
    )
    return alone + max(0.0, point.itl - alone) / point.clients * batch


def kv_bytes(sweep: Sweep) -> tuple[float, int | None]:
    """Return the bytes of a token in the KV cache: measured, and by our arithmetic."""
    shape = geometry_named(sweep.model)
    told = kv_bytes_per_token_per_gpu(shape, tensor_parallel_size=1) if isinstance(shape, Geometry) else None
    return sweep.kv_bytes / sweep.kv_tokens, told


def prompts_of(samples: Path, *, phase: int) -> Prompts:
    """Return the speed of prompts in one phase of a recording. Raises BadRecording."""
    recorded, description = read_recorded(samples)
    model = MODELS["qwen3-8b"]
    prior = priors_of(model).per_prefill_token
    assert prior is not None, model
    starts = [each.start for each in description.phases] + [np.inf]
    at = recorded.times
    rows = [row for row in range(1, len(at)) if at[row - 1] >= starts[phase] and at[row] <= starts[phase + 1]]
    busy = [row for row in rows if recorded.running[row - 1] and recorded.running[row]]
    tokens, seconds = np.diff(recorded.prompt_tokens), np.diff(at)

    def of(column: np.ndarray, chosen: list[int]) -> float:
        return float(sum(column[row - 1] for row in chosen))

    return Prompts(
        foretold=1 / prior.mean,
        mean=of(tokens, rows) / of(seconds, rows),
        busy=of(tokens, busy) / of(seconds, busy),
        busy_share=of(seconds, busy) / of(seconds, rows),
    )
