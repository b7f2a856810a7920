"""Loads as windows show them: first tokens by the minute, and steps of the batches that they make."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.builders import INTERVAL, NOW, SCRAPES, WINDOW, engine, latency, observation

from vllm_autotuner.observation.observation import EngineWindow, FirstTokens, Observation, StepPoint
from vllm_autotuner.observation.reading import number
from vllm_autotuner.observation.snapshot import EngineKey

BASE, SLOPE = 0.010, 0.0001
"""Seconds of a step, and for each sequence in it."""
LENGTH = 800.0
"""Tokens of an answer after its first, which ends no step of its batch."""
TAIL = 1.1
"""p95 of TPOT over its mean."""


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


def batch_of(requests: float) -> float:
    """Sequences that run where so many requests come in a window. Worked: 138 in 30 s are 3,680 tokens/s and 58."""
    rate = requests * LENGTH / WINDOW
    return BASE * rate / (1 - SLOPE * rate)


def carrying(
    *loads: Sequence[float], engines: int | None = None, waiting: float | Sequence[float] = 0.0, **rest: Any
) -> Observation:
    """An engine for each list of requests in its windows, or `engines` that are alike; a sequence takes 0.1 % of KV.

    `waiting` is of each of them. Counters cover the time from its first scrape to its last: less than a window.
    """
    alike = loads * (engines or 1)
    of_now = [batch_of(load[-1]) for load in alike]
    pace = BASE + SLOPE * max(of_now)
    pods = [
        engine(pod=f"p-{number}", running=running, waiting=waiting, kv=0.001 * running)
        for number, running in enumerate(of_now)
    ]
    seen = {
        "steps": tuple(point for load in alike for point in steps([batch_of(each) for each in load])),
        "first_tokens": tuple(each for load in alike for each in served(load)),
        "ttft": latency(0.2),
        "itl": latency(pace, count=2000),
        "tpot": latency(pace, tail=TAIL * pace),
        "recent_output_length": latency(LENGTH + 1),
    }
    return observation(
        *(_made(pod, requests=load[-1] * pod.sampled / WINDOW) for pod, load in zip(pods, alike, strict=True)),
        **{**seen, **rest},
    )


def _made(pod: EngineWindow, *, requests: float) -> EngineWindow:
    return replace(pod, finished=requests, generation_tokens=requests * (LENGTH + 1))


def queue(more: float, *, first: float = 0.0) -> list[float]:
    """Requests that wait at each scrape, where so many more come in a window than are served."""
    return [first + more * scrape * INTERVAL / WINDOW for scrape in range(SCRAPES)]


def in_pods(seen: Observation, *, cores: int) -> Observation:
    """The same engines with so many in each pod, as data parallelism has them."""
    keys = [EngineKey("demo", f"chat-{index // cores}", str(index % cores)) for index in range(len(seen.engines))]
    engines = tuple(replace(one, key=key) for one, key in zip(seen.engines, keys, strict=True))
    return replace(seen, engines=engines, expected=len(engines) // cores)


def drafted(seen: Observation, *, per_step: float) -> Observation:
    """The same steps, each of which makes so many tokens of a sequence: longer answers in the same time."""
    engines = tuple(
        replace(one, generation_tokens=made * per_step, accepted_tokens=made * (per_step - 1))
        for one in seen.engines
        if (made := one.generation_tokens) is not None
    )
    mean = number(seen.tpot.mean) or 0.0
    tpot = latency(mean / per_step, tail=TAIL * mean / per_step)
    return replace(seen, engines=engines, recent_output_length=latency(LENGTH * per_step + 1), tpot=tpot)
