"""What a person can do about each class, in plain words: also where the answer is not tuning."""

from collections.abc import Mapping
from typing import Final

from vllm_autotuner.diagnosis.classes import DiagnosisClass

__all__ = ["ADVICE", "NOT_TUNING"]

ADVICE: Final[Mapping[DiagnosisClass, tuple[str, ...]]] = {
    DiagnosisClass.METRICS_BLIND: (
        "Nothing is changed while metrics are missing.",
        "Check that the pods' port is scraped and that the series carry the labels namespace and pod.",
    ),
    DiagnosisClass.STARTUP_FAILURE: (
        "Correct what the message names; with a suggested length, lower --max-model-len to it.",
        "InsufficientKVCache: a shorter --max-model-len, fp8 KV, more GPUs per replica or --gpu-memory-utilization.",
        "OutOfMemory: a lower --gpu-memory-utilization (0.85 to 0.90), --max-num-seqs or --max-model-len, or fp8 KV.",
        "KVTypeUnsupported: --kv-cache-dtype auto; hardware, attention backend or weights do not take the other type.",
        "ImagePull and Unschedulable are about the registry and the cluster, not about the engine.",
    ),
    DiagnosisClass.COLD_START: (
        "Wait: compilation, empty caches and the backlog of the start distort what is measured.",
        "For bursty traffic keep a warm replica more (scaling.minReplicas).",
    ),
    DiagnosisClass.WEDGED: (
        "Restart the engine: it holds work and computes nothing. More replicas or other flags do not help.",
        "Keep the log of the hanging engine; this is a defect of the engine, not a tuning problem.",
    ),
    DiagnosisClass.IDLE: ("Nothing to do. Fewer replicas save GPUs, at the price of a cold start.",),
    DiagnosisClass.DEFERRED_QUEUE: (
        "Look at structured-output grammars, KV transfer and LoRA slots: requests wait for those, not for GPUs.",
    ),
    DiagnosisClass.PREEMPTION_THRASH: (
        "Lower --max-num-seqs to what the KV cache holds: evicted requests are computed twice.",
        "Then more KV cache: fp8 KV, more replicas, a larger tensor-parallel size.",
    ),
    DiagnosisClass.KV_CACHE_SATURATED: (
        "More KV cache: fp8 KV (--kv-cache-dtype fp8, where hardware and quality allow), more replicas,",
        "a higher --gpu-memory-utilization or a larger tensor-parallel size.",
        "Do not raise --max-num-seqs: with a full pool it only adds preemptions.",
        "Check output lengths: a missing stop token or max_tokens holds KV blocks for nothing.",
    ),
    DiagnosisClass.CONCURRENCY_CAPPED: ("Raise --max-num-seqs, as far as the KV cache and the TPOT objective allow.",),
    DiagnosisClass.PAST_TPOT_KNEE: (
        "Lower --max-num-seqs to the knee; add replicas when requests then wait.",
        "Faster weights (quantised) or speculative decoding move the knee; that is not done by this tool.",
    ),
    DiagnosisClass.DECODE_BANDWIDTH_BOUND: (
        "No smaller batch helps: a larger tensor-parallel size (where the links are fast), or faster memory.",
        "Quantised weights or speculative decoding shorten each step; that is not done by this tool.",
    ),
    DiagnosisClass.COMMUNICATION_BOUND: (
        "Go back to the smaller tensor-parallel size and use the GPUs as replicas, or give them faster links.",
    ),
    DiagnosisClass.PREFILL_BOUND: (
        "Prefix caching where prompts share a beginning (put the shared part first), and shorter prompts.",
        "More replicas where requests queue for prefill; a larger tensor-parallel size where a single prompt is slow.",
        "--max-num-batched-tokens sets how much of a prompt is computed in one step.",
    ),
    DiagnosisClass.HEAD_OF_LINE_BLOCKING: (
        "Cap or isolate the few huge requests: a lower --max-model-len, limits at the gateway, a service of their own.",
    ),
    DiagnosisClass.RUNAWAY_OUTPUTS: (
        "Look at stop tokens, the chat template and max_tokens of the clients: outputs run to their limit.",
        "This is not a tuning problem: no GPUs are spent on it.",
    ),
    DiagnosisClass.CONTEXT_OVERSIZED: ("Lower --max-model-len to what requests need: it bounds the worst case.",),
    DiagnosisClass.OVERLOADED: ("Add replicas: no flag of one engine removes this wait.",),
    DiagnosisClass.UNDERUTILIZED: (
        "One replica fewer is enough at this load; a smaller tensor-parallel size may be, too.",
    ),
    DiagnosisClass.HEALTHY: ("Nothing to do.",),
    DiagnosisClass.UNCLEAR: (
        "Nothing is changed on an unclear picture.",
        "A slow client, network, tokenizer or chat template is not a tuning problem:",
        "compare the engine's own e2e latency with what clients see.",
    ),
}
"""One entry a class; sources: field guide F1, F3, F5."""

NOT_TUNING: Final = (
    "Slow only at the client: what the engine's own e2e latency lacks is network, proxy or a client that reads slowly.",
    "Wrong or odd answers: chat template, system prompt, sampling parameters. No flag of the engine's capacity helps.",
    "Answers that break off: max_tokens or --max-model-len cuts them; answers that never end: a missing stop token.",
    "Slow in the first minutes after a start: weights, compilation, graph capture. Warm up before sending traffic.",
    "Errors instead of slowness (HTTP 4xx, 5xx): read the engine's log; latency metrics do not count them.",
)
"""What feels like a slow engine and is none, for reports: said whatever the class. Source: field guide F5."""
