"""Builders for the simulated engine in virtual time."""

import random
from collections.abc import Callable
from typing import Any

from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Outcome, Request
from vllm_autotuner.simulation.step_duration import StepTimes, step_law

Samples = list[tuple[float, int, int, float]]
"""(time, running, waiting, KV usage), as a scrape would see them."""


def config(**changes: Any) -> EngineConfig:
    """An engine with room for everything but for what is named; steps of 10 ms + 0.1 ms per sequence."""
    times = StepTimes(base_ms=10, per_sequence_ms=0.1, per_ktoken_ms=0.05, prefill_per_token_ms=0.02)
    given = {
        "max_num_seqs": 64,
        "max_model_len": 2048,
        "num_gpu_blocks": 4096,
        "law": step_law(times, tensor_parallel_size=1, kv_heads=8),
        "max_num_batched_tokens": 2048,
    }
    return EngineConfig(**{**given, **changes})


def toy_law() -> Any:
    """Steps of the toy model in the recordings: about 2 ms alone, 4 to 5 ms at eight sequences."""
    times = StepTimes(base_ms=1.4, per_sequence_ms=0.15, per_ktoken_ms=0.05, prefill_per_token_ms=0.045)
    return step_law(times, tensor_parallel_size=1, kv_heads=4)


def poisson(
    *, rate: float, seconds: float, prompt: tuple[int, int], output: tuple[int, int], seed: int = 1
) -> list[Request]:
    """Requests at random times with even lengths."""
    draw = random.Random(seed)
    at, requests = draw.expovariate(rate), []
    while at < seconds:
        requests.append(Request(arrival=at, prompt_tokens=draw.randint(*prompt), max_tokens=draw.randint(*output)))
        at += draw.expovariate(rate)
    return requests


def play(
    engine: SimulatedEngine,
    requests: list[Request],
    *,
    until: float | None = None,
    scrape_every: float = 2.0,
    look: Callable[[], None] = lambda: None,
) -> tuple[list[Outcome], Samples]:
    """Submit the requests at their time and scrape; then run on, to `until` or until nothing is left."""
    outcomes: list[Outcome] = []
    samples: Samples = []
    scrape = engine.started + scrape_every

    def pass_to(now: float) -> None:
        nonlocal scrape
        while scrape <= now:
            outcomes.extend(engine.advance(scrape))
            metrics = engine.metrics
            samples.append((scrape, metrics.running, metrics.waiting, metrics.kv_usage))
            scrape += scrape_every
            look()
        outcomes.extend(engine.advance(now))

    for request in requests:
        pass_to(request.arrival)
        engine.submit(request)
        look()
    if until is not None:
        pass_to(until)
    while until is None and (due := engine.next_step_end) is not None:
        pass_to(due)
        look()
    return outcomes, samples


def closed_loop(
    engine: SimulatedEngine, *, clients: int, prompt: int, output: int, seconds: float, spread: float = 1.0
) -> list[Outcome]:
    """Let each client send its next request when it has its answer; their starts are spread over `spread` seconds."""
    outcomes: list[Outcome] = []
    starts = [index * spread / clients for index in range(clients)]
    while True:
        due = engine.next_step_end
        if starts and (due is None or starts[0] <= due):
            at = starts.pop(0)
            finished = engine.advance(at)
            engine.submit(Request(arrival=at, prompt_tokens=prompt, max_tokens=output))
        elif due is None or due > seconds:
            return outcomes
        else:
            at = due
            finished = engine.advance(at)
        outcomes.extend(finished)
        for _ in finished:
            engine.submit(Request(arrival=at, prompt_tokens=prompt, max_tokens=output))
