"""Traffic generators: streams of requests for a fleet in virtual time, reproducible by their seed.

Separate from the fleet, so that a policy never changes which requests arrive: arrivals and lengths use random streams
of their own, and each client or conversation one by its number.
Must not: use engines, pods or a router.

    traffic = OpenLoop(RateCurve.constant(5.0), Content(Mix(prompt=Fixed(500), output=Fixed(100))), seed=1)
    while traffic.peek() <= until:
        request = traffic.take()
        ...  # and once it has ended, one way or the other:
        traffic.ended(request, at=finished, output_tokens=100)
"""

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

from vllm_autotuner.simulation.arrivals import RateCurve, arrival_times, random_stream
from vllm_autotuner.simulation.lengths import Lengths

__all__ = ["Change", "ClientRequest", "ClosedLoop", "Content", "Heedless", "Mix", "OpenLoop", "Traffic"]

PAUSE_AFTER_FAILURE: Final = 1.0
"""Seconds before a closed-loop client asks again after a failure, if it does not think for longer. Without a pause it
would ask endlessly within one moment of virtual time. Our choice: what client libraries wait at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """One request as a client wants it answered. Times in seconds, lengths in tokens."""

    number: int
    """Counts the requests of one stream from 0, in order of arrival."""
    at: float
    prompt_tokens: int
    output_tokens: int
    """Where the output ends by itself; `max_tokens` when it never would."""
    max_tokens: int
    """Where the client cuts it off: what the engine holds against max-model-len."""
    client: int | None = None
    """The closed-loop client or the conversation that it belongs to; None where requests have nothing in common."""
    turn: int = 0
    """Counts the requests of that client from 0."""
    history_tokens: int = 0
    """The beginning of the prompt that an engine still knows if it answered this client's turn before."""
    shared_tokens: int = 0
    """The beginning of the prompt that all requests share: an engine knows it after its first."""


class Traffic(Protocol):
    """A stream of requests in order of arrival."""

    @property
    def reacts(self) -> bool:
        """Whether an answer can bring about a request: then answers must be told when they happen, in order."""
        ...

    def peek(self) -> float:
        """Return when the next request comes as far as is known now; infinite when none is."""
        ...

    def take(self) -> ClientRequest:
        """Return that request and go on to the next. Raises IndexError when there is none."""
        ...

    def ended(self, request: ClientRequest, *, at: float, output_tokens: int | None) -> None:
        """Hear that a request has ended at a time, with this many tokens, or None when it failed for good."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What requests are like. Raises ValueError for what cannot be."""

    prompt: Lengths
    output: Lengths
    max_tokens: int | None = None
    """What clients send as `max_tokens`; outputs end there at the latest. None: each asks for what it will get."""
    runaway_share: float = 0.0
    """Part of the requests whose output never ends by itself: a loop of words until `max_tokens`, 0..1."""
    shared_tokens: int = 0
    """A beginning that all prompts share (a system prompt), on top of `prompt`."""

    def __post_init__(self) -> None:
        if not 0 <= self.runaway_share <= 1:
            raise ValueError("the share of runaway outputs must be 0 to 1")
        if self.runaway_share and self.max_tokens is None:
            raise ValueError("runaway outputs need max_tokens")
        if self.shared_tokens < 0 or (self.max_tokens is not None and self.max_tokens < 1):
            raise ValueError("shared_tokens must be 0 or more, max_tokens 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From `at` (seconds) on, requests are of another mix; the new one takes over evenly within `over` seconds."""

    at: float
    mix: Mix
    over: float = 0.0


@dataclass(frozen=True, slots=True)
class Content:
    """What requests are like over time. `changes`: in order of time."""

    first: Mix
    changes: tuple[Change, ...] = ()

    def draw(
        self, *, number: int, at: float, draws: random.Random, client: int | None = None, turn: int = 0
    ) -> ClientRequest:
        """Return a request. Takes four numbers, always, so that every later request is the same under another mix."""
        prompt, output, runs_away, which = (draws.random() for _ in range(4))
        mix = self._mix(at, which=which)
        output_tokens = mix.output.at(output)
        max_tokens = mix.max_tokens or output_tokens
        if runs_away < mix.runaway_share:
            output_tokens = max_tokens
        return ClientRequest(
            number=number,
            at=at,
            prompt_tokens=mix.shared_tokens + mix.prompt.at(prompt),
            output_tokens=min(output_tokens, max_tokens),
            max_tokens=max_tokens,
            client=client,
            turn=turn,
            shared_tokens=mix.shared_tokens,
        )

    def _mix(self, at: float, *, which: float) -> Mix:
        for change in reversed(self.changes):
            if at >= change.at + which * change.over:
                return change.mix
        return self.first


class Heedless:
    """An open loop: requests in order of time, independent of the service's answers."""

    def __init__(self, requests: Iterator[ClientRequest]) -> None:
        self._requests = requests
        self._next = next(requests, None)

    @property
    def reacts(self) -> bool:
        """See Traffic."""
        return False

    def peek(self) -> float:
        """See Traffic."""
        return math.inf if self._next is None else self._next.at

    def take(self) -> ClientRequest:
        """See Traffic."""
        if (request := self._next) is None:
            raise IndexError("no more requests")
        self._next = next(self._requests, None)
        return request

    def ended(self, request: ClientRequest, *, at: float, output_tokens: int | None) -> None:
        """See Traffic. The next one comes all the same."""


class OpenLoop(Heedless):
    """Requests drawn at a rate."""

    def __init__(self, rate: RateCurve, content: Content, *, burstiness: float = 1.0, seed: int = 0) -> None:
        times = arrival_times(rate, burstiness=burstiness, draws=random_stream(seed, "arrivals"))
        draws = random_stream(seed, "lengths")
        super().__init__(content.draw(number=number, at=at, draws=draws) for number, at in enumerate(times))


class ClosedLoop:
    """Clients that each have one request under way: the next one comes after the answer and a while of thinking.

    The n-th request of a client is the same whatever the service does; when it comes is up to the service.
    """

    def __init__(
        self, clients: int, content: Content, *, think: float = 0.0, start_within: float = 1.0, seed: int = 0
    ) -> None:
        """`think`: mean seconds between an answer and the next request (exponential).

        `start_within`: seconds over which the first requests are spread. Raises ValueError for what cannot be.
        """
        if clients < 0 or not (0 <= think < math.inf and 0 <= start_within < math.inf):
            raise ValueError("clients, think and start_within must be 0 or more")
        self._content = content
        self._think = think
        self._draws = [random_stream(seed, "client", client) for client in range(clients)]
        self._numbers = count()
        self._due: list[tuple[float, int, int]] = [
            (draws.random() * start_within, client, 0) for client, draws in enumerate(self._draws)
        ]
        heapq.heapify(self._due)

    @property
    def reacts(self) -> bool:
        """See Traffic."""
        return True

    def peek(self) -> float:
        """See Traffic."""
        return self._due[0][0] if self._due else math.inf

    def take(self) -> ClientRequest:
        """See Traffic."""
        if not self._due:
            raise IndexError("no more requests")
        at, client, turn = heapq.heappop(self._due)
        return self._content.draw(
            number=next(self._numbers), at=at, client=client, turn=turn, draws=self._draws[client]
        )

    def ended(self, request: ClientRequest, *, at: float, output_tokens: int | None) -> None:
        """See Traffic."""
        if request.client is None:
            raise ValueError("this request belongs to no client of this closed loop")
        pause = self._draws[request.client].expovariate(1.0) * self._think
        if output_tokens is None:
            pause = max(pause, PAUSE_AFTER_FAILURE)
        heapq.heappush(self._due, (at + pause, request.client, request.turn + 1))
