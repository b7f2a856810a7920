"""The scheduler of the simulated engine: two queues, a pool of KV blocks, one step after the other. Pure.

Each step computes one token for every decoding sequence and fills the rest of its token budget with prompts. All
decisions of a step are made at its start; tokens, finished requests and gauges change at its end.
Separate from the server, so that benchmarks can drive the same engine in virtual time; time is an argument.
Must not: read a clock, sleep, or know HTTP.
Kept as in vLLM's V1 scheduler, because diagnosis depends on it: running sequences go first; the latest is preempted
when the pool is exhausted, loses its blocks, goes back to the head of the queue and is computed again, which no token
counter shows; a step that preempted admits nothing; a prompt is admitted only when all of it fits. With prefix caching
a preempted sequence reuses those of its own full blocks that are still cached, and computes only the rest.
Steps without an admission, end or preemption are one `StepRun`, whatever their number: `_plan` says how long
it may be, `advance` lets it pass in one piece or in many, and the results are the same to the last bit of every time.
With asynchronous scheduling the engine plans the next step while one runs, from what it knew when that one began. Here
prompts are: whoever came or found a seat when a step ended is scheduled then, takes its blocks and counts as running,
but is computed after the step that begins now, unless that has nothing to compute. Decoding sequences take their blocks
when the step itself begins; vLLM takes them one step earlier, and computes one token too many after an end-of-sequence.
"""

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.decoding import DecodingBatch
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.kv_pool import KvPool
from vllm_autotuner.simulation.metrics import EngineMetrics
from vllm_autotuner.simulation.pace import Pace
from vllm_autotuner.simulation.prefix_cache import PrefixCache
from vllm_autotuner.simulation.sequence import (
    Outcome,
    Request,
    RequestFailed,
    SchedulingPolicy,
    Sequence,
    State,
    refuse_impossible,
)
from vllm_autotuner.simulation.step_run import StepRun
from vllm_autotuner.simulation.waiting_queue import WaitingQueue


@dataclass(slots=True)
class _Prompts:
    """What one step computes of prompts. An abort or a preemption after it was planned does not make it shorter."""

    tokens: int = 0
    sequences: int = 0
    completing: list[Sequence] = field(default_factory=list)
    """Whose prompt it completes."""


class SimulatedEngine:
    """A vLLM engine that computes nothing. Call `advance` with the time, then `submit` what arrived."""

    def __init__(
        self, config: EngineConfig, *, started: float = 0.0, faults: Faults | None = None, seed: int = 0
    ) -> None:
        self.config = config
        self.metrics = EngineMetrics(longest=config.max_model_len)
        self.faults = faults or Faults()
        self.started = started
        self._halts_at = started + self.faults.halts_after
        self._failing = random.Random(seed)  # noqa: S311 - a source of its own: without the fault nothing else changes
        self._pace = Pace(config, self.faults, started=started, seed=seed)
        self._pool = KvPool(num_blocks=config.num_gpu_blocks, block_size=config.block_size)
        self._prefixes = PrefixCache(config, self._pool)
        self._waiting = WaitingQueue(config.scheduling_policy)
        self._running: dict[int, Sequence] = {}  # in order of admission: the last is the latest
        self._prefilling: list[Sequence] = []
        self._prompts = _Prompts()  # of the step under way
        self._ahead = _Prompts()  # of the step after it: planned already with asynchronous scheduling, else empty
        self._batch = DecodingBatch(block_size=config.block_size)
        self._run: StepRun | None = None
        self._submitted = 0
        self._unseen: deque[float] = deque()  # when those came that no step has looked at yet

    @property
    def next_step_end(self) -> float | None:
        """When the step under way ends, or None: idle, wedged or crashed."""
        if (run := self._run) is None:
            return None
        end = run.end_of(run.done + 1)
        return end if end <= self._halts_at else None

    @property
    def next_change(self) -> float | None:
        """Until when each step only gives one more token to each decoding sequence, if nothing is submitted or aborted.

        No request finishes before. None as for `next_step_end`.
        """
        if self._run is None or self._run.end > self._halts_at:
            return None
        return self._run.end

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
            return sequence.generated_base + self._batch.tick - sequence.joined
        return sequence.generated_base

    def blocks_of(self, sequence: Sequence) -> int:
        """Return the blocks that a sequence holds for itself, those for the step under way included."""
        match sequence.state:
            case State.DECODING:
                held = self._batch.held_by(sequence)
                return self._pool.blocks_for(held + 1 if self._run is not None else held) - sequence.shared_blocks
            case State.PREFILLING:
                return self._pool.blocks_for(sequence.computed) - sequence.shared_blocks
            case State.WAITING | State.FINISHED:
                return 0

    def submit(self, request: Request) -> Sequence:
        """Queue a request at its arrival.

        Raises RequestRefused when it can never run, RequestFailed by that fault, ValueError when steps before its
        arrival were not advanced.
        """
        refuse_impossible(request, max_model_len=self.config.max_model_len)
        if self.faults.fail_share and self._failing.random() < self.faults.fail_share:
            self.metrics.record_failure()
            raise RequestFailed("EngineCore encountered an issue. See stack trace (above) for the root cause.")
        run = self._run
        if run is not None and run.end_of(run.done + 1) < min(request.arrival, self._halts_at):
            raise ValueError("steps are due before this arrival: call advance(arrival) first")
        self._submitted += 1
        cached = self._prefixes.known_of(request, number=self._submitted)
        sequence = Sequence(request, identity=self._submitted, cached_tokens=cached)
        self._waiting.add(sequence, now=request.arrival)
        if run is None or run.waits:
            self._plan(request.arrival)
            return sequence
        if sequence.ready_at <= request.arrival:
            self._unseen.append(sequence.ready_at)
        if run.steps > 1 and self._has_seat:
            # It may be admitted when the step under way ends, or the one in which it becomes ready.
            run.cut_before(max(sequence.ready_at, request.arrival))
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Drop a sequence whose client went away. One that is finished stays so."""
        if sequence.state is State.FINISHED:
            return
        if sequence.state is State.WAITING:
            self._waiting.remove(sequence)
            if sequence.ready_at in self._unseen:
                self._unseen.remove(sequence.ready_at)
        else:
            sequence.generated_base = self.generated(sequence)
            del self._running[sequence.identity]
            self._take_out(sequence)
        if self._run is not None:
            self._run.cut_after(1)
        sequence.state = State.FINISHED
        self.metrics.record_abort()

    def wedge(self, at: float) -> None:
        """Let nothing move after `at`, as the fault of that name does."""
        self._halts_at = min(self._halts_at, at)

    def advance(self, until: float) -> list[Outcome]:
        """Let every step end that ends at `until` or before; return the requests that finished."""
        until = min(until, self._halts_at)
        outcomes: list[Outcome] = []
        while (run := self._run) is not None:
            end = run.end
            ended = run.steps if end <= until else run.ended_by(until)
            if ended == run.done:
                break
            if not run.waits:
                self._let_pass(run, ended=ended)
            if ended < run.steps:
                self._set_gauges(begun=run.end_of(ended - 1))
                # The next step is under way: its blocks are taken, but no gauge shows them before it ends.
                self._pool.take(self._batch.blocks_for_step(0))
                break
            self._run = None
            self._finish_run(run, end=end, outcomes=outcomes)
            self._plan(end)
        return outcomes

    def _plan(self, at: float) -> None:
        """Decide what the next step computes, and how many steps may follow it unchanged."""
        self._unseen.clear()
        self._run = None
        head = self._waiting.next(at)
        if head is None and not self._running and not self._ahead.tokens:
            self._wait_for_grammar(at)
            return
        preempted = self._make_room_for_decoding(at)
        self._prompts, self._ahead = self._ahead, _Prompts()
        if self._prefilling or (head is not None and not preempted):
            self._schedule_prompts(at, admit=not preempted)
        size, held = self._batch.size + self._prompts.sequences, self._batch.held_tokens
        prefill_tokens, planned = self._prompts.tokens, self._ahead.tokens
        law, factor = self.config.law, self._pace.constant
        if factor is None:
            factor = self._pace.factor(at, tick=self._batch.tick)
        self._run = run = StepRun(
            start=at,
            first=factor * law.seconds(batch=size, held_tokens=held, prefill_tokens=prefill_tokens),
            growth=factor * law.per_held_token * size,
            # Whoever was just preempted may be admitted again in the next step.
            steps=1 if prefill_tokens or planned or preempted else self._steps_ahead(),
            prefill=prefill_tokens > 0,
        )
        if run.steps > 1:
            if (change := self._pace.changes_after(at)) is not None:
                run.cut_before(change)
            if self._waiting.deferred and self._has_seat:
                run.cut_before(self._waiting.ready_after(at))

    def _wait_for_grammar(self, at: float) -> None:
        """Let time pass until the first deferred request is ready, if there is one; vLLM then runs empty steps."""
        if self._waiting.deferred:
            seconds = self._waiting.ready_after(at) - at
            self._run = StepRun(start=at, first=seconds, growth=0.0, steps=1, prefill=False, waits=True)
            self._set_gauges(begun=at)

    def _steps_ahead(self) -> int:
        """Return how many steps the batch stays as it is: until one ends, the pool is exhausted, or jitter changes.

        The queue cannot end it: its head was not admitted now, and until then there are neither seats nor blocks more.
        """
        steps = self._pace.steps_alike(self._batch.steps_to_next_end(), tick=self._batch.tick)
        return self._batch.steps_within(self._pool.free, limit=steps)

    def _make_room_for_decoding(self, at: float) -> bool:
        """Give every decoding sequence that crosses a block's end its next block; preempt the latest for it.

        Returns whether it preempted.
        """
        preempted = False
        while needed := self._batch.blocks_for_step(0):
            if needed <= self._pool.free:
                self._pool.take(needed)
                break
            self._preempt(self._least_important(), at=at)
            preempted = True
        return preempted

    def _least_important(self) -> Sequence:
        if self.config.scheduling_policy is SchedulingPolicy.PRIORITY:
            return max(self._running.values(), key=lambda sequence: sequence.rank)
        return next(reversed(self._running.values()))

    def _schedule_prompts(self, at: float, *, admit: bool) -> None:
        """Plan the prompts of the step that begins now, or with asynchronous scheduling those of the step after it.

        Then the prompts of the one that begins now are planned already; if it would be empty, both are planned.
        """
        if not self.config.async_scheduling or not (self._prompts.tokens or self._batch.size):
            self._prompts = self._fill(at, admit=admit, taken=self._batch.size)
        if self.config.async_scheduling:
            # Who ends with the step that begins now is still counted: vLLM learns of an end-of-sequence only then.
            self._ahead = self._fill(at, admit=admit, taken=self._batch.size + len(self._prompts.completing))

    def _fill(self, at: float, *, admit: bool, taken: int) -> _Prompts:
        """Fill the token budget, of which decoding has `taken` its part, with prompts, those begun first."""
        budget = self.config.max_num_batched_tokens - taken
        filled = _Prompts()
        for begun in tuple(self._prefilling):
            if begun.computed == begun.to_compute:
                continue  # the step that begins now completes it
            if chunk := self._compute_chunk(begun, at=at, budget=budget - filled.tokens, step=filled):
                filled.tokens += chunk
                filled.sequences += 1
            else:
                admit = False
        while admit and filled.tokens < budget and (sequence := self._waiting.next(at)) is not None:
            if not self._admissible(sequence, budget=budget - filled.tokens):
                break
            self._waiting.remove(sequence)
            self._admit(sequence, at=at)
            filled.tokens += self._compute_chunk(sequence, at=at, budget=budget - filled.tokens, step=filled)
            filled.sequences += 1
        return filled

    def _compute_chunk(self, sequence: Sequence, *, at: float, budget: int, step: _Prompts) -> int:
        """Prefill as much as the budget allows and return it; preempt the sequence when its blocks are not there."""
        before, to_compute, pool = sequence.computed, sequence.to_compute, self._pool
        sequence.computed = min(before + budget, to_compute)
        blocks = pool.blocks_for(sequence.computed) - pool.blocks_for(before)
        if blocks > pool.free:
            sequence.computed = before
            self._preempt(sequence, at=at)
            return 0
        pool.take(blocks)
        if sequence.computed == to_compute:
            step.completing.append(sequence)
        return sequence.computed - before

    @property
    def _has_seat(self) -> bool:
        return len(self._running) < self.config.max_num_seqs

    def _admissible(self, sequence: Sequence, *, budget: int) -> bool:
        """Return whether it has a seat, blocks for all of it, and without chunked prefill budget for all of it."""
        to_compute = sequence.to_compute
        needed = self._pool.blocks_for(to_compute)
        if self._pool.shared:
            needed -= min(self._prefixes.shareable(sequence), self._pool.shared)
        if not self._has_seat or needed > self._pool.free:
            return False
        if self.config.enable_chunked_prefill or to_compute <= budget:
            return True
        known = (self._prefixes.shareable(sequence) + self._prefixes.own_left(sequence)) * self.config.block_size
        return to_compute - max(sequence.cached_tokens, known) <= budget

    def _admit(self, sequence: Sequence, *, at: float) -> None:
        if sequence.first_scheduled is None:
            sequence.first_scheduled = at
            if self.config.enable_prefix_caching:
                self.metrics.prefix_queries += sequence.request.prompt_tokens
                self.metrics.prefix_hits += sequence.cached_tokens
        sequence.state = State.PREFILLING
        of_itself, shared = self._prefixes.own_left(sequence), 0
        if sequence.request.shared_tokens:
            shared = self._prefixes.shareable(sequence)
        sequence.computed = max(sequence.cached_tokens, (shared + of_itself) * self.config.block_size)
        if sequence.preemptions:
            self.metrics.recomputed_tokens += sequence.to_compute - sequence.computed
        if of_itself:
            self._pool.take_again(of_itself)
        if shared:
            self._pool.share(shared)
            sequence.shared_blocks = shared
        self._pool.take(self._pool.blocks_for(sequence.computed) - of_itself - shared)
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
        self._waiting.put_back(sequence)

    def _take_out(self, sequence: Sequence) -> int:
        """Give back what a running sequence holds; return its own full blocks, which the prefix cache keeps."""
        if sequence.state is State.DECODING:
            held = self._batch.leave(sequence)
            blocks = self._pool.blocks_for(held + 1 if self._run is not None else held)
        else:
            self._prefilling.remove(sequence)
            held = sequence.computed
            blocks = self._pool.blocks_for(held)
        shared, sequence.shared_blocks = sequence.shared_blocks, 0
        cached = self._prefixes.kept(held, shared_blocks=shared)
        self._pool.give_back(blocks - shared, cached=cached)
        if shared:
            self._pool.unshare()
        return cached

    def _let_pass(self, run: StepRun, *, ended: int) -> None:
        """Count the tokens of the steps that have ended, and take the blocks that they needed."""
        batch, metrics, steps, decoded = self._batch, self.metrics, ended - run.done, self._batch.size
        if steps > 1:  # the blocks of the first were taken when it began
            self._pool.take(batch.blocks_for_steps(1, steps))
        batch.step(steps)
        if decoded:
            metrics.generation_tokens += decoded * steps
            metrics.inter_token_latency.observe_ramp(
                run.first, growth=run.growth, start=run.done, stop=ended, times=decoded
            )
            if not run.prefill:
                metrics.iteration_tokens.observe(decoded, steps)
        run.done = ended

    def _finish_run(self, run: StepRun, *, end: float, outcomes: list[Outcome]) -> None:
        """Let sequences end and prompts give their first token, both at the end of the last step."""
        tokens = self._batch.size
        for sequence in self._batch.ended():
            self._finish(sequence, at=end, outcomes=outcomes)
        if run.prefill:
            prompt_tokens = 0
            for sequence in self._prompts.completing:
                if sequence.state is State.PREFILLING:
                    prompt_tokens += self._emit_first_token(sequence, at=end, outcomes=outcomes)
                    tokens += 1
                    self.metrics.generation_tokens += 1
            self.metrics.prompt_tokens += prompt_tokens
            # A step that only computed a part of a prompt has no output, so vLLM has no statistics of it.
            if tokens:
                self.metrics.iteration_tokens.note(prompt_tokens + tokens)
        self._set_gauges(begun=run.start if run.steps == 1 else run.end_of(run.steps - 1))

    def _set_gauges(self, *, begun: float) -> None:
        """Set the gauges at the end of a step that began at `begun`: who came since then, its scheduler never saw."""
        unseen = self._unseen
        while unseen and unseen[0] < begun:
            unseen.popleft()
        metrics = self.metrics
        metrics.running = len(self._running)
        metrics.deferred = deferred = len(self._waiting.deferred)
        metrics.waiting = len(self._waiting.capacity) - len(unseen) + deferred
        metrics.kv_usage = self._pool.usage

    def _emit_first_token(self, sequence: Sequence, *, at: float, outcomes: list[Outcome]) -> int:
        """Emit the token that a complete prefill ends with; return the prompt tokens that this makes count."""
        prompt_tokens = 0
        if sequence.first_token is None:
            sequence.first_token = at
            prompt_tokens = sequence.request.prompt_tokens
            self.metrics.cached_prompt_tokens += sequence.cached_tokens
            self.metrics.time_to_first_token.note(at - sequence.request.arrival)
        else:
            self.metrics.inter_token_latency.note(at - sequence.last_token)
        sequence.generated_base += 1
        if sequence.generated_base == sequence.target:
            self._finish(sequence, at=at, outcomes=outcomes)
            return prompt_tokens
        self._prefilling.remove(sequence)
        self._batch.join(sequence)
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
