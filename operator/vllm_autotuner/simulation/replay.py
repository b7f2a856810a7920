"""Replays a recorded trace as traffic: at its own or another speed or rate, once or repeatedly.

Separate from `traces`, which reads files. Must not: change the content of a request.
"""

import math
import random
from collections.abc import Iterator
from itertools import count
from typing import Final

from vllm_autotuner.simulation.arrivals import random_stream
from vllm_autotuner.simulation.traces import RecordedRequest, RequestTrace
from vllm_autotuner.simulation.traffic import ClientRequest, Heedless

__all__ = ["Replay"]

SPREAD: Final = 60.0
"""Seconds of the recording over which further copies of a request are spread, when the rate is raised: its minutes stay
what they were, and no copies come at once. Our choice."""


class Replay(Heedless):
    """The requests of a trace, from its first arrival on. Pairs of prompt and output stay together."""

    def __init__(
        self,
        trace: RequestTrace,
        *,
        speed: float = 1.0,
        rate: float = 1.0,
        repeat: bool = False,
        max_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        """`speed` 2 plays an hour in half an hour; `rate` 0.5 leaves out every second request, 3 plays each thrice.

        `max_tokens`: what clients send, None: what they got. Raises ValueError for what cannot be.
        """
        if not (math.isfinite(speed) and speed > 0 and math.isfinite(rate) and rate > 0):
            raise ValueError("speed and rate of a replay must be above 0")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError("max_tokens must be 1 or more")
        if rate * len(trace.requests) < 1:
            raise ValueError("at this replay rate no request of the trace remains")
        self._trace, self._speed, self._rate, self._repeat = trace, speed, rate, repeat
        self._max_tokens = max_tokens
        super().__init__(self._played(random_stream(seed, "replay")))

    def _played(self, draws: random.Random) -> Iterator[ClientRequest]:
        numbers = count()
        # One mean gap between the last request and the first of the next round.
        length = self._trace.seconds + 1 / self._trace.rate
        for rounds in count():
            for at, recorded in self._round(draws):
                output = recorded.output_tokens
                max_tokens = self._max_tokens or output
                yield ClientRequest(
                    number=next(numbers),
                    at=(rounds * length + at) / self._speed,
                    prompt_tokens=recorded.prompt_tokens,
                    output_tokens=min(output, max_tokens),
                    max_tokens=max_tokens,
                )
            if not self._repeat:
                return

    def _round(self, draws: random.Random) -> list[tuple[float, RecordedRequest]]:
        first, length = self._trace.requests[0].at, self._trace.seconds
        spread = min(SPREAD, length)
        played = []
        for recorded in self._trace.requests:
            # Two draws for every line, whatever the rate is.
            kept, place = draws.random(), draws.random()
            copies = math.floor(self._rate) + (kept < self._rate % 1)
            for copy in range(copies):
                at = recorded.at - first
                if copy:
                    at += spread * ((place + copy / copies) % 1)
                    at = at if at <= length else at - length
                played.append((at, recorded))
        played.sort(key=lambda each: each[0])
        return played
