"""A measured point played on the simulated engine in virtual time: the same load, the same lengths, the same seats.

Apart from the fit, so that what is compared with the measurement is the engine's behaviour and not the law again:
queues, the KV pool, preemption and prompts between tokens come from the scheduler.
Must not: know the measured latencies.

A closed loop is played from its steady state when lengths are exact: client i has i / N of its request behind it.
Started all at once, clients of one length would stay in step for ever, which no real client does. Where the load
generator drew lengths, it is played as it ran: all clients at once, ten requests each.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Outcome, Request

__all__ = ["Lengths", "Played", "play_closed", "play_open"]

ROUNDS_IN_STEP: Final = 10
"""Requests per client of a load that starts all at once: what the load generators of such curves send."""
ROUNDS_STEADY: Final = 3
"""Requests per client from the steady state: the rest of one, one to settle, one that counts."""
OPEN_REQUESTS: Final = 1500
"""Requests of an open loop; the first fifth fills the engine and does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of a request: nominal, or drawn evenly from `shortest` of it up to all of it."""

    prompt: float
    output: float
    shortest: float

    def draw(self, generator: random.Random) -> tuple[int, int]:
        """Return prompt and output tokens of the next request."""
        prompt, output = self.prompt, self.output
        if self.shortest < 1:
            prompt *= generator.uniform(self.shortest, 1)
            output *= generator.uniform(self.shortest, 1)
        return max(1, round(prompt)), max(2, round(output))


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What clients saw; seconds."""

    tpot: float
    ttft: float
    preemptions: int
    requests: int
    """Those that counted."""


def play_closed(config: EngineConfig, *, clients: int, lengths: Lengths, seed: int) -> Played:
    """Play `clients` that each send their next request when they have their answer."""
    if lengths.shortest < 1:
        return _play_in_step(config, clients=clients, lengths=lengths, seed=seed)
    engine = SimulatedEngine(config, seed=seed)
    prompt, output = max(1, round(lengths.prompt)), max(2, round(lengths.output))
    client_of: dict[int, int] = {}
    for client in range(clients):
        done = output * client // clients
        request = Request(arrival=0.0, prompt_tokens=prompt + done, max_tokens=output - done)
        client_of[engine.submit(request).identity] = client
    finished, unfinished = [0] * clients, clients
    counted: list[Outcome] = []
    while unfinished and (due := engine.next_change) is not None:
        for outcome in engine.advance(due):
            client = client_of.pop(outcome.sequence.identity)
            finished[client] += 1
            if finished[client] >= ROUNDS_STEADY:
                counted.append(outcome)
            unfinished -= finished[client] == ROUNDS_STEADY
            request = Request(arrival=due, prompt_tokens=prompt, max_tokens=output)
            client_of[engine.submit(request).identity] = client
    return _played(counted, preemptions=engine.metrics.preemptions)


def _play_in_step(config: EngineConfig, *, clients: int, lengths: Lengths, seed: int) -> Played:
    engine, generator = SimulatedEngine(config, seed=seed), random.Random(seed)
    waiting = [lengths.draw(generator) for _ in range(clients * ROUNDS_IN_STEP)]

    def send(at: float) -> None:
        prompt, output = waiting.pop()
        engine.submit(Request(arrival=at, prompt_tokens=prompt, max_tokens=output))

    for _ in range(clients):
        send(0.0)
    counted: list[Outcome] = []
    while (due := engine.next_change) is not None:
        for outcome in engine.advance(due):
            counted.append(outcome)
            if waiting:
                send(due)
    return _played(counted, preemptions=engine.metrics.preemptions)


def play_open(config: EngineConfig, *, rate: float, lengths: Lengths, seed: int) -> Played:
    """Play requests that arrive at random (Poisson) and wait for nobody."""
    engine, generator = SimulatedEngine(config, seed=seed), random.Random(seed)
    at, outcomes = 0.0, []
    for _ in range(OPEN_REQUESTS):
        at += generator.expovariate(rate)
        prompt, output = lengths.draw(generator)
        outcomes.extend(engine.advance(at))
        engine.submit(Request(arrival=at, prompt_tokens=prompt, max_tokens=output))
    while (due := engine.next_change) is not None:
        outcomes.extend(engine.advance(due))
    first = at / 5
    return _played(
        [each for each in outcomes if each.sequence.request.arrival >= first], preemptions=engine.metrics.preemptions
    )


def _played(outcomes: Sequence[Outcome], *, preemptions: int) -> Played:
    return Played(
        tpot=sum(outcome.tpot for outcome in outcomes) / len(outcomes),
        ttft=sum(outcome.ttft for outcome in outcomes) / len(outcomes),
        preemptions=preemptions,
        requests=len(outcomes),
    )
