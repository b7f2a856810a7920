"""Predicts before a change begins whether the current request rate is high enough for a verdict.

Separate from the analysis, which counts the actual requests: a change without a verdict would cost a rollout, or a GPU,
for nothing. Assumes that the load stays as in the last windows and is spread evenly over all pods.
"""

from datetime import timedelta
from statistics import fmean

from vllm_autotuner.api.status import ANALYSIS_LENGTH, ActiveChange
from vllm_autotuner.change.comparison import FEWEST_REQUESTS

__all__ = ["lacks_requests"]


def lacks_requests(change: ActiveChange, *, replicas: int, window: timedelta) -> str:
    """Why there would be no verdict; empty if each side can expect `FEWEST_REQUESTS`.

    `replicas`: of the service; the pods of the trial take their share of its requests.
    """
    rates = [rate for one in change.before if (rate := one.requests_per_second) is not None]
    if not rates:
        return "the request rate is unknown: a verdict would not be possible"
    trials = sum(ref is not None for ref in (change.canary_ref, change.baseline_ref))
    seconds = ANALYSIS_LENGTH * window.total_seconds()
    expected = fmean(rates) * seconds * replicas / (replicas + trials)
    if expected >= FEWEST_REQUESTS:
        return ""
    return (
        f"too few requests: about {expected:.0f} per pod within the {seconds / 60:.0f} min of a trial, "
        f"a verdict needs {FEWEST_REQUESTS:.0f}"
    )
