"""The record of GPUs in a status: a step whenever the number changes, with its cause, and no write for its own sake."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.control.desk import CAPPED, HEALTHY, HELPED, OVERLOADED, START, TICK, Desk, desk, scaled

from vllm_autotuner.api.gpu_steps import GpuCause, GpuStep
from vllm_autotuner.api.spec import Accelerator
from vllm_autotuner.api.status import Effective, Outcome, VLLMServiceStatus
from vllm_autotuner.change.world import Ending
from vllm_autotuner.control.decide.gpu_accounting import accounted, gpus_asked_for
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.planning.placement import FreeGpus

GPU = {"product": "NVIDIA-H100-80GB-HBM3"}


def told(found: Desk) -> list[tuple[str, float | None, float | None]]:
    return [(step.cause.value, step.gpus, step.reference) for step in found.read.gpu_steps]


def test_the_first_status_begins_the_record_and_steady_state_adds_nothing() -> None:
    found = desk(accelerator=GPU, engine__tensorParallelSize=2)
    found.tick(HEALTHY)
    assert told(found) == [("Start", 2, 2)]
    writes = found.writes
    found.ticks(20, HEALTHY)
    assert found.writes <= writes + 1, "the first diagnosis"
    assert told(found) == [("Start", 2, 2)]


def test_each_scaling_is_a_step_that_keeps_the_reference() -> None:
    found = scaled(accelerator=GPU)
    for _ in range(40):
        found.tick(OVERLOADED)
        if len(found.read.gpu_steps) > 1:
            break
    start, out = found.read.gpu_steps[:2]
    assert (start.cause, start.gpus, start.reference, start.replicas) == (GpuCause.START, 1, 1, 1)
    assert (out.cause, out.reference) == (GpuCause.SCALING, 1)
    assert out.gpus == out.replicas == found.replicas
    assert out.at == found.now


def test_an_edit_of_the_spec_moves_the_reference_too() -> None:
    found = desk(accelerator=GPU)
    found.ticks(2, HEALTHY)
    found.edit(replicas=3)
    found.tick(HEALTHY)
    assert told(found) == [("Start", 1, 1), ("Owner", 3, 3)]


def test_without_an_accelerator_nothing_is_recorded() -> None:
    found = desk()
    found.ticks(3, HEALTHY)
    assert found.read.gpu_steps == ()


def test_a_change_remembers_the_gpus_that_it_added() -> None:
    found = desk(accelerator=GPU)
    found.until("Provisioning", CAPPED)
    found.until(None, HELPED)
    assert [entry.extra_gpus for entry in found.read.history] == [1]
    assert told(found) == [("Start", 1, 1)], "the same GPUs with another setting"
    without = desk()
    without.until("Provisioning", CAPPED)
    without.until(None, HELPED)
    assert [entry.extra_gpus for entry in without.read.history] == [None]


@pytest.mark.parametrize(
    ("accelerator", "nodes", "before", "product"),
    [
        pytest.param(Accelerator(product="H100"), "A100", None, "H100", id="the spec or the adopted Deployment"),
        pytest.param(Accelerator(), "A100", None, "A100", id="the nodes, where only a number of GPUs is asked for"),
        pytest.param(None, "A100", None, "A100", id="the nodes, where the pod template asks"),
        pytest.param(Accelerator(), None, "A100", "A100", id="nodes that are not known leave what was found"),
        pytest.param(Accelerator(), "", "A100", None, id="nodes that differ: not known any more"),
    ],
)
def test_the_gpu_is_what_spec_or_nodes_say(
    accelerator: Accelerator | None, nodes: str | None, before: str | None, product: str | None
) -> None:
    inputs = inputs_with(None)
    spec = inputs.service.spec.updated(accelerator=accelerator)
    found = replace(
        inputs,
        service=replace(inputs.service, spec=spec),
        free_gpus=None if nodes is None else FreeGpus(free=(), largest_node=0, product=nodes),
    )
    assert accounted(VLLMServiceStatus(gpu_product=before), inputs=found, ended=None).gpu_product == product


def inputs_with(before: Effective | None) -> Inputs:
    found = scaled(accelerator=GPU)
    service = replace(found.service, status=VLLMServiceStatus(effective=before))
    return replace(found.inputs(HEALTHY), service=service, now=START)


def test_a_kept_split_is_a_step_of_its_change() -> None:
    kept = desk(accelerator=GPU)
    kept.until("Provisioning", CAPPED)
    change = kept.read.active_change
    assert change is not None
    before = Effective(replicas=2, tensor_parallel_size=2, since=START - timedelta(hours=3))
    after = VLLMServiceStatus(effective=before.updated(tensor_parallel_size=1))
    ending = Ending(outcome=Outcome.SUCCEEDED, reason="as good")
    found = accounted(after, inputs=inputs_with(before), ended=(change, ending)).gpu_steps
    assert [(step.cause, step.gpus, step.reference, step.change_id) for step in found] == [
        (GpuCause.START, 4, 4, None),
        (GpuCause.CHANGE, 2, 4, change.id),
    ]
    assert found[0].at == START - timedelta(hours=3), "the number stood since then"


def test_replicas_that_another_controller_sets_end_the_record_until_it_is_known_again() -> None:
    before = Effective(replicas=2)
    status = VLLMServiceStatus(effective=before)
    for replicas in (None, 5):
        after = status.updated(effective=Effective(replicas=replicas))
        status = accounted(after, inputs=inputs_with(status.effective), ended=None)
    assert [(step.cause, step.gpus, step.reference) for step in status.gpu_steps] == [
        (GpuCause.START, 2, 2),
        (GpuCause.OWNER, None, None),
        (GpuCause.START, 5, 5),
    ]


def test_a_clock_that_was_set_back_makes_no_step_before_the_last() -> None:
    last = GpuStep(at=START + TICK, cause=GpuCause.START, gpus=1, reference=1)
    status = VLLMServiceStatus(effective=Effective(replicas=2), gpu_steps=(last,))
    found = accounted(status, inputs=inputs_with(Effective(replicas=1)), ended=None).gpu_steps
    assert found[-1].at == last.at


@pytest.mark.parametrize(
    ("effective", "accelerator", "gpus"),
    [
        pytest.param(Effective(replicas=3, tensor_parallel_size=2), Accelerator(), 6, id="replicas by GPUs of each"),
        pytest.param(Effective(replicas=3), Accelerator(), 3, id="one GPU each is the default"),
        pytest.param(Effective(replicas=3), None, None, id="no accelerator: not known"),
        pytest.param(Effective(), Accelerator(), None, id="an autoscaler sets the replicas"),
        pytest.param(None, Accelerator(), None, id="nothing runs yet"),
    ],
)
def test_gpus_are_what_is_asked_for(
    effective: Effective | None, accelerator: Accelerator | None, gpus: int | None
) -> None:
    assert gpus_asked_for(effective, accelerator) == gpus
