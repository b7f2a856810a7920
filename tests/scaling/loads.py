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


def steps(batches: Sequence[float]) -> tuple[StepPoint, ...]:
    """Windows of one engine, the last one now: tokens are what a batch makes at its pace."""
    paces = [BASE + SLOPE * batch for batch in batches]
    begin = NOW - WINDOW * (len(batches) - 1)
    return tuple(
        StepPoint(running=batch, itl=itl, tokens=batch / itl * WINDOW, time=begin + WINDOW * window)
        for window, (batch, itl) in enumerate(zip(batches, paces, strict=True))
    )


def minutes(first: float, *, more: float, windows: int = 20) -> list[float]:
    """Requests in one window after another."""
    return [first + more * window for window in range(windows)]


def carrying(requests: Sequence[float], *, engines: int = 2) -> Observation:
    """Engines that serve alike, each of them so many requests in each window; p95 of TPOT is a tenth above its mean.

    At 138 in 30 s an engine makes 3,680 tokens/s: at steps of 10 ms and 0.1 ms a sequence that is a batch of 58.
    """
    rates = [count * LENGTH / WINDOW for count in requests]
    seen = steps([BASE * rate / (1 - SLOPE * rate) for rate in rates])
    pods = [engine(pod=f"p-{n}", running=seen[-1].running) for n in range(engines)]
    return observation(
        *(replace(pod, generation_tokens=rates[-1] * pod.sampled) for pod in pods),
        steps=seen * engines,
        first_tokens=served(requests) * engines,
        ttft=latency(0.2),
        tpot=latency(seen[-1].itl, tail=1.1 * seen[-1].itl),
    )
