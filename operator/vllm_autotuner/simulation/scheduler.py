"""The engine core: two queues, one pool of KV blocks, one step after the other. Pure: time is an argument.

Each step computes one token for every decoding sequence and fills the rest of its token budget with prompts. What a
step decides, it decides at its start; tokens, finished requests and gauges appear at its end.
Apart from the server, so that benchmarks can drive the same engine in virtual time.
Must not: read a clock, sleep, or know HTTP.
Kept as in vLLM's V1 scheduler, because diagnosis depends on it: running sequences go first; the latest is preempted
when the pool is exhausted, loses its blocks, goes back to the head of the queue and is computed again, which no token
counter shows; a prompt is admitted only when all of it fits. With prefix caching a preempted sequence finds again those
of its own full blocks that nobody has taken meanwhile, and computes only the rest.
One step costs the same for 1 or 1,000 decoding sequences: they are counted by the step at which each needs its next
block, and the ends of sequences lie in a heap.
"""

import heapq
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.kv_pool import KvPool
from vllm_autotuner.simulation.metrics import EngineMetrics
from vllm_autotuner.simulation.sequence import Outcome, Request, RequestRefused, Sequence, State


@dataclass(frozen=True, slots=True)
class _Step:
    """A step under way: when it ends, how long it takes, and whose prompt is complete after it."""

    end: float
    duration: float
    completing: list[Sequence]


class SimulatedEngine:
    """A vLLM engine that computes nothing. Call `advance` with the time, then `submit` what arrived."""

    def __init__(
        self, config: EngineConfig, *, started: float = 0.0, faults: Faults | None = None, seed: int = 0
    ) -> None:
        self.config = config
        self.metrics = EngineMetrics()
        self.faults = faults or Faults()
        self.started = started
        self._halts_at = started + self.faults.halts_after
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._pool = KvPool(num_blocks=config.num_gpu_blocks, block_size=config.block_size)
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}  # in order of admission: the last is the latest
        self._prefilling: list[Sequence] = []
        self._decoding = 0
        self._held_tokens = 0
        self._tick = 0  # steps so far
        self._needing_block = [0] * config.block_size
        self._endings: list[tuple[int, int, Sequence]] = []
        self._step: _Step | None = None
        self._submitted = 0

    @property
    def next_step_end(self) -> float | None:
        """When something will happen next, or None: idle, wedged or crashed."""
        if self._step is None or self._step.end > self._halts_at:
            return None
        return self._step.end

    @property
    def running(self) -> Iterable[Sequence]:
        """Sequences in the batch, the latest last."""
        return self._running.values()

    @property
    def waiting(self) -> Iterable[Sequence]:
        """Sequences in the queue, the next first."""
        return self._waiting

    @property
    def pool(self) -> KvPool:
        """The KV pool. For reading."""
        return self._pool

    def generated(self, sequence: Sequence) -> int:
        """Return the output tokens so far."""
        if sequence.state is State.DECODING:
            return sequence.generated_base + self._tick - sequence.joined
        return sequence.generated_base

    def blocks_of(self, sequence: Sequence) -> int:
        """Return the blocks that a sequence holds, those for the step under way included."""
        match sequence.state:
            case State.DECODING:
                in_flight = 0 if self._step is None else 1
                return self._pool.blocks_for(sequence.held_base + self._tick - sequence.joined + in_flight)
            case State.PREFILLING:
                return self._pool.blocks_for(sequence.computed)
            case State.WAITING | State.FINISHED:
                return 0

    def submit(self, request: Request) -> Sequence:
        """Queue a request at its arrival.

        Raises RequestRefused when it can never run, ValueError when steps before its arrival were not advanced.
        """
        self._refuse_impossible(request)
        if self._step is not None and self._step.end < min(request.arrival, self._halts_at):
            raise ValueError("steps are due before this arrival: call advance(arrival) first")
        self._submitted += 1
        sequence = Sequence(request, identity=self._submitted, cached_tokens=self._cached_tokens(request))
        self._waiting.append(sequence)
        if self._step is None:
            self._start_step(request.arrival)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Drop a sequence whose client went away. One that is finished stays so."""
        if sequence.state is State.FINISHED:
            return
        if sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        else:
            del self._running[sequence.identity]
            self._take_out(sequence)
        sequence.state = State.FINISHED
        self.metrics.record_abort()

    def wedge(self, at: float) -> None:
        """Let nothing move after `at`, as the fault of that name does."""
        self._halts_at = min(self._halts_at, at)

    def advance(self, until: float) -> list[Outcome]:
        """Let every step end that ends at `until` or before; return the requests that finished."""
        until = min(until, self._halts_at)
        outcomes: list[Outcome] = []
        while (step := self._step) is not None and step.end <= until:
            self._step = None
            self._finish_step(step, outcomes=outcomes)
            self._start_step(step.end)
        return outcomes

    def _refuse_impossible(self, request: Request) -> None:
        limit = self.config.max_model_len
        if request.prompt_tokens < 1 or request.max_tokens < 1:
            raise RequestRefused(
                "a request needs at least one prompt token and one output token", parameter="max_tokens"
            )
        if request.prompt_tokens >= limit:
            raise RequestRefused(
                f"This model's maximum context length is {limit} tokens. However, your request has "
                f"{request.prompt_tokens} input tokens. Please reduce the length of the input messages.",
                parameter="input_tokens",
            )
        if request.prompt_tokens + request.max_tokens > limit:
            raise RequestRefused(
                f"'max_tokens' or 'max_completion_tokens' is too large: {request.max_tokens}. This model's maximum "
                f"context length is {limit} tokens and your request has {request.prompt_tokens} input tokens "
                f"({request.max_tokens} > {limit} - {request.prompt_tokens}).",
                parameter="max_tokens",
            )

    def _cached_tokens(self, request: Request) -> int:
        """Return the cached beginning of the prompt: whole blocks, and never the last token."""
        known = request.prompt_tokens * self.config.prefix_hit_ratio
        if request.cached_tokens is not None:
            known = request.cached_tokens if self.config.enable_prefix_caching else 0
        cached = int(min(known, request.prompt_tokens - 1))
        return cached - cached % self.config.block_size

    def _start_step(self, at: float) -> None:
        if not self._running and not self._waiting:
            return
        self._make_room_for_decoding(at)
        budget = self.config.max_num_batched_tokens - self._decoding
        batch, held, prefill_tokens = self._decoding, self._held_tokens, 0
        for sequence in tuple(self._prefilling):
            if chunk := self._compute_chunk(sequence, at=at, budget=budget - prefill_tokens):
                prefill_tokens += chunk
                batch += 1
        # vLLM admits nothing in a step that preempted. Here that follows: the head of the queue is then the preempted
        # sequence, and it needs more than it gave back less what others took of it.
        while self._waiting and prefill_tokens < budget and self._admissible(self._waiting[0]):
            sequence = self._waiting.popleft()
            self._admit(sequence, at=at)
            prefill_tokens += self._compute_chunk(sequence, at=at, budget=budget - prefill_tokens)
            batch += 1
        completing = [
            sequence for sequence in self._prefilling if sequence.computed == self._tokens_to_compute(sequence)
        ]
        duration = self.config.law.seconds(batch=batch, held_tokens=held, prefill_tokens=prefill_tokens)
        duration *= self.faults.stretch(max_num_seqs=self.config.max_num_seqs, age=at - self.started)
        if self.config.jitter:
            duration *= self._random.lognormvariate(0, self.config.jitter)
        self._step = _Step(at + duration, duration, completing)

    def _make_room_for_decoding(self, at: float) -> None:
        """Give every decoding sequence that crosses a block's end its next block; preempt the latest for it."""
        phase = self._tick % self.config.block_size
        while self._needing_block[phase] > self._pool.free:
            self._preempt(next(reversed(self._running.values())), at=at)
        self._pool.take(self._needing_block[phase])

    def _compute_chunk(self, sequence: Sequence, *, at: float, budget: int) -> int:
        """Prefill as much as the budget allows and return it; preempt the sequence when its blocks are not there."""
        chunk = min(self._tokens_to_compute(sequence) - sequence.computed, budget)
        blocks = self._pool.blocks_for(sequence.computed + chunk) - self._pool.blocks_for(sequence.computed)
        if blocks > self._pool.free:
            self._preempt(sequence, at=at)
            return 0
        self._pool.take(blocks)
        sequence.computed += chunk
        return chunk

    def _tokens_to_compute(self, sequence: Sequence) -> int:
        """Return the tokens of the prompt and of what was generated before a preemption."""
        return sequence.request.prompt_tokens + sequence.generated_base

    def _admissible(self, sequence: Sequence) -> bool:
        has_seat = len(self._running) < self.config.max_num_seqs
        return has_seat and self._pool.blocks_for(self._tokens_to_compute(sequence)) <= self._pool.free

    def _admit(self, sequence: Sequence, *, at: float) -> None:
        if sequence.first_scheduled is None:
            sequence.first_scheduled = at
            if self.config.enable_prefix_caching:
                self.metrics.prefix_queries += sequence.request.prompt_tokens
                self.metrics.prefix_hits += sequence.cached_tokens
        sequence.state = State.PREFILLING
        # At least one token is computed, as only a computed token yields the next one.
        of_itself = min(
            self._pool.survivors(sequence.left_blocks, mark=sequence.left_mark),
            (self._tokens_to_compute(sequence) - 1) // self.config.block_size,
        )
        sequence.computed = max(sequence.cached_tokens, of_itself * self.config.block_size)
        self._pool.take_again(of_itself)
        self._pool.take(self._pool.blocks_for(sequence.computed) - of_itself)
        self._running[sequence.identity] = sequence
        self._prefilling.append(sequence)

    def _preempt(self, sequence: Sequence, *, at: float) -> None:
        sequence.generated_base = self.generated(sequence)
        if sequence.state is State.DECODING:
            sequence.last_token = at
        del self._running[sequence.identity]
        sequence.left_mark = self._pool.mark
        sequence.left_blocks = self._take_out(sequence)
        sequence.state = State.WAITING
        sequence.preemptions += 1
        self.metrics.preemptions += 1
        self._waiting.appendleft(sequence)

    def _take_out(self, sequence: Sequence) -> int:
        """Give back what a running sequence holds; return its full blocks, which the prefix cache keeps."""
        held = sequence.computed
        if sequence.state is State.DECODING:
            held = sequence.held_base + self._tick - sequence.joined
        cached = held // self.config.block_size if self.config.enable_prefix_caching else 0
        self._pool.give_back(self.blocks_of(sequence), cached=cached)
        if sequence.state is State.DECODING:
            self._decoding -= 1
            self._held_tokens -= held
            self._needing_block[(sequence.joined - sequence.held_base) % self.config.block_size] -= 1
        else:
            self._prefilling.remove(sequence)
        return cached

    def _finish_step(self, step: _Step, *, outcomes: list[Outcome]) -> None:
        metrics = self.metrics
        decoded = self._decoding
        self._tick += 1
        self._held_tokens += decoded
        if decoded:
            metrics.inter_token_latency.observe(step.duration, decoded)
        while self._endings and self._endings[0][0] <= self._tick:
            tick, _, sequence = heapq.heappop(self._endings)
            # A sequence that was preempted or aborted leaves its old end behind.
            if sequence.state is State.DECODING and sequence.finish_tick == tick:
                self._finish(sequence, at=step.end, outcomes=outcomes)
        prompt_tokens = 0
        for sequence in step.completing:
            if sequence.state is State.PREFILLING:
                prompt_tokens += self._emit_first_token(sequence, at=step.end, outcomes=outcomes)
                decoded += 1
        metrics.prompt_tokens += prompt_tokens
        metrics.generation_tokens += decoded
        metrics.iteration_tokens.observe(prompt_tokens + decoded)
        metrics.running = len(self._running)
        metrics.waiting = len(self._waiting)
        metrics.kv_usage = self._pool.usage

    def _emit_first_token(self, sequence: Sequence, *, at: float, outcomes: list[Outcome]) -> int:
        """Emit the token that a complete prefill ends with; return the prompt tokens that this makes count."""
        prompt_tokens = 0
        if sequence.first_token is None:
            sequence.first_token = at
            prompt_tokens = sequence.request.prompt_tokens
            self.metrics.cached_prompt_tokens += sequence.cached_tokens
            self.metrics.time_to_first_token.observe(at - sequence.request.arrival)
        else:
            self.metrics.inter_token_latency.observe(at - sequence.last_token)
        sequence.generated_base += 1
        if sequence.generated_base == sequence.target:
            self._finish(sequence, at=at, outcomes=outcomes)
            return prompt_tokens
        self._prefilling.remove(sequence)
        sequence.state = State.DECODING
        sequence.held_base = sequence.computed
        sequence.joined = self._tick
        sequence.finish_tick = self._tick + sequence.target - sequence.generated_base
        heapq.heappush(self._endings, (sequence.finish_tick, sequence.identity, sequence))
        self._decoding += 1
        self._held_tokens += sequence.held_base
        self._needing_block[(sequence.joined - sequence.held_base) % self.config.block_size] += 1
        return prompt_tokens

    def _finish(self, sequence: Sequence, *, at: float, outcomes: list[Outcome]) -> None:
        output_tokens = self.generated(sequence)
        del self._running[sequence.identity]
        self._take_out(sequence)
        sequence.generated_base = output_tokens
        sequence.state = State.FINISHED
        if sequence.first_scheduled is None or sequence.first_token is None:
            raise AssertionError("a sequence cannot finish before its first token")
        outcome = Outcome(
            sequence=sequence,
            reason=sequence.finish_reason,
            first_scheduled=sequence.first_scheduled,
            first_token=sequence.first_token,
            finished=at,
            output_tokens=output_tokens,
        )
        self.metrics.record(outcome)
        outcomes.append(outcome)
