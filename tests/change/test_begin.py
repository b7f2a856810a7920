"""A proposal becomes a change: everything needed to continue or roll back is recorded at once."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.change.worlds import BEFORE, NOW
from tests.workload.services import service

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.spec import StrategyType
from vllm_autotuner.api.status import (
    ActiveChange,
    ChangeState,
    ChangeTarget,
    Confidence,
    Effective,
    HistoryEntry,
    Outcome,
    Source,
    TrialRef,
    VLLMServiceStatus,
)
from vllm_autotuner.change.begin import begin
from vllm_autotuner.planning.placement import FreeGpus
from vllm_autotuner.planning.proposal import Proposal

PROPOSAL = Proposal(
    knob=Knob.MAX_NUM_SEQS,
    current=128,
    value=192,
    target=ChangeTarget.TTFT,
    reason="All running-sequence slots are taken.",
    confidence=Confidence.HIGH,
)


def begun(
    proposal: Proposal = PROPOSAL,
    *,
    status: VLLMServiceStatus | None = None,
    replicas: int = 1,
    strategy: str | None = None,
    free_gpus: FreeGpus | None = None,
    **metadata: Any,
) -> ActiveChange:
    written = {"provisioningDeadline": "7m"} | ({"type": strategy} if strategy else {})
    return begin(
        proposal,
        service=service({"tuning.strategy": written}, metadata=metadata),
        status=status or VLLMServiceStatus(),
        hash_of=lambda knobs: f"hash-of-{knobs.max_num_seqs}",
        measured=(BEFORE,),
        replicas=replicas,
        epoch=3,
        now=NOW,
        free_gpus=free_gpus,
    )


DEGREE = replace(PROPOSAL, knob=Knob.TENSOR_PARALLEL_SIZE, current=1, value=2)


@pytest.mark.parametrize(
    ("proposal", "free_gpus", "fresh"),
    [
        pytest.param(PROPOSAL, None, True, id="free GPUs are unknown"),
        pytest.param(PROPOSAL, FreeGpus(free=(1, 1), largest_node=1), True, id="a GPU for each"),
        pytest.param(PROPOSAL, FreeGpus(free=(1,), largest_node=1), False, id="a GPU for the canary only"),
        pytest.param(DEGREE, FreeGpus(free=(2, 1), largest_node=2), True, id="two for the one, one for the other"),
        pytest.param(DEGREE, FreeGpus(free=(2,), largest_node=2), False, id="the canary takes both"),
        pytest.param(PROPOSAL, FreeGpus(free=(8,), largest_node=8, quota=1), False, id="the quota allows one"),
    ],
)
def test_a_fresh_baseline_is_planned_where_it_finds_a_device(
    proposal: Proposal, free_gpus: FreeGpus | None, *, fresh: bool
) -> None:
    change = begun(proposal, replicas=3, free_gpus=free_gpus)
    assert change.strategy is StrategyType.CANARY
    assert (change.baseline_ref is not None) is fresh


def test_both_sides_are_complete() -> None:
    change = begun()
    assert (change.from_.knobs.max_num_seqs, change.from_.config_hash) == (128, "hash-of-128")
    assert (change.to.knobs.max_num_seqs, change.to.config_hash) == (192, "hash-of-192")
    assert change.from_.knobs.updated(max_num_seqs=192) == change.to.knobs
    assert (change.from_value, change.to_value, change.target) == ("128", "192", ChangeTarget.TTFT)
    assert (change.epoch, change.generation, change.baseline) == (3, 1, BEFORE)


def test_it_begins_with_a_deadline() -> None:
    change = begun()
    assert (change.state, change.state_since, change.started_at) == (ChangeState.PROVISIONING, NOW, NOW)
    assert change.deadline == NOW + timedelta(minutes=7)


@pytest.mark.parametrize(
    ("replicas", "strategy", "minutes"),
    [
        pytest.param(10, "InPlace", 70, id="one pod after the other"),
        pytest.param(10, "Canary", 7, id="a canary is one pod"),
        pytest.param(0, None, 7, id="no replica yet: time for one"),
    ],
)
def test_each_pod_that_is_replaced_gets_the_time_of_one(replicas: int, strategy: str | None, minutes: int) -> None:
    assert begun(replicas=replicas, strategy=strategy).deadline == NOW + timedelta(minutes=minutes)


def test_it_remembers_how_many_replicas_served_before_it() -> None:
    assert begun(replicas=3).replicas == 3


@pytest.mark.parametrize(
    ("replicas", "strategy", "canary", "baseline"),
    [
        pytest.param(0, None, False, False, id="no replica: in place"),
        pytest.param(1, None, False, False, id="a single replica: in place"),
        pytest.param(2, None, True, False, id="two: a canary beside them"),
        pytest.param(3, None, True, True, id="three: and a fresh pod to compare it with"),
        pytest.param(3, "InPlace", False, False, id="in place where the user says so"),
        pytest.param(1, "Canary", True, False, id="a canary beside a single one where the user says so"),
    ],
)
def test_the_strategy(replicas: int, strategy: str | None, canary: bool, baseline: bool) -> None:
    change = begun(replicas=replicas, strategy=strategy)
    assert change.strategy is (StrategyType.CANARY if canary else StrategyType.IN_PLACE)
    name = service().metadata.name
    assert change.canary_ref == (TrialRef(name=f"{name}-t-{change.id}", config_hash="hash-of-192") if canary else None)
    assert change.baseline_ref == (
        TrialRef(name=f"{name}-b-{change.id}", config_hash="hash-of-128") if baseline else None
    )
    assert not change.promoted


def test_it_starts_from_the_tuned_values() -> None:
    written = service().spec.engine
    assert written is not None
    values = written.knobs.model_dump() | {"maxNumSeqs": 160}
    tuned = Effective(**values, source=Source.TUNED, basis=written.knobs)
    change = begun(replace(PROPOSAL, current=160), status=VLLMServiceStatus(effective=tuned))
    assert change.from_.max_num_seqs == 160


def test_the_engines_default_has_no_number() -> None:
    assert begun(replace(PROPOSAL, current=None)).from_value is None


def test_the_same_decision_has_the_same_id() -> None:
    assert begun() == begun()
    assert to_wire(begun()) == to_wire(begun())


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: begun(replace(PROPOSAL, value=193)), id="another value"),
        pytest.param(lambda: begun(generation=2), id="another spec"),
        pytest.param(lambda: begun(uid="u-2"), id="another object of that name"),
        pytest.param(
            lambda: begun(
                status=VLLMServiceStatus(
                    history=(HistoryEntry(id="c0", knob="maxNumSeqs", outcome=Outcome.ROLLED_BACK),)
                )
            ),
            id="the same again after a rollback",
        ),
    ],
)
def test_another_decision_has_another_id(other: Any) -> None:
    assert other().id != begun().id
