"""Status model of past scale-ins: whether the remaining replicas were enough.

Separate from the records of changes: replicas follow the load and are not a tuning change.
"""

from typing import Final

from vllm_autotuner.api.fields import Number, Timestamp
from vllm_autotuner.api.model import ApiModel

__all__ = ["SCALE_INS_LENGTH", "ScaleInTried"]

SCALE_INS_LENGTH: Final = 8
"""Number of tries that are remembered: few services need more replica counts, or have more failures, within a day. Our
choice, for size."""


class ScaleInTried(ApiModel):
    """A scale-in, and whether the remaining replicas were enough."""

    replicas: int
    """Replicas that remained."""

    config_hash: str | None = None
    """Hash of their configuration: another one has another capacity."""

    at: Timestamp | None = None
    """When the scale-in was requested."""

    failed_at: Timestamp | None = None
    """When more replicas were needed again; absent while the remaining ones are enough."""

    tokens_per_second: Number = None
    """Output tokens per second at which they were not enough; absent if unknown."""

    pod_came_back: bool | None = None
    """True where one of them had just become ready: the others had its load, and this one says nothing of theirs."""
