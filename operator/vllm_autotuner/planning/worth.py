"""Whether a predicted effect is worth a change: more than noise, and more than the change itself costs.

Apart from ranking, which compares candidates with each other; here each stands against doing nothing.
An effect that nobody predicts is neither: it is for the verdict to find, and for the confidence to tell.
"""

from typing import Final

from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.planning.forecast import Outlook

__all__ = ["START_UP", "not_worth", "pays_back"]

HORIZON: Final = 7 * 86_400.0
"""Seconds over which a gain counts. Design: a week sees every daily peak, and rarely another model."""
PAYBACK: Final = 2.0
"""A gain must be worth at least so many disruptions: one that goes wrong has to be paid as well. Design."""
START_UP: Final = 600.0
"""Seconds in which a replica that is replaced serves nothing: loading, compiling, an empty prefix cache. Large models
take minutes; our choice where nobody measured."""
MOST_OF_IT: Final = 0.5
"""Part of what an objective is missed by that a replica has to take away. Where a small batch is hardly faster, it is
less than noise of the latency itself and yet decides about most requests: in a simulated service at 21 ms where 19 were
wanted a quarter were late for an hour, with one more replica a tenth. Our choice."""
DEVIATIONS: Final = 2.0
"""Standard deviations of the fit that an effect must exceed. Design: two sigma."""


def not_worth(before: Outlook, after: Outlook, *, target: ChangeTarget, targets: Targets, restarts: bool = True) -> str:
    """Say why the effect on what the change is meant to improve is not worth it; empty when it is, or is not known.

    `restarts`: whether engines start anew for it. A replica needs none, and goes again.
    """
    if before.tpot is not None and after.tpot is not None and before.tpot <= targets.tpot.seconds < after.tpot:
        return f"tokens would come at {told_seconds(after.tpot)}, over the objective that is met now"
    match target:
        case ChangeTarget.TTFT:
            pair, limit = (before.ttft, after.ttft), targets.ttft.seconds
        case ChangeTarget.TPOT:
            pair, limit = (before.tpot, after.tpot), targets.tpot.seconds
        case ChangeTarget.THROUGHPUT:
            # Reciprocal, so that less is better here as well.
            pair = (_per_token(before), _per_token(after))
            limit = 0.0
    old, new = pair
    if old is None or new is None or old <= 0:
        return ""
    if not restarts and old > limit > 0 and old - new > (old - limit) * MOST_OF_IT:
        return ""
    gain, noise = 1 - new / old, max(NOISE, DEVIATIONS * after.error)
    crosses = new <= limit < old
    if gain <= noise and not crosses:
        return f"predicted {target.value} moves by {gain:.0%}, noise is {noise:.0%}"
    if not pays_back(max(gain, NOISE) if crosses else gain, disruption=START_UP):
        return f"a gain of {gain:.0%} does not pay for the restart within a week"
    return ""


def pays_back(gain: float, *, disruption: float) -> bool:
    """Whether a gain (0..1, of what is served) over `HORIZON` is worth `PAYBACK` disruptions (seconds of service)."""
    return gain * HORIZON >= PAYBACK * disruption


def _per_token(outlook: Outlook) -> float | None:
    return None if not outlook.tokens_per_second else 1 / outlook.tokens_per_second
