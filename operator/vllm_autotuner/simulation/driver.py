"""Runs the simulated engine in real time: one task ends steps when they are due and notifies waiting requests.

Separate from the server, which handles HTTP, and from the engine, which has no clock.
Must not: measure how long a step took. A step ends at the time that the engine computed, so a late wake-up delays
answers by a tick but never shifts the next step: metrics stay exact and nothing drifts.
"""

import asyncio
import random
from collections.abc import Callable

from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Outcome, Request, Sequence

TICK = 0.02
"""Least seconds between two wake-ups without streaming clients: saves CPU and delays answers by 10 ms."""
STREAMING_TICK = 0.005
"""The same with streaming clients."""


class Generation:
    """One request under way: await `outcome`, or for a stream `progress` repeatedly."""

    __slots__ = ("outcome", "progress", "sequence")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.progress = asyncio.Event()


class EngineDriver:
    """Drives one engine by a monotonic clock."""

    def __init__(
        self,
        engine: SimulatedEngine,
        *,
        clock: Callable[[], float],
        eos_mean_tokens: float | None = None,
        runaway_share: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.engine = engine
        self._clock = clock
        self._eos_mean_tokens = eos_mean_tokens
        self._runaway_share = runaway_share
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._generations: dict[int, Generation] = {}
        self._streaming: set[int] = set()
        self._work = asyncio.Event()

    def catch_up(self) -> float:
        """Let every step end that is due, tell those who wait, and return the time up to which that is done."""
        now = self._clock()
        for outcome in self.engine.advance(now):
            generation = self._generations.pop(outcome.sequence.identity)
            if not generation.outcome.done():
                generation.outcome.set_result(outcome)
        for identity in self._streaming:
            if identity in self._generations:
                self._generations[identity].progress.set()
        return now

    def submit(
        self, *, prompt_tokens: int, max_tokens: int, ignore_eos: bool, stream: bool, priority: int = 0
    ) -> Generation:
        """Queue a request now. Raises RequestRefused. Call `leave` when its client is served or gone."""
        # One reading of the clock for both: a step that ends between two readings would lie before the arrival.
        now = self.catch_up()
        eos_after = None
        if self._eos_mean_tokens and not ignore_eos:
            ends, length = self._random.random() >= self._runaway_share, self._random.expovariate(1.0)
            eos_after = 1 + int(length * self._eos_mean_tokens) if ends else None
        request = Request(
            arrival=now, prompt_tokens=prompt_tokens, max_tokens=max_tokens, eos_after=eos_after, priority=priority
        )
        generation = Generation(self.engine.submit(request))
        identity = generation.sequence.identity
        self._generations[identity] = generation
        if stream:
            self._streaming.add(identity)
            generation.outcome.add_done_callback(lambda _: generation.progress.set())
        self._work.set()
        return generation

    def leave(self, generation: Generation) -> None:
        """Forget a request; abort it when it is not finished."""
        identity = generation.sequence.identity
        self._streaming.discard(identity)
        if self._generations.pop(identity, None) is not None:
            self.catch_up()
            self.engine.abort(generation.sequence)

    async def run(self) -> None:
        """Drive until cancelled."""
        while True:
            due = self.engine.next_step_end
            if due is None:
                self._work.clear()
                await self._work.wait()
            else:
                tick = STREAMING_TICK if self._streaming else TICK
                await asyncio.sleep(max(due - self._clock(), tick))
            self.catch_up()
