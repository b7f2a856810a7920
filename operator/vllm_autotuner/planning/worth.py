"""Decides whether a predicted effect is worth a change: above noise, and above the cost of the change.

Separate from ranking, which compares candidates with each other; here each is compared with no change.
A proposal without a predicted effect passes: the verdict of its trial decides.
"""

from typing import Final

from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.planning.forecast import Outlook

__all__ = ["START_UP", "not_worth", "pays_back"]

HORIZON: Final = 7 * 86_400.0
"""Seconds over which a gain counts. Design choice: a week includes every daily peak and rarely a change of model."""
PAYBACK: Final = 2.0
"""Number of disruptions that a gain must pay for: the change and a possible rollback. Design choice."""
START_UP: Final = 600.0
"""Seconds in which a replaced replica does not serve: loading, compiling, an empty prefix cache. Large models take
minutes; our choice, unmeasured."""
MOST_OF_IT: Final = 0.5
"""Share of an objective's excess that one more replica must remove. Where a small batch is hardly faster, this is less
than noise of the latency itself and yet decides about most requests: in a simulated service at 21 ms (objective 19 ms)
a quarter of requests were late for an hour, with one more replica a tenth. Our choice."""
DEVIATIONS: Final = 2.0
"""Standard deviations of the fit that an effect must exceed. Design choice: two sigma."""


def not_worth(before: Outlook, after: Outlook, *, target: ChangeTarget, targets: Targets, restarts: bool = True) -> str:
    """Return why the effect on the target is not worth the change; empty if it is, or if the effect is not known.

    `restarts`: whether engines restart for it. Adding a replica needs no restart.
    """
    if before.tpot is not None and after.tpot is not None and before.tpot <= targets.tpot.seconds < after.tpot:
        return f"TPOT would be {told_seconds(after.tpot)}, over the objective that is met now"
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
        return f"predicted {target.value} gain is {gain:.0%} (noise {noise:.0%})"
    if not pays_back(max(gain, NOISE) if crosses else gain, disruption=START_UP):
        return f"a gain of {gain:.0%} does not pay for the restart within a week"
    return ""


def pays_back(gain: float, *, disruption: float) -> bool:
    """Whether a gain (0..1, of what is served) over `HORIZON` is worth `PAYBACK` disruptions (seconds of service)."""
    return gain * HORIZON >= PAYBACK * disruption


def _per_token(outlook: Outlook) -> float | None:
    return None if not outlook.tokens_per_second else 1 / outlook.tokens_per_second
