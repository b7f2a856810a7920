"""The diagnosis classes. The values are API: they appear in status, Events, metrics and reports."""

from enum import StrEnum
from typing import Final

__all__ = ["SLOW_TOKENS", "DiagnosisClass"]


class DiagnosisClass(StrEnum):
    """What limits the service. The order of precedence is in `rules.py`."""

    METRICS_BLIND = "MetricsBlind"
    """Too few engines report fresh metrics. Nothing can be concluded."""
    STARTUP_FAILURE = "StartupFailure"
    """Pods crash before they serve, or do not become ready. The message names the cause."""
    COLD_START = "ColdStart"
    """Every serving pod is still warming up. Remedy: wait."""
    WEDGED = "Wedged"
    """Requests are present but no token is computed. Remedy: restart; never scale out on this."""
    IDLE = "Idle"
    """No requests, and the metrics are fresh."""
    DEFERRED_QUEUE = "DeferredQueue"
    """Requests wait, but not for capacity: grammar compilation, KV transfer, LoRA slots."""
    PREEMPTION_THRASH = "PreemptionThrash"
    """More sequences run than the KV cache holds: the engine preempts and recomputes requests."""
    KV_CACHE_SATURATED = "KVCacheSaturated"
    """The KV cache is full: requests wait although slots (max-num-seqs) are free."""
    CONCURRENCY_CAPPED = "ConcurrencyCapped"
    """All slots (max-num-seqs) are in use while the KV cache has room."""
    PAST_TPOT_KNEE = "PastTPOTKnee"
    """The batch is too large for the TPOT objective; a smaller batch meets it."""
    DECODE_BANDWIDTH_BOUND = "DecodeBandwidthBound"
    """TPOT misses its objective even at the smallest batch."""
    COMMUNICATION_BOUND = "CommunicationBound"
    """Tokens are no faster at this tensor-parallel size than on fewer GPUs."""
    PREFILL_BOUND = "PrefillBound"
    """TTFT misses its objective because prompts take long to compute."""
    HEAD_OF_LINE_BLOCKING = "HeadOfLineBlocking"
    """A few huge requests delay the others."""
    RUNAWAY_OUTPUTS = "RunawayOutputs"
    """Requests end only at their token limit and outputs are far too long. Remedy: stop tokens, max_tokens."""
    CONTEXT_OVERSIZED = "ContextOversized"
    """max-model-len is far above what requests need. Never primary."""
    OVERLOADED = "Overloaded"
    """Requests wait for capacity and no setting of this engine removes the wait."""
    UNDERUTILIZED = "Underutilized"
    """One replica fewer would carry the load within every objective."""
    HEALTHY = "Healthy"
    """Objectives are met, there is no lasting queue and the KV cache has room."""
    UNCLEAR = "Unclear"
    """No rule holds. The message names the missing or contradicting input."""


SLOW_TOKENS: Final = frozenset(
    {DiagnosisClass.PAST_TPOT_KNEE, DiagnosisClass.DECODE_BANDWIDTH_BOUND, DiagnosisClass.COMMUNICATION_BOUND}
)
"""Classes in which each token comes too late: a change against them is judged by TPOT. They may hide a queue, because
the classes about queues require TPOT in time or have lower precedence."""
