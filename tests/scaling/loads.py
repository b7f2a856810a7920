"""Loads as windows show them: first tokens by the minute, and steps of the batches that they make."""

from collections.abc import Sequence
from dataclasses import replace

from tests.builders import NOW, WINDOW, engine, latency, observation

from vllm_autotuner.observation.observation import FirstTokens, Observation, StepPoint

BASE, SLOPE = 0.010, 0.0001
"""Seconds of a step, and for each sequence in it."""
LENGTH = 800.0
"""Tokens of an answer."""


def served(requests: Sequence[float]) -> tuple[FirstTokens, ...]:
    """One engine: so many first tokens in each window, the last one now; without any there is none."""
    begin = NOW - WINDOW * (len(requests) - 1)
    return tuple(
        FirstTokens(mean=0.2, requests=count, time=begin + WINDOW * window)
        for window, count in enumerate(requests)
        if count > 0
    )


def minutes(first: float, *, more: float, windows: int = 20) -> list[float]:
    """Requests in one window after another."""
    return [first + more * window for window in range(windows)]


def carrying(requests: Sequence[float], *, engines: int = 2) -> Observation:
    """Engines that serve alike, each of them so many requests in each window; p95 of TPOT is a tenth above its mean.

    At 138 in 30 s an engine makes 3,680 tokens/s: at steps of 10 ms and 0.1 ms a sequence that is a batch of 58.
    """
    batches, steps = [], []
    for count, first in zip(requests, served(requests), strict=True):
        tokens = count * LENGTH
        batch = BASE * tokens / WINDOW / (1 - SLOPE * tokens / WINDOW)
        batches.append(batch)
        steps.append(StepPoint(running=batch, itl=BASE + SLOPE * batch, tokens=tokens, time=first.time))
    pods = [engine(pod=f"p-{n}", running=batches[-1]) for n in range(engines)]
    return observation(
        *(replace(pod, generation_tokens=requests[-1] * LENGTH * pod.sampled / WINDOW) for pod in pods),
        steps=tuple(steps) * engines,
        first_tokens=served(requests) * engines,
        ttft=latency(0.2),
        tpot=latency(steps[-1].itl, tail=1.1 * steps[-1].itl),
    )
