"""Engines as their scrapes look: every family of a current vLLM but for what is named, constant levels, even growth."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from vllm_autotuner.engine.metric_names import PROCESS_START
from vllm_autotuner.observation.metrics_text import Sample
from vllm_autotuner.observation.recording import Recording

NOW = 1_795_000_000.0

Level = float | Callable[[float], float]
"""A constant, or a function of Unix seconds."""

GAUGES: Mapping[str, Level] = {
    "vllm:num_requests_running": 4.0,
    "vllm:num_requests_waiting": 0.0,
    "vllm:kv_cache_usage_perc": 0.5,
}
RATES: Mapping[str, float] = {
    "vllm:num_preemptions_total": 0.0,
    "vllm:prompt_tokens_total": 500.0,
    "vllm:generation_tokens_total": 200.0,
    "vllm:request_success_total": 2.0,
    "vllm:time_to_first_token_seconds": 2.0,
    "vllm:inter_token_latency_seconds": 200.0,
    "vllm:request_time_per_output_token_seconds": 2.0,
    "vllm:e2e_request_latency_seconds": 2.0,
    "vllm:request_queue_time_seconds": 2.0,
    "vllm:request_prefill_time_seconds": 2.0,
    "vllm:request_decode_time_seconds": 2.0,
    "vllm:iteration_tokens_total": 50.0,
    "vllm:prefix_cache_hits_total": 100.0,
    "vllm:prefix_cache_queries_total": 500.0,
    "vllm:prompt_tokens_by_source_total{local_compute}": 400.0,
    "vllm:prompt_tokens_by_source_total{local_cache_hit}": 100.0,
    "vllm:request_prompt_tokens": 2.0,
    "vllm:request_generation_tokens": 2.0,
}
"""Growth per second; of a histogram its observations, each of 0.1 units, in the bucket up to 0.2."""

SPLIT: Mapping[str, str] = {
    "vllm:num_requests_waiting_by_reason": "reason",
    "vllm:request_success_total": "finished_reason",
    "vllm:prompt_tokens_by_source_total": "source",
    "vllm:admission_rejections_total": "reason",
}
"""Families that are split by a label; the part stands in braces behind the name here, `stop` where none does."""
EDGES = ("0.05", "0.2", "1.0", "+Inf")
STEP_TOKENS = "vllm:iteration_tokens_total"
"""A histogram, whatever its name looks like."""
BORN = NOW - 86_400


@dataclass(slots=True)
class Engine:
    """One engine and when it was scraped."""

    pod: str = "chat-0"
    namespace: str = "demo"
    index: str = "0"
    interval: float = 2.0
    jitter: float = 0.0
    """Seconds by which every other scrape is late."""
    begin: float = NOW - 400
    end: float = NOW
    gauges: Mapping[str, Level] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=lambda: {"num_gpu_blocks": "100", "block_size": "16"})
    restarted: float | None = None
    """Unix seconds at which every counter began at zero again."""
    stopped: float = NOW
    """Unix seconds after which no counter moves, although scrapes go on."""

    def samples(self) -> Iterable[tuple[Sample, float]]:
        """Every sample with its time."""
        count = int((self.end - self.begin) / self.interval)
        for scrape in range(count + 1):
            time = self.end - self.interval * (count - scrape) + self.jitter * ((count - scrape) % 2)
            yield from ((sample, time) for sample in self._page(time))

    def _page(self, time: float) -> Iterable[Sample]:
        for name, level in {**GAUGES, **self.gauges}.items():
            if name.partition("{")[0] not in self.without and name not in self.without:
                yield self._sample(name, level(time) if callable(level) else level)
        for name, rate in {**RATES, **self.rates}.items():
            if name in self.without:
                continue
            began = self.restarted if self.restarted is not None and time >= self.restarted else BORN
            grown = rate * (min(time, self.stopped) - began)
            if name.partition("{")[0].endswith("_total") and name != STEP_TOKENS:
                yield self._sample(name, grown)
                continue
            yield self._sample(f"{name}_sum", 0.1 * grown)
            yield self._sample(f"{name}_count", grown)
            for edge in EDGES:
                yield self._sample(f"{name}_bucket", 0.0 if edge == "0.05" else grown, le=edge)
        if "vllm:cache_config_info" not in self.without:
            yield self._sample("vllm:cache_config_info", 1.0, **self.info)

    def _sample(self, name: str, value: float, **more: str) -> Sample:
        family, _, part = name.partition("{")
        given = {"namespace": self.namespace, "pod": self.pod, "engine": self.index, "model_name": "m", **more}
        if family in SPLIT:
            given[SPLIT[family]] = part.rstrip("}") or "stop"
        if family in ("vllm:cache_config_info", PROCESS_START):
            del given["model_name"]
        if family in (PROCESS_START, "vllm:admission_rejections_total"):
            del given["engine"]
        labels = {key: text for key, text in {**given, **self.labels}.items() if text}
        return Sample(name=family, labels=tuple(sorted(labels.items())), value=value, time=None)


def fleet(*engines: Engine) -> Recording:
    """Everything that was scraped of `engines`."""
    recording = Recording()
    for engine in engines:
        for sample, time in engine.samples():
            recording.add(sample, time=time)
    return recording
