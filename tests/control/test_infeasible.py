"""What found too little memory is not tried again at that size or above it, however long ago it was."""

from datetime import timedelta

import pytest
from tests.control.desk import CAPPED, HEALTHY, Desk, desk

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.status import Outcome


def crashing(found: Desk, *, lacked_memory: bool) -> None:
    """The candidate does not start, and is rolled back."""
    found.until("Provisioning", CAPPED)
    crashed = {"crashed": "OutOfMemory: CUDA out of memory", "lacked_memory": lacked_memory}
    found.tick(CAPPED, rollout=found.rollout(settled=False, rolled_out=False, **crashed))
    found.until(None, CAPPED)
    assert found.read.history[-1].outcome is Outcome.ROLLED_BACK


@pytest.mark.fault("T18")
def test_what_found_too_little_memory_is_known_for_good_and_less_may_be_tried() -> None:
    found = desk()
    crashing(found, lacked_memory=True)
    (entry,) = found.read.failure_memory
    assert (entry.value, entry.infeasible, entry.retry_after) == ("128", EngineKnobs(max_num_seqs=128), None)
    found.now += timedelta(days=400)
    found.until("Provisioning", CAPPED)
    change = found.read.active_change
    assert change is not None
    assert int(change.to_value) < 128


def test_other_crashes_rest_and_pass() -> None:
    found = desk()
    crashing(found, lacked_memory=False)
    (entry,) = found.read.failure_memory
    assert entry.infeasible is None
    assert entry.retry_after is not None


def test_another_engine_image_is_another_story() -> None:
    found = desk()
    crashing(found, lacked_memory=True)
    found.edit(engine__image="vllm/vllm-openai:v0.33.0")
    found.now += timedelta(days=1)
    found.ticks(3, HEALTHY)
    found.until("Provisioning", CAPPED)
    change = found.read.active_change
    assert change is not None
    assert change.to_value == "128"
