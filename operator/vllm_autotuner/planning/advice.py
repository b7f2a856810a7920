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
    DiagnosisClass.WEDGED: (
        "Restart the engine: it holds work and computes nothing. More replicas or other flags do not help.",
        "Keep the log of the hanging engine; this is a defect of the engine, not a tuning problem.",
    ),
    DiagnosisClass.IDLE: ("Nothing to do. Fewer replicas save GPUs, at the price of a cold start.",),
    DiagnosisClass.DEFERRED_QUEUE: (
        "Look at structured-output grammars, KV transfer and LoRA slots: requests wait for those, not for GPUs.",
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
    DiagnosisClass.OVERLOADED: ("Add replicas: no flag of one engine removes this wait.",),
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
