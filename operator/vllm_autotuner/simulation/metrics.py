"""What the engine counts, before anyone asks for it.

Apart from `exposition`, because counting happens on every step and writing it out only on a scrape.
Must not: format text, or know a metric's exported name.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from vllm_autotuner.simulation.sequence import FinishReason, Outcome

TOKENS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
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


class Histogram:
    """A histogram with upper edges; the last count is above all of them."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(float(edge) for edge in edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `times` equal values at once: every running sequence sees the same step."""
        self.counts[bisect_left(self.edges, value)] += times
        self.total += value * times

    def observe_ramp(self, first: float, *, growth: float, start: int, stop: int, times: int) -> None:
        """Count the values `first + growth * index` of each index from `start` to before `stop`, `times` times each."""
        edges, counts = self.edges, self.counts
        low = bisect_left(edges, first + growth * start)
        high = bisect_left(edges, first + growth * (stop - 1))
        begin = start
        for bucket in range(low, high):
            end = _first_above(edges[bucket], first=first, growth=growth)
            counts[bucket] += (end - begin) * times
            begin = end
        counts[high] += (stop - begin) * times
        steps = stop - start
        self.total += times * (steps * first + growth * (steps * (start + stop - 1) / 2))

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


class EngineMetrics:
    """Counters and histograms live, gauges as they were when the last step ended (a stopped engine freezes them)."""

    def __init__(self) -> None:
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
        self.request_prompt_tokens = Histogram(TOKENS)
        self.request_generation_tokens = Histogram(TOKENS)
        self.iteration_tokens = Histogram(STEP_TOKENS)
        # They differ only for several answers to one request (n > 1), which this engine does not give.
        self.request_max_num_generation_tokens = self.request_generation_tokens
        self.request_params_n = Histogram(CHOICES)
        self.request_params_max_tokens = Histogram(TOKENS)
        self.time_to_first_token = Histogram(TTFT_SECONDS)
        self.inter_token_latency = Histogram(TOKEN_SECONDS)
        self.request_time_per_output_token = Histogram(TOKEN_SECONDS)
        self.e2e_request_latency = Histogram(REQUEST_SECONDS)
        self.request_queue_time = Histogram(REQUEST_SECONDS)
        self.request_inference_time = Histogram(REQUEST_SECONDS)
        self.request_prefill_time = Histogram(REQUEST_SECONDS)
        self.request_decode_time = Histogram(REQUEST_SECONDS)
        self.request_num_preemptions = Histogram(PREEMPTIONS)
        self.request_prefill_kv_computed_tokens = Histogram(TOKENS)

    def record(self, outcome: Outcome) -> None:
        """Count a request that ran to its end; an aborted one is counted by `record_abort`."""
        sequence, request = outcome.sequence, outcome.sequence.request
        self.finished[outcome.reason] += 1
        self.request_prompt_tokens.observe(request.prompt_tokens)
        self.request_generation_tokens.observe(outcome.output_tokens)
        self.request_params_n.observe(1)
        self.request_params_max_tokens.observe(request.max_tokens)
        self.request_time_per_output_token.observe(outcome.tpot)
        self.e2e_request_latency.observe(outcome.finished - request.arrival)
        self.request_queue_time.observe(outcome.first_scheduled - request.arrival)
        self.request_inference_time.observe(outcome.finished - outcome.first_scheduled)
        self.request_prefill_time.observe(outcome.first_token - outcome.first_scheduled)
        self.request_decode_time.observe(outcome.finished - outcome.first_token)
        self.request_num_preemptions.observe(sequence.preemptions)
        self.request_prefill_kv_computed_tokens.observe(request.prompt_tokens - sequence.cached_tokens)

    def record_abort(self) -> None:
        """Count a request whose client went away."""
        self.finished[FinishReason.ABORT] += 1
