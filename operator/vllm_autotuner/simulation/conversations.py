"""Traffic of conversations with several turns: each prompt is the whole conversation so far plus a new part.

Separate from `traffic`, because the content of a request depends here on the answers before it.
Must not: decide what an engine has cached of a conversation; `routing` does, by which pod answered it.
"""

import heapq
import math
import random
from dataclasses import dataclass, replace
from itertools import count

from vllm_autotuner.simulation.arrivals import RateCurve, arrival_times, random_stream
from vllm_autotuner.simulation.lengths import Lengths
from vllm_autotuner.simulation.traffic import ClientRequest, Content

__all__ = ["Conversations"]


@dataclass(slots=True, kw_only=True)
class _Conversation:
    """An active conversation. `next`: the turn that is due while no answer is pending."""

    draws: random.Random
    turns: int
    next: ClientRequest


class Conversations:
    """Conversations that begin at a rate; a next turn comes after the answer and a while of reading and typing.

    Turn n of conversation k holds the same whatever the service does; when it comes is up to the service.
    """

    def __init__(
        self,
        starts: RateCurve,
        content: Content,
        *,
        turns: Lengths,
        think: float,
        burstiness: float = 1.0,
        longest: int | None = None,
        seed: int = 0,
    ) -> None:
        """`content`: the new part of each turn. `turns`: how many of them. `think`: mean seconds between turns.

        `longest`: tokens of prompt and `max_tokens` above which there is no further turn: the engine would refuse it.
        Raises ValueError for what cannot be.
        """
        if not 0 <= think < math.inf or (longest is not None and longest < 1):
            raise ValueError("think must be 0 s or more, and the longest conversation 1 token or more")
        self._starts = enumerate(arrival_times(starts, burstiness=burstiness, draws=random_stream(seed, "starts")))
        self._content, self._turns, self._think, self._longest, self._seed = (
            content,
            turns,
            think,
            longest,
            seed,
        )
        self._numbers = count()
        self._open: dict[int, _Conversation] = {}
        self._due: list[tuple[float, int]] = []
        """(time, conversation); of those that have not begun only the next one."""
        self._begin_next()

    def _begin_next(self) -> None:
        if (start := next(self._starts, None)) is None:
            return
        client, at = start
        draws = random_stream(self._seed, "conversation", client)
        turns = self._turns.at(draws.random())
        first = self._content.draw(number=0, at=at, client=client, turn=0, draws=draws)
        self._open[client] = _Conversation(draws=draws, turns=turns, next=first)
        heapq.heappush(self._due, (at, client))

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
        _, client = heapq.heappop(self._due)
        request = self._open[client].next
        if request.turn == 0:
            self._begin_next()
        return replace(request, number=next(self._numbers))

    def ended(self, request: ClientRequest, *, at: float, output_tokens: int | None) -> None:
        """See Traffic. Who got no answer goes away."""
        if request.client is None or request.client not in self._open:
            raise ValueError("this request belongs to no active conversation")
        talk, turn = self._open[request.client], request.turn + 1
        at += talk.draws.expovariate(1.0) * self._think
        new = self._content.draw(number=0, at=at, client=request.client, turn=turn, draws=talk.draws)
        history = request.prompt_tokens + (output_tokens or 0)
        prompt_tokens = history + new.prompt_tokens - new.shared_tokens
        too_long = self._longest is not None and prompt_tokens + new.max_tokens > self._longest
        if output_tokens is None or turn >= talk.turns or too_long:
            del self._open[request.client]
            return
        talk.next = replace(new, prompt_tokens=prompt_tokens, history_tokens=history)
        heapq.heappush(self._due, (at, request.client))
