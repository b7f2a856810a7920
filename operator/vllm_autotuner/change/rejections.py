"""Whether a candidate turns more requests away than the reference: who is turned away early waits for nothing, so that
every latency looks better for it.

Apart from `objective_effect`, because this is a share that is zero most of the time: ratios would mean nothing.
With m the margin, the share of a side being over all its windows, it is
  hurt    when the share is higher by more than m, and higher window by window by more than chance;
  gross   when it is higher by `GROSS_REJECTED` in each of the newest windows: that ends the change at once;
  safe    when the share is not higher by more than m.
Must not: count what nobody knows as none (vLLM tells it from 0.32 on); there it is no evidence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from vllm_autotuner.api.status import Measurement
from vllm_autotuner.change.signed_rank import Interval

__all__ = ["GROSS_REJECTED", "MORE_REJECTED", "Rejections", "rejected_share", "rejections", "turns_away"]

MORE_REJECTED: Final = 0.01
"""How much larger a share of requests may be turned away and still be as good. One in a hundred: our choice."""
GROSS_REJECTED: Final = 0.1
"""The same for a gross violation. One in ten is no accident: our choice."""
FEWEST_REJECTED: Final = 10.0
"""Requests that must be turned away before that ends a change at once. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejections:
    """The shares (0..1) that both sides turn away, and what they mean."""

    candidate: float
    reference: float
    hurt: bool
    safe: bool

    def told(self) -> str:
        """For people; empty where nobody is turned away."""
        if not self.candidate and not self.reference:
            return ""
        return f"turned away {self.reference:.1%} -> {self.candidate:.1%} of the requests"


def rejected_share(windows: Sequence[Measurement]) -> float | None:
    """The share of the requests of all these windows that was turned away; None when nobody knows or nobody came."""
    rates = [(one.rejected_per_second, one.requests_per_second) for one in windows]
    known = [(away, done) for away, done in rates if away is not None and done is not None]
    known = [(away, done) for away, done in known if math.isfinite(away + done) and min(away, done) >= 0]
    away, done = sum(one for one, _ in known), sum(one for _, one in known)
    return away / (away + done) if away + done > 0 else None


def rejections(ours: Sequence[Measurement], theirs: Sequence[Measurement], *, apart: Interval) -> Rejections | None:
    """Judge the shares of all windows of both sides; `apart` is how far they lie apart window by window."""
    candidate, reference = rejected_share(ours), rejected_share(theirs)
    if candidate is None or reference is None:
        return None
    more = candidate - reference > MORE_REJECTED
    return Rejections(candidate=candidate, reference=reference, hurt=more and apart.low > 0, safe=not more)


def turns_away(newest: Sequence[Measurement], usual: Sequence[float | None], *, length: timedelta | None) -> bool:
    """Whether each of these windows turns away grossly more than the share beside it in `usual`."""
    shares = [rejected_share([window]) for window in newest]
    away = sum(window.rejected_per_second or 0.0 for window in newest) * (length or timedelta()).total_seconds()
    gross = [
        share is not None and other is not None and share > other + GROSS_REJECTED
        for share, other in zip(shares, usual, strict=True)
    ]
    return bool(gross) and all(gross) and away >= FEWEST_REJECTED
