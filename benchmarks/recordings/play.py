"""A reconstructed workload on the simulated engine in virtual time, scraped when the recording was.

What comes out is a recording again: the engine's `/metrics` page, read by the same reader as the real one's.
Must not: know what the real engine did, but for when it was scraped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.recordings.read import Recorded, read_columns
from vllm_autotuner.engine.flags import EngineFlags
from vllm_autotuner.observation.metrics_text import read_samples
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.simulation.configuration import EngineConfig, Profile, configure
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.metrics_page import render
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Request
from vllm_autotuner.simulation.step_duration import StepLaw

__all__ = ["Replayed", "configuration", "play"]

CPU_SEATS: Final = 128
CPU_STEP_TOKENS: Final = 2048
"""max-num-seqs and max-num-batched-tokens of a vLLM server on a CPU when the flags are not given (vLLM, engine
arguments). The description of a recording from another machine says what those were there (`defaults`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What the simulated engine did."""

    recorded: Recorded
    recomputed_per_preemption: float
    """Tokens; 0 without preemptions."""


def configuration(recorded: Recorded, *, flags: EngineFlags, law: StepLaw) -> EngineConfig:
    """Return the recorded engine's configuration: pool and block size as it exported them, the rest by its flags."""
    profile = Profile(
        gpu_blocks=recorded.num_gpu_blocks,
        block_size=recorded.block_size,
        max_num_seqs=CPU_SEATS,
        max_num_batched_tokens=CPU_STEP_TOKENS,
    )
    # What the flags say of memory made the pool that the engine exported: told once.
    exported = replace(flags, num_gpu_blocks_override=recorded.num_gpu_blocks)
    return replace(configure(exported, profile=profile), law=law, model_name=recorded.model_name)


def play(
    recorded: Recorded, requests: Sequence[Request], *, config: EngineConfig, faults: Faults | None = None
) -> Replayed:
    """Submit each request at its time and scrape at the recording's own times."""
    engine = SimulatedEngine(config, faults=faults)
    source = Recording()
    pending = list(reversed(requests))
    for at in recorded.times.tolist():
        while pending and pending[-1].arrival <= at:
            request = pending.pop()
            engine.advance(request.arrival)
            engine.submit(request)
        engine.advance(at)
        page = render(engine.metrics, config, created=recorded.start)
        for sample in read_samples(page.splitlines()):
            if sample.name.startswith("vllm:"):
                # As recorded: when the real engine's process began was not, and it was not when its recording did.
                source.add(sample, time=recorded.start + at)
    preemptions = engine.metrics.preemptions
    return Replayed(
        recorded=read_columns(source, name=recorded.name),
        recomputed_per_preemption=engine.metrics.recomputed_tokens / preemptions if preemptions else 0.0,
    )
