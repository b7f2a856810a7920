"""The record of GPUs keeps its sum, however long it gets."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.api.gpu_steps import GPU_STEPS_LENGTH, NEWEST_KEPT, GpuCause, GpuStep, merged
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.status import VLLMServiceStatus, parse_status

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def at(hours: float, gpus: float | None, *, reference: float | None = 3, cause: GpuCause = GpuCause.SCALING) -> GpuStep:
    return GpuStep(at=NOON + timedelta(hours=hours), gpus=gpus, reference=reference, cause=cause)


def gpu_hours(steps: tuple[GpuStep, ...]) -> float:
    """Until the last step."""
    return sum((step.gpus or 0) * (after.at - step.at) / timedelta(hours=1) for step, after in pairwise(steps))


@given(
    st.lists(
        st.tuples(st.integers(1, 100), st.integers(0, 64)), min_size=GPU_STEPS_LENGTH + 1, max_size=3 * GPU_STEPS_LENGTH
    )
)
def test_merging_keeps_the_sum_and_the_newest_steps(lengths: list[tuple[int, int]]) -> None:
    steps, hours = list[GpuStep](), 0
    for length, gpus in lengths:
        steps.append(at(hours, gpus))
        hours += length
    found = merged(tuple(steps))
    assert len(found) == GPU_STEPS_LENGTH
    assert found[-NEWEST_KEPT:] == tuple(steps[-NEWEST_KEPT:])
    assert found[0].at == steps[0].at
    assert gpu_hours(found) == pytest.approx(gpu_hours(tuple(steps)))


def test_what_is_not_known_of_a_part_is_not_known_of_the_whole() -> None:
    steps = (at(0, 3), at(1, None, reference=None), *(at(100 * index, 2) for index in range(1, GPU_STEPS_LENGTH)))
    (first, *_) = merged(steps)
    assert (first.cause, first.gpus, first.reference) == (GpuCause.MERGED, None, None)


def test_a_longer_record_of_another_version_is_read_and_a_status_without_one_too() -> None:
    status = VLLMServiceStatus(gpu_steps=tuple(at(index, 2) for index in range(100)))
    assert len(status.gpu_steps) == GPU_STEPS_LENGTH
    assert parse_status(to_wire(status)) == status
    assert parse_status({}).gpu_steps == ()


def test_times_that_a_person_wrote_backwards_stop_nothing() -> None:
    steps = tuple(at(-index, index) for index in range(GPU_STEPS_LENGTH + 5))
    assert len(merged(steps)) == GPU_STEPS_LENGTH
