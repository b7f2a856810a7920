"""Status model of the GPUs that a service asked for over time: what savings are computed from.

Separate from the history of changes, because replicas move without a change and a change may keep its GPUs. Steady
state adds nothing: between two steps the number stands. Must not: hold money, whose price is not part of the object.
"""

from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from vllm_autotuner.api.fields import Number, Timestamp
from vllm_autotuner.api.model import ApiModel

__all__ = ["GPU_STEPS_LENGTH", "NEWEST_KEPT", "GpuCause", "GpuStep", "GpuSteps", "merged"]

GPU_STEPS_LENGTH: Final = 32
"""Steps that are kept: 4 KB. More are merged two by two, so that sums stay exact and old times become coarser. Our
choice: a service with a peak in the morning and one in the evening keeps a week in full."""
NEWEST_KEPT: Final = 8
"""The newest steps, which are never merged: people read them one by one."""


class GpuCause(StrEnum):
    """Why the number of GPUs changed."""

    START = "Start"
    """The record begins here, or begins again after a time for which the number is not known."""
    SCALING = "Scaling"
    """The operator changed the replicas."""
    CHANGE = "Change"
    """A change of a setting was kept."""
    OWNER = "Owner"
    """An edit of the spec, or of the Deployment of spec.targetRef by its owner: neither saved nor spent by the
    operator."""
    MERGED = "Merged"
    """Several older steps in one; the numbers are means over its time."""


class GpuStep(ApiModel):
    """From when on a service asked for how many GPUs."""

    at: Timestamp
    """From when on."""

    cause: GpuCause
    """Why: Start, Scaling, Change, Owner or Merged."""

    gpus: Number = None
    """GPUs of all replicas; absent if not known, as while an autoscaler sets the replicas."""

    reference: Number = None
    """GPUs that it would ask for without the operator: those at the start, and what its owner added or removed since.
    Absent if not known."""

    replicas: int | None = None
    """Replicas."""

    change_id: str | None = None
    """The change that was kept, where that is the cause."""


def merged(steps: tuple[GpuStep, ...], *, length: int = GPU_STEPS_LENGTH) -> tuple[GpuStep, ...]:
    """Return at most `length` steps, oldest first, with the same sum of GPU-hours.

    The two neighbours that together took the shortest time become one, the newest steps excepted.
    """
    found = list(steps)
    while len(found) > length:
        ends = [later.at for later in found[2:]]
        older = found[: max(2, len(found) - NEWEST_KEPT)]
        spans = [end - first.at for (first, _), end in zip(pairwise(older), ends, strict=False)]
        place = min(range(len(spans)), key=spans.__getitem__)
        found[place : place + 2] = [_one(found[place], found[place + 1], end=found[place + 2])]
    return tuple(found)


def _one(first: GpuStep, second: GpuStep, *, end: GpuStep) -> GpuStep:
    former, latter = second.at - first.at, end.at - second.at
    return GpuStep(
        at=first.at,
        cause=GpuCause.MERGED,
        gpus=_mean(first.gpus, second.gpus, former, latter),
        reference=_mean(first.reference, second.reference, former, latter),
    )


def _mean(one: float | None, other: float | None, former: timedelta, latter: timedelta) -> float | None:
    """The mean over both times; None where one of them is not known: it is not known of the whole then."""
    total = (former + latter).total_seconds()
    if one is None or other is None:
        return None
    if total <= 0:  # an edited status: times that go backwards have no mean
        return other
    return (one * former.total_seconds() + other * latter.total_seconds()) / total


def _merging(length: int) -> tuple[AfterValidator, Any]:
    """Return the metadata of a list of steps that keeps its sum where it is longer than `length`."""

    def cut(steps: tuple[GpuStep, ...]) -> tuple[GpuStep, ...]:
        return merged(steps, length=length)

    return AfterValidator(cut), Field(json_schema_extra={"maxItems": length})


GpuSteps = Annotated[tuple[GpuStep, ...], *_merging(GPU_STEPS_LENGTH)]
"""The record in a status, oldest first."""
