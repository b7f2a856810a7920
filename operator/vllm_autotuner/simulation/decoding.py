"""The batch of decoding sequences, in counts that make a step equally cheap to simulate for 1 or 1,000 of them.

Sequences are counted by the step at which each needs its next block, and their ends are kept in a heap.
Separate from the scheduler, because the needs of many steps together are arithmetic on these counts.
Must not: decide what runs, touch the pool, or use time: steps are counted (`tick`), not seconds.
"""

import heapq

from vllm_autotuner.simulation.sequence import Sequence, State


class DecodingBatch:
    """Every member gains one token with each step."""

    __slots__ = ("_block_size", "_endings", "_needing_block", "held_tokens", "size", "tick")

    def __init__(self, *, block_size: int) -> None:
        self.size = 0
        """Sequences that decode."""
        self.held_tokens = 0
        """Tokens whose KV they hold between them."""
        self.tick = 0
        """Steps of the engine so far."""
        self._block_size = block_size
        self._needing_block = [0] * block_size
        self._endings: list[tuple[int, int, Sequence]] = []

    def join(self, sequence: Sequence) -> None:
        """Take in a sequence whose prompt is complete and whose first token was emitted."""
        sequence.state = State.DECODING
        sequence.held_base = sequence.computed
        sequence.joined = self.tick
        sequence.finish_tick = self.tick + sequence.target - sequence.generated_base
        heapq.heappush(self._endings, (sequence.finish_tick, sequence.identity, sequence))
        self.size += 1
        self.held_tokens += sequence.held_base
        self._needing_block[(sequence.joined - sequence.held_base) % self._block_size] += 1

    def leave(self, sequence: Sequence) -> int:
        """Let a sequence go: finished, preempted or aborted. Returns what `held_by` did."""
        held = self.held_by(sequence)
        self.size -= 1
        self.held_tokens -= held
        self._needing_block[(sequence.joined - sequence.held_base) % self._block_size] -= 1
        return held

    def held_by(self, sequence: Sequence) -> int:
        """Return the tokens whose KV a member holds, without the step under way."""
        return sequence.held_base + self.tick - sequence.joined

    def step(self, steps: int) -> None:
        """Let so many steps have ended."""
        self.tick += steps
        self.held_tokens += steps * self.size

    def blocks_for_step(self, step: int) -> int:
        """Return the new blocks that the members need for a step; 0 is the next one."""
        return self._needing_block[(self.tick + step) % self._block_size]

    def blocks_for_steps(self, first: int, stop: int) -> int:
        """Return the new blocks that the members need from step `first` to before `stop`; 0 is the next."""
        rounds, rest = divmod(stop - first, self._block_size)
        begin = (self.tick + first) % self._block_size
        blocks = rounds * self.size + sum(self._needing_block[begin : begin + rest])
        if begin + rest > self._block_size:
            blocks += sum(self._needing_block[: begin + rest - self._block_size])
        return blocks

    def steps_within(self, blocks: int, *, limit: int) -> int:
        """Return how many steps, at most `limit`, these blocks suffice for; the next step's are taken already."""
        if -(-limit // self._block_size) * self.size <= blocks or self.blocks_for_steps(1, limit) <= blocks:
            return limit
        # In `block_size` steps every member needs exactly one block, so whole rounds are a division.
        rounds = blocks // self.size
        steps, left = 1 + rounds * self._block_size, blocks - rounds * self.size
        while (needed := self.blocks_for_step(steps)) <= left:
            left -= needed
            steps += 1
        return steps

    def steps_to_next_end(self) -> int:
        """Return after how many steps the next member ends. There must be one."""
        endings = self._endings
        # A sequence that was preempted or aborted leaves its old end behind.
        while (first := endings[0])[2].finish_tick != first[0] or first[2].state is not State.DECODING:
            heapq.heappop(endings)
        return first[0] - self.tick

    def ended(self) -> list[Sequence]:
        """Return the members whose last token the steps so far gave, in the order of their arrival."""
        found: list[Sequence] = []
        while self._endings and self._endings[0][0] <= self.tick:
            tick, _, sequence = heapq.heappop(self._endings)
            if sequence.state is State.DECODING and sequence.finish_tick == tick:
                found.append(sequence)
        return found
