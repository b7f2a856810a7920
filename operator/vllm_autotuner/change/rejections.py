"""Compares the share of rejected requests: a candidate that rejects requests early makes its latencies look better.

Separate from `objective_effect`, because this share is usually zero, so ratios would be meaningless.
With m the margin, and the share of a side taken over all its windows, it is
  hurt    when the share is higher by more than m, and higher window by window by more than chance;
  gross   when it is higher by `GROSS_REJECTED` in each of the newest windows: that ends the change at once;
  safe    when the share is not higher by more than m.
Must not: treat unknown as zero (vLLM reports it from 0.32 on); unknown is no evidence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from vllm_autotuner.api.status import Measurement
from vllm_autotuner.change.signed_rank import Interval

__all__ = ["GROSS_REJECTED", "MORE_REJECTED", "Rejections", "rejected_share", "rejections", "rejects_grossly"]

MORE_REJECTED: Final = 0.01
"""Tolerated increase of the rejected share. One request in a hundred: our choice."""
GROSS_REJECTED: Final = 0.1
"""The same for a gross violation. One in ten is no accident: our choice."""
FEWEST_REJECTED: Final = 10.0
"""Rejected requests needed before a gross violation ends a change at once. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejections:
    """The shares (0..1) of rejected requests on both sides, and the conclusion."""

    candidate: float
    reference: float
    hurt: bool
    safe: bool

    def told(self) -> str:
        """The shares in words; empty if no request was rejected."""
        if not self.candidate and not self.reference:
            return ""
        return f"rejected requests {self.reference:.1%} -> {self.candidate:.1%}"


def rejected_share(windows: Sequence[Measurement]) -> float | None:
    """The share of rejected requests over all these windows; None if unknown, or without requests."""
    rates = [(one.rejected_per_second, one.requests_per_second) for one in windows]
    known = [(away, done) for away, done in rates if away is not None and done is not None]
    known = [(away, done) for away, done in known if math.isfinite(away + done) and min(away, done) >= 0]
    away, done = sum(one for one, _ in known), sum(one for _, one in known)
    return away / (away + done) if away + done > 0 else None


def rejections(ours: Sequence[Measurement], theirs: Sequence[Measurement], *, apart: Interval) -> Rejections | None:
    """Judge the shares of all windows of both sides; `apart` is the interval of their difference window by window."""
    candidate, reference = rejected_share(ours), rejected_share(theirs)
    if candidate is None or reference is None:
        return None
    more = candidate - reference > MORE_REJECTED
    return Rejections(candidate=candidate, reference=reference, hurt=more and apart.low > 0, safe=not more)


def rejects_grossly(newest: Sequence[Measurement], usual: Sequence[float | None], *, length: timedelta | None) -> bool:
    """Whether the rejected share in each of these windows grossly exceeds the corresponding share in `usual`."""
    shares = [rejected_share([window]) for window in newest]
    away = sum(window.rejected_per_second or 0.0 for window in newest) * (length or timedelta()).total_seconds()
    gross = [
        share is not None and other is not None and share > other + GROSS_REJECTED
        for share, other in zip(shares, usual, strict=True)
    ]
    return bool(gross) and all(gross) and away >= FEWEST_REJECTED
