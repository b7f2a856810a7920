"""Decides whether a forecast effect is worth a change: objectives met that are missed now, or as good on fewer GPUs.

Separate from the order of candidates, which compares them with each other; here each is compared with no change.
While objectives are missed, a proposal whose effect is not known passes: the verdict of its trial decides.
"""

from collections.abc import Set
from typing import Final

from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.planning.forecast import Outlook

__all__ = ["MET", "comes_closer", "not_worth", "order", "saves"]

TIE: Final = 0.02
"""Relative difference of capacity below which two splits of the same GPUs count as equal: measurements repeat no better
than that."""
MET: Final[Set[DiagnosisClass]] = {DiagnosisClass.HEALTHY, DiagnosisClass.UNDERUTILIZED}
"""Classes in which every objective is met: there a change can only save GPUs."""


def saves(before: Outlook, after: Outlook) -> int:
    """GPUs that the load needs less; 0 if not known."""
    if before.needed_gpus is None or after.needed_gpus is None:
        return 0
    return max(0, before.needed_gpus - after.needed_gpus)


def comes_closer(before: Outlook, after: Outlook) -> bool:
    """Whether steps become shorter on more GPUs where not even one sequence is in time, before or after."""
    if before.capacity != 0 or after.capacity != 0 or before.tpot is None or after.tpot is None:
        return False
    return after.gpus > before.gpus and after.tpot < before.tpot * (1 - NOISE)


def not_worth(before: Outlook, after: Outlook, *, met: bool, saving: bool, fixed: bool, targets: Targets) -> str:
    """Return why a change is not worth it; empty if it is, or if its effect is not known.

    `met`: the objectives are met now. `saving`: the user wants changes that only save GPUs, and the load was seen for
    long enough. `fixed`: the operator does not change the replicas, so that a setting is all that can help.
    """
    if before.tpot is not None and after.tpot is not None and before.tpot <= targets.tpot.seconds < after.tpot:
        return f"TPOT would be {told_seconds(after.tpot)}, over the objective that is met now"
    if before.missing is None or after.missing is None or before.capacity is None or after.capacity is None:
        return "its effect is not known" if met else ""
    if after.missing > before.missing + NOISE:
        return f"{after.missing:.0%} of the requests would be beyond what it serves within the objectives"
    larger = not met and after.gpus > before.gpus and after.capacity != before.capacity
    if larger and after.capacity * before.gpus <= before.capacity * after.gpus * (1 + TIE):
        return "the same GPUs as more replicas would serve as much"
    if not met and (after.missing < before.missing - NOISE or after.missing == 0 < before.missing):
        return ""
    if before.needed_gpus is not None and (after.needed_gpus is None or after.needed_gpus > before.needed_gpus):
        return "the load would need more GPUs"
    if met and not after.surely_enough:
        return "it may not serve the load with as many replicas as are allowed"
    if saves(before, after) and not after.missing and (saving or not met):
        return ""
    if met:
        return (
            "the load needs as many GPUs with it"
            if saving
            else "objectives are met, and spec.tuning.saveGpus is off or too few minutes of this load were seen"
        )
    if fixed and after.capacity * before.gpus > before.capacity * after.gpus * (1 + NOISE):
        return ""
    return f"a replica would serve {after.capacity:.2f} requests/s within the objectives, now {before.capacity:.2f}"


def order(after: Outlook | None) -> tuple[float, float, float]:
    """The sort key of a forecast, the best first: requests that miss their objectives, then GPUs, then capacity."""
    if after is None or after.missing is None or after.capacity is None:
        return (1.0, float("inf"), 0.0)
    gpus = after.gpus if after.needed_gpus is None else after.needed_gpus
    return (round(after.missing / NOISE) * NOISE, float(gpus), -after.capacity)
