"""Whether a verdict can come of a change at all, by the requests that come now.

Apart from the analysis, which counts what came: this is asked before anything is touched, as a change without a verdict
costs a rollout, or a device, for nothing.
Must not: judge. Assumes that load goes on as it was in the last windows, and is spread evenly over all pods.
"""

from datetime import timedelta
from statistics import fmean

from vllm_autotuner.api.spec import Strategy
from vllm_autotuner.api.status import MEASUREMENTS_LENGTH, ActiveChange
from vllm_autotuner.change.analysis import longest
from vllm_autotuner.change.comparison import FEWEST_REQUESTS

__all__ = ["lacks_requests"]


def lacks_requests(change: ActiveChange, *, replicas: int, strategy: Strategy, window: timedelta) -> str:
    """Say why there would be no verdict; empty where each side may expect `FEWEST_REQUESTS`.

    `replicas`: of the service, which the pods of the trial will share its requests with.
    """
    rates = [rate for one in change.before if (rate := one.requests_per_second) is not None]
    if not rates:
        return "how many requests finish is not known: there would be no verdict"
    trials = sum(ref is not None for ref in (change.canary_ref, change.baseline_ref))
    seconds = min(longest(strategy, window=window), MEASUREMENTS_LENGTH * window).total_seconds()
    expected = fmean(rates) * seconds * replicas / (replicas + trials)
    if expected >= FEWEST_REQUESTS:
        return ""
    return (
        f"a pod would finish about {expected:.0f} requests in the {seconds / 60:.0f} min of a trial, "
        f"{FEWEST_REQUESTS:.0f} are needed for a verdict"
    )
