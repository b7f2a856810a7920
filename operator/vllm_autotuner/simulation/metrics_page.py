"""The `/metrics` page of vLLM 0.32: the same names, types, help texts, labels and bucket edges.

Separate from `metrics`, because names and texts are vLLM's and change with its version, while the counters do not.
Must not: count, or invent a family that vLLM does not have.
A real page has more: `python_*`, `http_*` and most of `process_*` describe the server's process, of which this one
would tell nothing true about vLLM; they are left out. Families of features that this engine does not have (offloading,
multi-modal input, FLOP estimates) stay at 0, as they do in a real engine that does not use them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.metrics import EngineMetrics, Histogram

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

Labelled = Sequence[tuple[dict[str, str], float]]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family: its exported name without `_total` or `_bucket`, and its values now."""

    name: str
    kind: str
    text: str
    values: Labelled | Histogram
    engine_label: bool = True
    """False where vLLM leaves it out."""


def render(metrics: EngineMetrics, config: EngineConfig, *, created: float) -> str:
    """Return the page. `created`: Unix time in seconds of the engine's start, for `_created` and the process."""
    lines = [
        "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {created!r}",
    ]
    for family in families(metrics):
        lines.extend(_rendered(family, model_name=config.model_name, created=created))
    lines.append("# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig")
    lines.append("# TYPE vllm:cache_config_info gauge")
    lines.append(f"vllm:cache_config_info{_label_text(cache_config_labels(config))} 1.0")
    return "\n".join(lines) + "\n"


def cache_config_labels(config: EngineConfig) -> dict[str, str]:
    """Return the labels of `vllm:cache_config_info`; those that a simulation has no say in are vLLM's defaults."""
    tokens = config.num_gpu_blocks * config.block_size
    return {
        "_block_size_resolved": "True",
        "block_size": str(config.block_size),
        "cache_dtype": config.kv_cache_dtype,
        "cache_hit_alignment_tokens": "None",
        "effective_attention_block_size": str(config.block_size),
        "enable_mamba_shared_prefix_checkpoint": "False",
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "engine": "0",
        "gpu_memory_utilization": str(config.gpu_memory_utilization),
        "hash_block_size": "None",
        "is_attention_free": "False",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_layout": "None",
        "kv_cache_max_concurrency": str(tokens / config.max_model_len),
        "kv_cache_memory_bytes": "None",
        "kv_cache_size_tokens": str(tokens),
        "kv_offloading_backend": "native",
        "kv_offloading_size": "None",
        "kv_sharing_fast_prefill": "False",
        "mamba_block_size": "None",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": "None",
        "mamba_ssm_cache_dtype": "float32",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(config.num_gpu_blocks),
        "num_gpu_blocks_override": str(config.num_gpu_blocks_override),
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": "None",
        "replayssm_buffer_len": "16",
        "skip_page_size_padded": "None",
        "sliding_window": "None",
        "swa_bounded_replay": "True",
        "use_kda_recoverssm": "False",
        "use_replayssm": "False",
        "user_specified_block_size": str(config.user_specified_block_size),
    }


def families(metrics: EngineMetrics) -> list[Family]:
    """Return every `vllm:` family but `cache_config_info`, in the order of a real page."""
    plain = _plain
    cached = metrics.cached_prompt_tokens
    computed = metrics.prompt_tokens - cached
    return [
        *(
            Family(
                f"vllm:estimated_{what}_per_gpu",
                "counter",
                f"Estimated number of {text} (for Model Flops Utilization calculations).",
                plain(0),
            )
            for what, text in (
                ("flops", "floating point operations per GPU"),
                ("read_bytes", "bytes read from memory per GPU"),
                ("write_bytes", "bytes written to memory per GPU"),
            )
        ),
        Family(
            "vllm:num_requests_running",
            "gauge",
            "Number of requests in model execution batches.",
            plain(metrics.running),
        ),
        Family(
            "vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", plain(metrics.waiting)
        ),
        Family(
            "vllm:num_requests_waiting_by_reason",
            "gauge",
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
            "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all "
            "reasons equals vllm:num_requests_waiting.",
            _by("reason", {"capacity": metrics.waiting - metrics.deferred, "deferred": metrics.deferred}),
        ),
        Family(
            "vllm:engine_sleep_state",
            "gauge",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
            _by("sleep_state", {"awake": 1, "weights_offloaded": 0, "discard_all": 0}),
        ),
        Family(
            "vllm:kv_cache_usage_perc",
            "gauge",
            "KV-cache usage. 1 means 100 percent usage.",
            plain(metrics.kv_usage),
        ),
        *_cache_families(metrics),
        Family(
            "vllm:num_preemptions",
            "counter",
            "Cumulative number of preemption from the engine.",
            plain(metrics.preemptions),
        ),
        Family("vllm:prompt_tokens", "counter", "Number of prefill tokens processed.", plain(metrics.prompt_tokens)),
        Family(
            "vllm:prompt_tokens_by_source",
            "counter",
            "Number of prompt tokens by source.",
            _by("source", {"local_compute": computed, "local_cache_hit": cached, "external_kv_transfer": 0}),
        ),
        Family(
            "vllm:prompt_tokens_cached", "counter", "Number of cached prompt tokens (local + external).", plain(cached)
        ),
        Family(
            "vllm:prompt_tokens_cached_by_source",
            "counter",
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to "
            "DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at "
            "admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
            _by(
                "source",
                {"device": metrics.prefix_hits, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0},
            ),
        ),
        Family(
            "vllm:generation_tokens",
            "counter",
            "Number of generation tokens processed.",
            plain(metrics.generation_tokens),
        ),
        Family(
            "vllm:request_success",
            "counter",
            "Count of successfully processed requests.",
            _by("finished_reason", metrics.finished),
        ),
        Family(
            "vllm:admission_rejections",
            "counter",
            "Number of admission attempts rejected by a queue limit, by reason.",
            _by("reason", {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}),
            engine_label=False,
        ),
        *_histograms(metrics),
    ]


def _cache_families(metrics: EngineMetrics) -> Iterable[Family]:
    for name, title, unit, queries, hits in (
        ("prefix_cache", "Prefix cache", "tokens", metrics.prefix_queries, metrics.prefix_hits),
        (
            "external_prefix_cache",
            "External prefix cache",
            "tokens",
            0,
            0,
        ),
        ("mm_cache", "Multi-modal cache", "items", 0, 0),
    ):
        sharing = " from KV connector cross-instance cache sharing" if name.startswith("external") else ""
        queried, cached = f"queried {unit}", f"cached {unit}"
        yield Family(
            f"vllm:{name}_queries",
            "counter",
            f"{title} queries{sharing}, in terms of number of {queried}.",
            _plain(queries),
        )
        yield Family(
            f"vllm:{name}_hits", "counter", f"{title} hits{sharing}, in terms of number of {cached}.", _plain(hits)
        )


def _histograms(metrics: EngineMetrics) -> Iterable[Family]:
    for name, text, histogram in (
        ("request_prompt_tokens", "Number of prefill tokens processed.", metrics.request_prompt_tokens),
        ("request_generation_tokens", "Number of generation tokens processed.", metrics.request_generation_tokens),
        ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", metrics.iteration_tokens),
        (
            "request_max_num_generation_tokens",
            "Histogram of maximum number of requested generation tokens.",
            metrics.request_max_num_generation_tokens,
        ),
        ("request_params_n", "Histogram of the n request parameter.", metrics.request_params_n),
        (
            "request_params_max_tokens",
            "Histogram of the max_tokens request parameter.",
            metrics.request_params_max_tokens,
        ),
        (
            "time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            metrics.time_to_first_token,
        ),
        ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", metrics.inter_token_latency),
        (
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            metrics.request_time_per_output_token,
        ),
        ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", metrics.e2e_request_latency),
        (
            "request_queue_time_seconds",
            "Histogram of time spent in WAITING phase for request.",
            metrics.request_queue_time,
        ),
        (
            "request_inference_time_seconds",
            "Histogram of time spent in RUNNING phase for request.",
            metrics.request_inference_time,
        ),
        (
            "request_prefill_time_seconds",
            "Histogram of time spent in PREFILL phase for request.",
            metrics.request_prefill_time,
        ),
        (
            "request_decode_time_seconds",
            "Histogram of time spent in DECODE phase for request.",
            metrics.request_decode_time,
        ),
        (
            "request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            metrics.request_num_preemptions,
        ),
        (
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            metrics.request_prefill_kv_computed_tokens,
        ),
    ):
        yield Family(f"vllm:{name}", "histogram", text, histogram)


def _plain(value: float) -> Labelled:
    return [({}, value)]


def _by(label: str, values: dict[str, int]) -> Labelled:
    return [({label: name}, value) for name, value in values.items()]


def _rendered(family: Family, *, model_name: str, created: float) -> Iterable[str]:
    common = {"engine": "0", "model_name": model_name} if family.engine_label else {"model_name": model_name}
    suffix = "_total" if family.kind == "counter" else ""
    yield f"# HELP {family.name}{suffix} {family.text}"
    yield f"# TYPE {family.name}{suffix} {family.kind}"
    if isinstance(family.values, Histogram):
        label_sets = [common]
        yield from _rendered_histogram(family.name, family.values, labels=common)
    else:
        label_sets = [{**common, **labels} for labels, _ in family.values]
        for labels, (_, value) in zip(label_sets, family.values, strict=True):
            yield f"{family.name}{suffix}{_label_text(labels)} {float(value)!r}"
    if family.kind != "gauge":
        yield f"# HELP {family.name}_created {family.text}"
        yield f"# TYPE {family.name}_created gauge"
        for labels in label_sets:
            yield f"{family.name}_created{_label_text(labels)} {created!r}"


def _rendered_histogram(name: str, histogram: Histogram, *, labels: dict[str, str]) -> Iterable[str]:
    before, after = _label_text({"engine": "0", "le": "\0", "model_name": labels["model_name"]}).split("\0")
    below = 0
    for edge, count in zip((*map(repr, histogram.edges), "+Inf"), histogram.counts, strict=True):
        below += count
        yield f"{name}_bucket{before}{edge}{after} {float(below)!r}"
    yield f"{name}_count{_label_text(labels)} {float(below)!r}"
    yield f"{name}_sum{_label_text(labels)} {histogram.total!r}"


def _label_text(labels: dict[str, str]) -> str:
    escaped = (
        (name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for name, value in sorted(labels.items())
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
