"""The limits of a simulation: an unstable queue, and figures beyond what was measured on real engines.

Apart from the figures, because these are limits of the model, not of the service. Must not: change a figure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_autotuner.cli.simulate.run_figures import Figures
from vllm_autotuner.cli.simulate.simulated_service import Run

__all__ = ["Note", "notes_of"]

BACKLOG: Final = 0.05
"""Share of all requests still in progress at the end from which the queue is called unstable. Our choice."""
FAR: Final = 1.5
"""Times the largest measured value from which a figure is called far from it. Our choice: a straight line holds a
little beyond its ends."""


@dataclass(frozen=True, slots=True)
class Note:
    """`kind` is the same for the same limit, whatever the figures in `text`."""

    kind: str
    text: str


def notes_of(run: Run, figures: Figures) -> tuple[Note, ...]:
    """Return the notes, the gravest first."""
    return (*_backlog(run, figures), *_beyond_measurements(run, figures))


def _backlog(run: Run, figures: Figures) -> Iterable[Note]:
    gauges = run.measured_gauges
    half = len(gauges) // 2
    early = sum(each.waiting for each in gauges[:half]) / max(1, half)
    late = sum(each.waiting for each in gauges[half:]) / max(1, len(gauges) - half)
    if figures.unanswered > BACKLOG * run.arrived and late > FAR * early:
        yield Note("backlog", "the queue kept growing, so TTFT and goodput depend on the length of the simulation")


def _beyond_measurements(run: Run, figures: Figures) -> Iterable[Note]:
    document, tp = run.scenario.profile, run.config.tensor_parallel_size
    if tp not in document.tensor_parallel_sizes:
        known = ", ".join(map(str, document.tensor_parallel_sizes))
        text = f"{document.name} was measured at tensor parallel size {known}; size {tp} is scaled from it"
        yield Note("tensor-parallel-size", text)
        return
    laws = document.provenance.get("laws")
    law = laws.get(str(tp)) if isinstance(laws, Mapping) else None
    if not isinstance(law, Mapping):
        return
    running = figures.running.mean / run.scenario.replicas
    if (most := _upper(law, "batch")) is not None and running > FAR * most:
        text = (
            f"{running:.0f} sequences were running per replica; step times of {document.name} were measured up to "
            f"{most:.0f}"
        )
        yield Note("batch", text)
    pool = (run.config.num_gpu_blocks - 1) * run.config.block_size
    context = figures.kv.mean * pool / running if running >= 1 else 0.0
    if (most := _upper(law, "context_tokens")) is not None and context > FAR * most:
        text = (
            f"sequences had {context:,.0f} tokens on average; step times of {document.name} were measured up to "
            f"{most:,.0f}, beyond that the cost of reading the KV cache is estimated from the GPU's bandwidth"
        )
        yield Note("context", text)


def _upper(law: Mapping[str, Any], name: str) -> float | None:
    """Return the upper end of a measured range; profiles of users may lack it."""
    match law.get(name):
        case [float() | int(), float() | int() as upper]:
            return float(upper)
        case _:
            return None
