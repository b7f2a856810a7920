"""The counters, gauges and histograms of a simulated engine.

Separate from `metrics_page`, because counting happens in every step and formatting only on a scrape.
Must not: format text, or use a metric's exported name.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from vllm_autotuner.simulation.sequence import FinishReason, Outcome

STEP_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES: Final = (1, 2, 5, 10, 20)
PREEMPTIONS: Final = (1, 2, 3, 4, 5, 10, 20)
TTFT_SECONDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_SECONDS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_SECONDS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip


MOST_NOTED: Final = 4096
"""Number of unsorted values after which they are sorted into buckets: bounds memory without scrapes."""
MOST_FINISHED: Final = 256
"""Finished requests that wait to be counted, for the same reason."""


class Histogram:
    """A histogram with upper edges; the last count is above all of them.

    Values are collected and sorted into buckets together when read, which takes a fifth of the time.
    """

    __slots__ = ("_before_reading", "_counts", "_noted", "_total", "edges")

    def __init__(self, edges: Sequence[float], *, before_reading: Callable[[], None] | None = None) -> None:
        self._before_reading = before_reading
        self.edges = tuple(float(edge) for edge in edges)
        self._counts = [0] * (len(self.edges) + 1)
        self._total = 0.0
        self._noted: list[float] = []

    @property
    def counts(self) -> list[int]:
        """How many values lie in each bucket, the edge included."""
        self._settle()
        return self._counts

    @property
    def total(self) -> float:
        """The sum of all values."""
        self._settle()
        return self._total

    def _settle(self) -> None:
        if self._before_reading is not None:
            self._before_reading()
        self._sort_noted()

    def _sort_noted(self) -> None:
        noted = self._noted
        if not noted:
            return
        self._total += sum(noted)
        noted.sort()
        below = 0
        for bucket, edge in enumerate(self.edges):
            up_to = bisect_right(noted, edge, below)
            self._counts[bucket] += up_to - below
            below = up_to
        self._counts[-1] += len(noted) - below
        noted.clear()

    def note(self, value: float) -> None:
        """Count one value."""
        self.note_all((value,))

    def note_all(self, values: Iterable[float]) -> None:
        """Count values."""
        self._noted += values
        if len(self._noted) >= MOST_NOTED:
            self._sort_noted()

    def observe(self, value: float, times: int) -> None:
        """Count `times` equal values at once: every running sequence sees the same step."""
        self._counts[bisect_left(self.edges, value)] += times
        self._total += value * times

    def observe_ramp(self, first: float, *, growth: float, start: int, stop: int, times: int) -> None:
        """Count the values `first + growth * index` of each index from `start` to before `stop`, `times` times each."""
        steps = stop - start
        if steps == 1:
            self.observe(first + growth * start, times)
            return
        edges, counts = self.edges, self._counts
        low = bisect_left(edges, first + growth * start)
        high = bisect_left(edges, first + growth * (stop - 1))
        begin = start
        for bucket in range(low, high):
            end = _first_above(edges[bucket], first=first, growth=growth)
            counts[bucket] += (end - begin) * times
            begin = end
        counts[high] += (stop - begin) * times
        self._total += times * (steps * first + growth * (steps * (start + stop - 1) / 2))

    @property
    def count(self) -> int:
        """All values so far."""
        return sum(self.counts)


def _first_above(edge: float, *, first: float, growth: float) -> int:
    """Return the first index at which `first + growth * index` is above the edge; the division alone may round."""
    index = int((edge - first) / growth)
    while first + growth * index > edge:
        index -= 1
    while first + growth * index <= edge:
        index += 1
    return index


def length_edges(longest: int) -> tuple[int, ...]:
    """Bucket edges of lengths up to max-model-len (tokens): vLLM's `build_1_2_5_buckets`. Worked: 2048 ends at 2000."""
    every = (digit * 10**power for power in range(len(str(longest))) for digit in (1, 2, 5))
    return tuple(edge for edge in every if edge <= longest)


class EngineMetrics:
    """Counters and histograms live, gauges as they were when the last step ended (a stopped engine freezes them).

    `longest`: max-model-len, in tokens.
    """

    def __init__(self, *, longest: int) -> None:
        def of_finished(edges: Sequence[float]) -> Histogram:
            return Histogram(edges, before_reading=self._note_finished)

        lengths = length_edges(longest)
        self._finished: list[Outcome] = []
        self.running = 0
        self.waiting = 0
        """All that wait, the deferred ones included."""
        self.deferred = 0
        self.kv_usage = 0.0
        self.preemptions = 0
        self.recomputed_tokens = 0
        """Tokens that preempted sequences had to compute again. vLLM exports no such counter."""
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.finished: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.request_prompt_tokens = of_finished(lengths)
        self.request_generation_tokens = of_finished(lengths)
        self.iteration_tokens = Histogram(STEP_TOKENS)
        # They differ only for several answers to one request (n > 1), which this engine does not give.
        self.request_max_num_generation_tokens = self.request_generation_tokens
        self.request_params_n = of_finished(CHOICES)
        self.request_params_max_tokens = of_finished(lengths)
        self.time_to_first_token = Histogram(TTFT_SECONDS)
        self.inter_token_latency = Histogram(TOKEN_SECONDS)
        self.request_time_per_output_token = of_finished(TOKEN_SECONDS)
        self.e2e_request_latency = of_finished(REQUEST_SECONDS)
        self.request_queue_time = of_finished(REQUEST_SECONDS)
        self.request_inference_time = of_finished(REQUEST_SECONDS)
        self.request_prefill_time = of_finished(REQUEST_SECONDS)
        self.request_decode_time = of_finished(REQUEST_SECONDS)
        self.request_num_preemptions = of_finished(PREEMPTIONS)
        self.request_prefill_kv_computed_tokens = of_finished(lengths)

    def record(self, outcome: Outcome) -> None:
        """Count a request that ran to its end; an aborted one is counted by `record_abort`."""
        self.finished[outcome.reason] += 1
        self._finished.append(outcome)
        if len(self._finished) == MOST_FINISHED:
            self._note_finished()

    def _note_finished(self) -> None:
        """Tell the histograms of finished requests about those since the last time: together that is cheaper."""
        if not self._finished:
            return
        ended, self._finished = self._finished, []
        asked = [outcome.sequence.request for outcome in ended]
        both = list(zip(ended, asked, strict=True))
        self.request_prompt_tokens.note_all(request.prompt_tokens for request in asked)
        self.request_generation_tokens.note_all(outcome.output_tokens for outcome in ended)
        self.request_params_n.observe(1, len(ended))
        self.request_params_max_tokens.note_all(request.max_tokens for request in asked)
        self.request_time_per_output_token.note_all(outcome.tpot for outcome in ended)
        self.e2e_request_latency.note_all(outcome.finished - request.arrival for outcome, request in both)
        self.request_queue_time.note_all(outcome.first_scheduled - request.arrival for outcome, request in both)
        self.request_inference_time.note_all(outcome.finished - outcome.first_scheduled for outcome in ended)
        self.request_prefill_time.note_all(outcome.first_token - outcome.first_scheduled for outcome in ended)
        self.request_decode_time.note_all(outcome.finished - outcome.first_token for outcome in ended)
        self.request_num_preemptions.note_all(outcome.sequence.preemptions for outcome in ended)
        self.request_prefill_kv_computed_tokens.note_all(
            request.prompt_tokens - outcome.sequence.cached_tokens for outcome, request in both
        )

    def record_failure(self) -> None:
        """Count a request that the engine failed on."""
        self.finished[FinishReason.ERROR] += 1

    def record_abort(self) -> None:
        """Count a request whose client went away."""
        self.finished[FinishReason.ABORT] += 1
