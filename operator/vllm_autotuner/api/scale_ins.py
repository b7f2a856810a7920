"""What became of replicas that were taken away, as it stands in the status.

Apart from the records of changes, because replicas follow the load by themselves and are no change.
"""

from typing import Final

from vllm_autotuner.api.fields import Number, Timestamp
from vllm_autotuner.api.model import ApiModel

__all__ = ["SCALE_INS_LENGTH", "ScaleInTried"]

SCALE_INS_LENGTH: Final = 8
"""Numbers of replicas of which it is remembered: few services have more between trough and peak. Our choice, for size.
"""


class ScaleInTried(ApiModel):
    """Fewer replicas than before, and whether they did."""

    replicas: int
    """How many were left."""

    config_hash: str | None = None
    """What they ran: other settings carry another load."""

    at: Timestamp | None = None
    """When it was asked for."""

    failed_at: Timestamp | None = None
    """When more were needed again; absent while they do, or where they did long enough."""

    tokens_per_second: Number = None
    """Output tokens per second at which they were too few; absent where nobody knows."""
