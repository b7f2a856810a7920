"""The waiting queue as in vLLM's V1 scheduler: requests that wait for capacity, and deferred requests.

It combines two queues: requests that wait for slots and blocks, and those that a temporary constraint defers, here a
grammar that is being compiled (in vLLM also LoRA and KV transfers). Deferred requests do not block others, and once
they are ready they come first. As in vLLM, because its gauges distinguish the two.
Separate from the scheduler, which manages slots and blocks. Must not: admit, or read a clock.
"""

import math
from bisect import bisect
from collections import deque
from collections.abc import Iterator
from itertools import chain

from vllm_autotuner.simulation.sequence import SchedulingPolicy, Sequence


class WaitingQueue:
    """First come first served, or by priority (the lower number first) and then by arrival."""

    __slots__ = ("_by_priority", "capacity", "deferred")

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._by_priority = policy is SchedulingPolicy.PRIORITY
        self.capacity: deque[Sequence] = deque()
        """Requests that wait for slots and blocks. For reading."""
        self.deferred: deque[Sequence] = deque()
        """Requests that are deferred, or were and now wait for slots and blocks: vLLM moves them only to admit them."""

    def __len__(self) -> int:
        return len(self.capacity) + len(self.deferred)

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self.deferred, self.capacity)

    def add(self, sequence: Sequence, *, now: float) -> None:
        """Queue a new one."""
        queue = self.deferred if sequence.ready_at > now else self.capacity
        if self._by_priority:
            self._insert(queue, sequence)
        else:
            queue.append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Queue one that was preempted: before the others that wait, or by its priority."""
        if self._by_priority:
            self._insert(self.capacity, sequence)
        else:
            self.capacity.appendleft(sequence)

    def next(self, now: float) -> Sequence | None:
        """Return the request to admit next; None if none can be admitted, regardless of capacity."""
        first = self.capacity[0] if self.capacity else None
        if not self.deferred:
            return first
        ready = next((sequence for sequence in self.deferred if sequence.ready_at <= now), None)
        if ready is None or first is None:
            return ready or first
        return first if self._by_priority and first.rank < ready.rank else ready

    def remove(self, sequence: Sequence) -> None:
        """Take one out: admitted, or its client went away."""
        if self.capacity and self.capacity[0] is sequence:
            self.capacity.popleft()
        elif sequence in self.deferred:
            self.deferred.remove(sequence)
        else:
            self.capacity.remove(sequence)

    def ready_after(self, now: float) -> float:
        """Return when the next deferred one becomes ready; infinite when none will."""
        return min((sequence.ready_at for sequence in self.deferred if sequence.ready_at > now), default=math.inf)

    @staticmethod
    def _insert(queue: deque[Sequence], sequence: Sequence) -> None:
        queue.insert(bisect(queue, sequence.rank, key=lambda each: each.rank), sequence)
