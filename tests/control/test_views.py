"""Reading objects: complete ones, young ones that no controller has touched, and failing ones."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.control.objects import deployment_object, pod_object, service_object

from vllm_autotuner.api.service import InvalidService
from vllm_autotuner.cluster.bounded_json import OBJECT_TOO_LARGE
from vllm_autotuner.control.read.views import (
    DeploymentView,
    PodView,
    Progressing,
    Termination,
    deployment_view,
    pod_view,
    service_entry,
)
from vllm_autotuner.workload.labels import HASH_VERSION


def at(minute: int, second: int = 0) -> datetime:
    return datetime(2026, 11, 20, 12, minute, second, tzinfo=UTC)


QUOTA = 'pods "chat-77b-x" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=4, limited: pods=4'


def bare(kind: str) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"namespace": "prod", "name": "chat"}}


def test_a_complete_deployment() -> None:
    assert deployment_view(deployment_object()) == DeploymentView(
        namespace="prod",
        name="chat",
        uid="d1",
        service="chat",
        owner_uid="u1",
        resource_version="20",
        generation=1,
        observed_generation=1,
        replicas=2,
        current_replicas=2,
        ready_replicas=2,
        updated_replicas=2,
        available=2,
        unavailable=0,
        config_hash="abc",
        hash_version=1,
        metadata_hash=None,
        progressing=Progressing(status="True", reason="NewReplicaSetAvailable", message="m"),
        deleting=False,
    )


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        pytest.param("True", "FailedCreate", QUOTA, id="no pod more"),
        pytest.param("True", "FailedDelete", "", id="no pod less"),
        pytest.param("False", "FailedCreate", "", id="over"),
    ],
)
def test_why_a_deployment_gets_no_pod(status: str, reason: str, expected: str) -> None:
    condition = {"type": "ReplicaFailure", "status": status, "reason": reason, "message": QUOTA}
    assert deployment_view(deployment_object(conditions=[condition])).not_created == expected


def test_a_deployment_that_no_controller_has_seen_yet() -> None:
    view = deployment_view(bare("Deployment") | {"status": None, "spec": {"replicas": 0}})
    assert (view.replicas, view.current_replicas, view.observed_generation) == (0, 0, 0)
    assert (view.config_hash, view.progressing, view.owner_uid, view.service) == (None, None, None, "")


def test_a_complete_pod() -> None:
    assert pod_view(pod_object()) == PodView(
        namespace="prod",
        name="chat-77b-x",
        uid="p1",
        service="chat",
        phase="Running",
        ready=True,
        ready_since=at(1),
        created=at(0),
        deleting=False,
        pod_template_hash="77b",
        config_hash="abc",
        args=("--model", "example/tiny", "--max-num-seqs", "8"),
        restarts=1,
        waiting_reason=None,
        unschedulable=None,
        last_termination=Termination(
            exit_code=1, reason="Error", message="ValueError: no KV cache", finished_at=at(0, 20)
        ),
        container_started_at=at(0, 30),
    )


def test_a_pod_that_no_kubelet_has_seen_yet() -> None:
    view = pod_view(bare("Pod"))
    assert (view.phase, view.ready, view.ready_since, view.created) == ("", False, None, None)
    assert (view.args, view.restarts, view.waiting_reason, view.last_termination) == ((), 0, None, None)


@pytest.mark.parametrize(
    ("status", "field", "expected"),
    [
        pytest.param(
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: gpu"}
                ]
            },
            "unschedulable",
            "0/1 nodes: gpu",
            id="no node fits",
        ),
        pytest.param(
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]},
            "unschedulable",
            "SchedulingGated",
            id="no node may take it while a gate is closed",
        ),
        pytest.param(
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": "m"}]},
            "unschedulable",
            None,
            id="the scheduler tries again",
        ),
        pytest.param(
            {"containerStatuses": [{"name": "vllm", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
            "waiting_reason",
            "CrashLoopBackOff",
            id="the engine crashes",
        ),
        pytest.param(
            {"containerStatuses": [{"name": "vllm", "state": {"waiting": {"reason": "ContainerCreating"}}}]},
            "waiting_reason",
            None,
            id="a start like any other",
        ),
        pytest.param(
            {
                "initContainerStatuses": [{"name": "fetch", "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
                "containerStatuses": [{"name": "vllm", "state": {"waiting": {"reason": "PodInitializing"}}}],
            },
            "waiting_reason",
            "ImagePullBackOff",
            id="an init container is what fails",
        ),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-20T12:05:00Z"}]},
            "ready_since",
            None,
            id="not ready has no since",
        ),
        pytest.param(
            {
                "containerStatuses": [
                    {"name": "vllm", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
                ]
            },
            "last_termination",
            Termination(exit_code=137, reason="OOMKilled", message="", finished_at=None),
            id="the end itself, before any restart",
        ),
    ],
)
def test_what_is_wrong_with_a_pod(status: dict[str, Any], field: str, expected: object) -> None:
    assert getattr(pod_view(pod_object(**status)), field) == expected


def test_being_deleted_is_seen() -> None:
    body = pod_object()
    body["metadata"]["deletionTimestamp"] = "2026-11-20T12:09:00Z"
    assert pod_view(body).deleting


def test_of_a_refused_pod_template_only_the_reason_is_kept() -> None:
    body = service_object(podTemplate={"spec": {"x": "y" * 100_000}})
    entry = service_entry(body)
    assert entry.body["spec"]["podTemplate"].startswith("larger than 64 KiB")
    assert isinstance(entry.service, InvalidService)
    assert entry.service.message.startswith("spec.podTemplate: larger than 64 KiB of JSON")
    assert body["spec"]["podTemplate"] == {"spec": {"x": "y" * 100_000}}, "whose object it is, nobody else changes"


def test_an_object_that_is_too_large_is_refused() -> None:
    entry = service_entry({**service_object(), "spec": OBJECT_TOO_LARGE})
    assert isinstance(entry.service, InvalidService)
    assert entry.service.message == "spec: the object is larger than 256 KiB of JSON; shorten it"
    assert entry.service.status is not None, "a change in progress is rolled back"
    for view, body in ((deployment_view, deployment_object()), (pod_view, pod_object("chat-0"))):
        with pytest.raises(ValueError, match="larger than 256 KiB"):
            view({**body, "spec": OBJECT_TOO_LARGE})


def test_an_annotation_of_thousands_of_digits_is_no_number() -> None:
    body = deployment_object()
    body["metadata"]["annotations"][HASH_VERSION] = "9" * 5000
    assert deployment_view(body).hash_version is None
    body["metadata"]["annotations"][HASH_VERSION] = "2"
    assert deployment_view(body).hash_version == 2
