"""Whether the canary got as much traffic as the pods that it is compared with.

Separate from the comparison, which takes every window for two looks at the same load. Routers that prefer warm prefixes
or pods that answer fast, sticky sessions and pools of few connections share out differently, and with half of the
requests any setting looks good. Fewer requests, or fewer prompt tokens, prove no good; more prove no harm.
Must not: judge latencies. What is not measured is taken for equal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from vllm_autotuner.api.status import Measurement
from vllm_autotuner.observation.noise import DEVIATIONS

__all__ = ["TOLERANCE", "ArmTraffic", "arm_traffic"]

TOLERANCE: Final = 0.25
"""By how much (relative) a canary may get less or more than a pod that it is compared with. Two routers over three
equal pods shared out 0.30 to 0.38, up to a seventh from a third: a verdict has to stand beside that. Our choice."""
PROMPT_VARIANCE: Final = 2.0
"""Square of the coefficient of variation of prompt lengths (1 to 2 in chat traces): by so much more than their number
do the tokens of prompts vary by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTraffic:
    """What the canary got, relative to a pod of the reference; 1 where not known."""

    requests: float = 1.0
    prompts: float = 1.0
    fewer: bool = False
    """Clearly less of one of them."""
    more: bool = False

    def told(self) -> str:
        """In words, for the reason of a verdict."""
        return (
            f"the canary got {self.requests:.0%} of the requests and {self.prompts:.0%} of the prompt tokens of a pod "
            "that it is compared with"
        )


def arm_traffic(
    candidate: Sequence[Measurement], reference: Sequence[Measurement], *, length: timedelta | None
) -> ArmTraffic:
    """Compare what came to both over the same windows, of `length` each: those of which both sides are known.

    Worked: 200 requests against 400 are a half, and by chance it would be 1 +- 2 * sqrt(1/200 + 1/400) = 0.83 at least:
    fewer. 40 against 60 are two thirds, and by chance 0.59 at least: the same.
    """
    counted = [(one, other) for one, other in zip(candidate, reference, strict=True)
               if None not in (one.requests_per_second, other.requests_per_second)]  # fmt: skip
    told = [None not in (one.rejected_per_second, other.rejected_per_second) for one, other in counted]
    ours, theirs = (_came([pair[side] for pair in counted], told, length) for side in (0, 1))
    if ours is None or theirs is None or ours < 0 or theirs <= 0:
        return ArmTraffic()
    # Of a canary without any request (sticky sessions keep to the old pods) only the others' number can vary by chance.
    chance = DEVIATIONS * math.sqrt(1 / theirs + (1 / ours if ours else 0.0))
    requests, prompts = ours / theirs, _prompts(candidate, reference)
    apart = ((requests, max(TOLERANCE, chance)), (prompts, max(TOLERANCE, chance * math.sqrt(1 + PROMPT_VARIANCE))))
    return ArmTraffic(
        requests=requests,
        prompts=prompts,
        fewer=any(ratio < 1 - tolerance for ratio, tolerance in apart),
        more=any(ratio > 1 + tolerance for ratio, tolerance in apart),
    )


def _came(windows: Sequence[Measurement], told: Sequence[bool], length: timedelta | None) -> float | None:
    """Requests that came: finished, rejected, and by how many more run or wait at the end than at the beginning.

    Rejected ones count only in windows in which both sides told how many (`told`).
    """
    if length is None or not windows:
        return None
    rejected = sum(window.rejected_per_second or 0.0 for window, both in zip(windows, told, strict=True) if both)
    rate = rejected + sum(window.requests_per_second or 0.0 for window in windows)
    first, last = windows[0], windows[-1]
    held = [window.running + window.waiting for window in (first, last)
            if window.running is not None and window.waiting is not None]  # fmt: skip
    grown = held[1] - held[0] if len(held) == 2 else 0.0
    return rate * length.total_seconds() + grown


def _prompts(candidate: Sequence[Measurement], reference: Sequence[Measurement]) -> float:
    rates = [(one.prompt_tokens_per_second, other.prompt_tokens_per_second)
             for one, other in zip(candidate, reference, strict=True)]  # fmt: skip
    known = [(ours, theirs) for ours, theirs in rates if ours is not None and theirs is not None]
    usual = sum(theirs for _, theirs in known)
    return sum(ours for ours, _ in known) / usual if usual > 0 else 1.0
