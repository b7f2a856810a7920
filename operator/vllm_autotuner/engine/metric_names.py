"""The metric names of vLLM versions 0.6 to 0.32, newest name first, mapped to version-independent meanings.

Separate from the queries: a renamed metric needs one more row here and no other change. A metric that an engine version
lacks is *unknown* downstream, never zero. Source: the metrics pages of vLLM 0.6 to 0.32.
Must not: do I/O, or interpret a value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = [
    "CACHE_INFO",
    "NAMES",
    "OF_THE_SERVER",
    "PARTS",
    "PROCESS_START",
    "Kind",
    "Meaning",
    "MetricNames",
    "canonical_names",
]


class Kind(StrEnum):
    """How a family counts."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Meaning(StrEnum):
    """What we read, whatever it is called in this engine version."""

    RUNNING = "running"
    WAITING = "waiting"
    WAITING_BY_REASON = "waiting by reason"
    KV_USAGE = "KV usage"
    PREEMPTIONS = "preemptions"
    PROMPT_TOKENS = "prompt tokens"
    PROMPT_TOKENS_BY_SOURCE = "prompt tokens by source"
    GENERATION_TOKENS = "generation tokens"
    FINISHED = "requests finished"
    REJECTED = "requests rejected"
    ACCEPTED_TOKENS = "draft tokens accepted"
    PREFIX_HITS = "prefix cache hits"
    PREFIX_QUERIES = "prefix cache queries"
    TTFT = "TTFT"
    ITL = "ITL"
    TPOT = "TPOT"
    E2E = "e2e latency"
    QUEUE_TIME = "queue time"
    PREFILL_TIME = "prefill time"
    DECODE_TIME = "decode time"
    STEP_TOKENS = "tokens per engine step"
    PROMPT_LENGTH = "prompt length"
    OUTPUT_LENGTH = "output length"


MOST_REQUESTS: Final = 1e7
"""On one engine, running or waiting. Our choice: a thousand times more than any queue that was seen."""


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The family names of one meaning, newest first. Counters carry their `_total`, histograms no suffix."""

    kind: Kind
    names: tuple[str, ...]
    highest: float = MOST_REQUESTS
    """The largest value of a gauge that can be true."""


NAMES: Final[Mapping[Meaning, MetricNames]] = {
    Meaning.RUNNING: MetricNames(Kind.GAUGE, ("vllm:num_requests_running",)),
    Meaning.WAITING: MetricNames(Kind.GAUGE, ("vllm:num_requests_waiting",)),
    Meaning.WAITING_BY_REASON: MetricNames(Kind.GAUGE, ("vllm:num_requests_waiting_by_reason",)),
    Meaning.KV_USAGE: MetricNames(Kind.GAUGE, ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), highest=1.0),
    Meaning.PREEMPTIONS: MetricNames(Kind.COUNTER, ("vllm:num_preemptions_total",)),
    Meaning.PROMPT_TOKENS: MetricNames(Kind.COUNTER, ("vllm:prompt_tokens_total",)),
    Meaning.PROMPT_TOKENS_BY_SOURCE: MetricNames(Kind.COUNTER, ("vllm:prompt_tokens_by_source_total",)),
    Meaning.GENERATION_TOKENS: MetricNames(Kind.COUNTER, ("vllm:generation_tokens_total",)),
    Meaning.FINISHED: MetricNames(Kind.COUNTER, ("vllm:request_success_total",)),
    Meaning.REJECTED: MetricNames(Kind.COUNTER, ("vllm:admission_rejections_total",)),
    Meaning.ACCEPTED_TOKENS: MetricNames(Kind.COUNTER, ("vllm:spec_decode_num_accepted_tokens_total",)),
    Meaning.PREFIX_HITS: MetricNames(
        Kind.COUNTER, ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
    ),
    Meaning.PREFIX_QUERIES: MetricNames(
        Kind.COUNTER, ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
    ),
    Meaning.TTFT: MetricNames(Kind.HISTOGRAM, ("vllm:time_to_first_token_seconds",)),
    Meaning.ITL: MetricNames(
        Kind.HISTOGRAM, ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
    ),
    Meaning.TPOT: MetricNames(Kind.HISTOGRAM, ("vllm:request_time_per_output_token_seconds",)),
    Meaning.E2E: MetricNames(Kind.HISTOGRAM, ("vllm:e2e_request_latency_seconds",)),
    Meaning.QUEUE_TIME: MetricNames(Kind.HISTOGRAM, ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests")),
    Meaning.PREFILL_TIME: MetricNames(Kind.HISTOGRAM, ("vllm:request_prefill_time_seconds",)),
    Meaning.DECODE_TIME: MetricNames(Kind.HISTOGRAM, ("vllm:request_decode_time_seconds",)),
    Meaning.STEP_TOKENS: MetricNames(Kind.HISTOGRAM, ("vllm:iteration_tokens_total",)),
    Meaning.PROMPT_LENGTH: MetricNames(Kind.HISTOGRAM, ("vllm:request_prompt_tokens",)),
    Meaning.OUTPUT_LENGTH: MetricNames(Kind.HISTOGRAM, ("vllm:request_generation_tokens",)),
}

CACHE_INFO: Final = "vllm:cache_config_info"
"""A gauge that is always 1; pool size and cache type are its labels."""

PROCESS_START: Final = "process_start_time_seconds"
"""Unix seconds at which the server's process began. Every process of a cluster exports one: ask only beside ours."""

OF_THE_SERVER: Final = Meaning.REJECTED
"""Counted where requests arrive, before an engine core is chosen: its series have no `engine` label."""

PARTS: Final[Mapping[Meaning, str]] = {
    Meaning.FINISHED: "finished_reason",
    Meaning.REJECTED: "reason",
    Meaning.PROMPT_TOKENS_BY_SOURCE: "source",
}
"""The label by which a counter is split, where it is."""


def canonical_names() -> Mapping[str, Meaning]:
    """Every known family name, old and new, with its meaning."""
    return {name: meaning for meaning, entry in NAMES.items() for name in entry.names}
