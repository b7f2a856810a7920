"""Advice for each diagnosis class, including those that tuning does not help."""

from collections.abc import Mapping
from typing import Final

from vllm_autotuner.diagnosis.classes import DiagnosisClass

__all__ = ["ADVICE", "NOT_TUNING"]

ADVICE: Final[Mapping[DiagnosisClass, tuple[str, ...]]] = {
    DiagnosisClass.METRICS_BLIND: (
        "The operator changes nothing while metrics are missing.",
        "Check that the pods' port is scraped and that the series have the labels namespace and pod.",
    ),
    DiagnosisClass.STARTUP_FAILURE: (
        "Fix the cause in the message. If it suggests a length, lower --max-model-len to it.",
        "InsufficientKVCache: a shorter --max-model-len, fp8 KV, more GPUs per replica or --gpu-memory-utilization.",
        "OutOfMemory: a lower --gpu-memory-utilization (0.85 to 0.90), --max-num-seqs or --max-model-len, or fp8 KV.",
        "KVTypeUnsupported: set --kv-cache-dtype auto; the GPU, attention backend or weights do not support the type.",
        "ImagePull and Unschedulable are problems of the registry or the cluster, not of the engine.",
    ),
    DiagnosisClass.COLD_START: (
        "Wait: compilation, empty caches and the startup backlog distort latencies.",
        "For bursty traffic keep one more warm replica (scaling.minReplicas).",
    ),
    DiagnosisClass.WEDGED: (
        "Restart the engine: it has requests but computes nothing. More replicas or other flags do not help.",
        "Keep the log of the hung engine: this is an engine bug, not a tuning problem.",
    ),
    DiagnosisClass.IDLE: ("Nothing to do. Fewer replicas save GPUs at the cost of a cold start.",),
    DiagnosisClass.DEFERRED_QUEUE: (
        "Check structured-output grammars, KV transfer and LoRA slots: requests wait for those, not for GPUs.",
    ),
    DiagnosisClass.PREEMPTION_THRASH: (
        "Preempted requests are computed twice. Add KV cache: fp8 KV, more replicas or a larger tensor-parallel size.",
        "Lower --max-num-seqs to what the KV cache holds if so few sequences at once finish what comes.",
    ),
    DiagnosisClass.KV_CACHE_SATURATED: (
        "Add KV cache: fp8 KV (--kv-cache-dtype fp8, where hardware and quality allow), more replicas,",
        "a higher --gpu-memory-utilization or a larger tensor-parallel size.",
        "Do not raise --max-num-seqs: with a full KV cache it only adds preemptions.",
        "Lower it where far fewer ever run: vLLM sets memory aside for each slot, about 5 GiB of a GPU for 1024.",
        "Check output lengths: without a stop token or max_tokens, requests hold KV blocks for too long.",
    ),
    DiagnosisClass.CONCURRENCY_CAPPED: ("Raise --max-num-seqs as far as the KV cache and the TPOT objective allow.",),
    DiagnosisClass.PAST_TPOT_KNEE: (
        "Lower --max-num-seqs to the knee; add replicas if requests then wait.",
        "Quantised weights or speculative decoding move the knee; the operator does not change them.",
    ),
    DiagnosisClass.DECODE_BANDWIDTH_BOUND: (
        "A smaller batch does not help: use a larger tensor-parallel size (with fast GPU links) or faster GPU memory.",
        "Quantised weights or speculative decoding shorten each step; the operator does not change them.",
    ),
    DiagnosisClass.COMMUNICATION_BOUND: (
        "Return to the smaller tensor-parallel size and use the GPUs as replicas, or use GPUs with faster links.",
    ),
    DiagnosisClass.PREFILL_BOUND: (
        "Enable prefix caching where prompts share a beginning (put the shared part first), and shorten prompts.",
        "Add replicas where requests or tokens wait for prefill; a larger tensor-parallel size where a prompt is slow.",
        "--max-num-batched-tokens sets how much of a prompt is computed in one step.",
    ),
    DiagnosisClass.HEAD_OF_LINE_BLOCKING: (
        "Limit or isolate the few huge requests: a lower --max-model-len, limits at the gateway or a separate service.",
    ),
    DiagnosisClass.RUNAWAY_OUTPUTS: (
        "Check stop tokens, the chat template and the clients' max_tokens: outputs run to their token limit.",
        "This is not a tuning problem: the operator adds no GPUs for it.",
    ),
    DiagnosisClass.CONTEXT_OVERSIZED: ("Lower --max-model-len to what requests need: it bounds the worst case.",),
    DiagnosisClass.OVERLOADED: ("Add replicas: no flag of a single engine removes this queue.",),
    DiagnosisClass.UNDERUTILIZED: (
        "One replica fewer is enough at this load; a smaller tensor-parallel size may be enough, too.",
    ),
    DiagnosisClass.HEALTHY: ("Nothing to do.",),
    DiagnosisClass.UNCLEAR: (
        "The operator changes nothing while the diagnosis is unclear.",
        "A slow client, network, tokenizer or chat template is not a tuning problem:",
        "compare the engine's own e2e latency with the latency that clients measure.",
    ),
}
"""One entry per class. Sources: field reports F1 (KV residency), F3 and F5 (triage)."""

NOT_TUNING: Final = (
    "Slow only at the client: compare with the engine's e2e latency; the rest is network, proxy or a slow reader.",
    "Wrong or odd answers: check chat template, system prompt and sampling parameters. Capacity flags do not help.",
    "Truncated answers: max_tokens or --max-model-len is too low. Endless answers: a stop token is missing.",
    "Slow in the first minutes after a start: weights, compilation, graph capture. Warm up before sending traffic.",
    "Errors instead of slowness (HTTP 4xx, 5xx): read the engine's log; latency metrics do not include them.",
)
"""Problems that look like a slow engine but are not; in reports, for every class. Source: field report F5 (triage)."""
