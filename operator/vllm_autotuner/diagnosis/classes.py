"""The names a bottleneck can have. The values are API: they stand in status, Events, metrics and reports."""

from enum import StrEnum

__all__ = ["DiagnosisClass"]


class DiagnosisClass(StrEnum):
    """One name for what limits the service. Order of precedence is in `rules.py`."""

    METRICS_BLIND = "MetricsBlind"
    """Too few engines report fresh metrics. Nothing may be concluded."""
    WEDGED = "Wedged"
    """Work is there and no token moves. Remedy: restart; never scale out on this."""
    IDLE = "Idle"
    """No requests, and the metrics are fresh."""
    DEFERRED_QUEUE = "DeferredQueue"
    """Requests wait, but not for capacity: grammar compilation, KV transfer, LoRA slots."""
    KV_CACHE_SATURATED = "KVCacheSaturated"
    """The KV-cache pool is full: requests wait although seats are free."""
    CONCURRENCY_CAPPED = "ConcurrencyCapped"
    """Every seat (max-num-seqs) is taken while the KV cache has room."""
    PAST_TPOT_KNEE = "PastTPOTKnee"
    """The batch is so large that tokens come slower than the objective; a smaller batch meets it."""
    OVERLOADED = "Overloaded"
    """Requests wait for capacity and no setting of this engine removes the wait."""
    HEALTHY = "Healthy"
    """Objectives are met, nothing waits for long, the KV cache has room."""
    UNCLEAR = "Unclear"
    """No rule holds. The message says what was missing or what contradicts."""
