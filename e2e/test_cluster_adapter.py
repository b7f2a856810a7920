"""The adapter's promises on a real API server, with the rights of the chart and no others."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from e2e.bed import Bed
from e2e.control_plane import write_kubeconfig
from e2e.operator_account import install, vllm_service
from e2e.ports import free_ports
from e2e.processes import PATIENCE
from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.cluster import adapter
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.client import Connection, connect
from vllm_autotuner.cluster.errors import Conflict, NotFound, Refused, Unavailable
from vllm_autotuner.cluster.events import Event
from vllm_autotuner.cluster.kinds import DEPLOYMENT, LEASE, VLLM_SERVICE, Kind
from vllm_autotuner.cluster.lease import Election, LeaseSettings
from vllm_autotuner.cluster.throttle import Throttle, ThrottleSettings
from vllm_autotuner.control.read.free_gpus import FreeGpuLookup
from vllm_autotuner.workload.labels import LEASE_EPOCH, MANAGED_BY, MANAGED_SELECTOR, OPERATOR, SERVICE

NOW = datetime(2026, 11, 20, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture(scope="session")
def kubeconfig(bed: Bed) -> Path:
    return install(bed)


@pytest.fixture
async def connection(kubeconfig: Path) -> AsyncIterator[Connection]:
    async with connect(kubeconfig) as connection:
        yield connection


@pytest.fixture
def cluster(connection: Connection) -> Cluster:
    return cluster_on(connection)


def cluster_on(connection: Connection, **options: Any) -> Cluster:
    throttle = Throttle(ThrottleSettings(), monotonic=time.monotonic)
    return Cluster(connection, throttle=throttle, instance="test_1", **options)


@pytest.fixture
async def service(bed: Bed, cluster: Cluster, namespace: str) -> dict[str, Any]:
    """A VLLMService, as the API server has it."""
    bed.apply([vllm_service(namespace)])
    return await cluster.read_service(namespace, "chat")


def child(service: dict[str, Any], *, name: str = "chat", image: str = "python:3", **spec: Any) -> dict[str, Any]:
    """A Deployment of this service, asking for no pods."""
    metadata = service["metadata"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {MANAGED_BY: OPERATOR, SERVICE: metadata["name"]},
            "ownerReferences": [
                {
                    "apiVersion": service["apiVersion"],
                    "kind": service["kind"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "vllm", "image": image}]},
            },
        }
        | spec,
    }


STATUS = {"observedGeneration": 1, "replicas": 3, "cooldownUntil": "2026-11-20T12:00:00Z"}


async def test_a_status_is_replaced_whole_and_the_spec_is_left_alone(cluster: Cluster, service: dict[str, Any]) -> None:
    namespace = service["metadata"]["namespace"]
    first = await cluster.write_status(
        namespace, "chat", STATUS, resource_version=service["metadata"]["resourceVersion"]
    )
    assert first["status"] == STATUS
    second = await cluster.write_status(
        namespace, "chat", {"observedGeneration": 1}, resource_version=first["metadata"]["resourceVersion"]
    )
    live = await cluster.read_service(namespace, "chat")
    assert live["status"] == second["status"] == {"observedGeneration": 1}, "a field that was left out survived"
    assert live["spec"] == service["spec"]
    assert live["metadata"]["generation"] == service["metadata"]["generation"]


async def test_a_status_from_a_stale_read_is_a_conflict(bed: Bed, cluster: Cluster, service: dict[str, Any]) -> None:
    namespace, version = service["metadata"]["namespace"], service["metadata"]["resourceVersion"]
    bed.kubectl("annotate", "vllmservice", "chat", f"--namespace={namespace}", "someone=else")
    with pytest.raises(Conflict) as caught:
        await cluster.write_status(namespace, "chat", STATUS, resource_version=version)
    assert caught.value.status == 409
    assert "status" not in await cluster.read_service(namespace, "chat")


async def test_a_status_never_reaches_a_successor_of_the_same_name(
    bed: Bed, cluster: Cluster, service: dict[str, Any]
) -> None:
    namespace, version = service["metadata"]["namespace"], service["metadata"]["resourceVersion"]
    bed.kubectl("delete", "vllmservice", "chat", f"--namespace={namespace}")
    with pytest.raises(NotFound):
        await cluster.write_status(namespace, "chat", STATUS, resource_version=version)
    bed.apply([vllm_service(namespace)])
    with pytest.raises(Conflict):
        await cluster.write_status(namespace, "chat", STATUS, resource_version=version)


async def test_an_apply_creates_then_updates_what_it_left_out_before(cluster: Cluster, service: dict[str, Any]) -> None:
    created = await cluster.apply(child(service, minReadySeconds=5), epoch=7)
    assert created["metadata"]["annotations"][LEASE_EPOCH] == "7"
    assert LEASE_EPOCH not in json.dumps(created["spec"]), "a new leader would roll the fleet"
    updated = await cluster.apply(child(service), epoch=8)
    assert "minReadySeconds" not in updated["spec"]
    assert updated["metadata"]["annotations"][LEASE_EPOCH] == "8"


async def test_the_same_apply_again_writes_nothing(cluster: Cluster, service: dict[str, Any]) -> None:
    # A Service, because no controller writes to it meanwhile.
    body = child(service) | {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}}
    created = await cluster.apply(body, epoch=7)
    again = await cluster.apply(body, epoch=7)
    assert again["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_an_apply_takes_back_a_field_that_somebody_changed(
    bed: Bed, cluster: Cluster, service: dict[str, Any]
) -> None:
    namespace = service["metadata"]["namespace"]
    await cluster.apply(child(service), epoch=7)
    bed.kubectl("set", "image", "deployment/chat", "vllm=other:1", f"--namespace={namespace}")
    updated = await cluster.apply(child(service), epoch=7)
    assert updated["spec"]["template"]["spec"]["containers"][0]["image"] == "python:3"


async def test_an_apply_never_forces_itself_onto_another_owner(
    bed: Bed, cluster: Cluster, service: dict[str, Any]
) -> None:
    theirs = child(service, image="theirs:1")
    theirs["metadata"] = {"name": "chat", "namespace": service["metadata"]["namespace"], "labels": {MANAGED_BY: "Helm"}}
    bed.apply([theirs])
    before = await cluster.read(DEPLOYMENT, namespace=service["metadata"]["namespace"], name="chat")
    with pytest.raises(Refused, match="managed by Helm and kubectl") as caught:
        await cluster.apply(child(service), epoch=7)
    assert caught.value.reason == "NotOwned"
    after = await cluster.read(DEPLOYMENT, namespace=service["metadata"]["namespace"], name="chat")
    assert after["spec"] == before["spec"]
    for part in ("labels", "ownerReferences"):
        assert after["metadata"].get(part) == before["metadata"].get(part)
    # The Deployment controller adds its revision in its own time.
    revision = "deployment.kubernetes.io/revision"
    notes = [each["metadata"].get("annotations", {}) for each in (before, after)]
    assert {**notes[0], revision: "1"} == {**notes[1], revision: "1"}


async def test_an_apply_of_a_deposed_leader_is_a_conflict(cluster: Cluster, service: dict[str, Any]) -> None:
    await cluster.apply(child(service), epoch=8)
    with pytest.raises(Conflict) as caught:
        await cluster.apply(child(service, image="old:1"), epoch=7)
    assert caught.value.reason == "NewerEpoch"


class ReadsThePast:
    """A connection whose reads answer with an object that is no longer there."""

    def __init__(self, connection: Connection, past: dict[str, Any] | None) -> None:
        self._connection = connection
        self._past = past

    async def request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        if method != "GET":
            return await self._connection.request(method, path, **options)
        if self._past is None:
            raise NotFound("not there yet", reason="NotFound", status=404)
        return self._past


async def test_an_apply_misses_an_object_that_was_recreated_in_between(
    bed: Bed, cluster: Cluster, connection: Connection, service: dict[str, Any]
) -> None:
    namespace = service["metadata"]["namespace"]
    ours = await cluster.apply(child(service), epoch=7)
    bed.kubectl("delete", "deployment", "chat", f"--namespace={namespace}", "--cascade=orphan")
    foreign = child(service, image="theirs:1")
    foreign["metadata"] = {"name": "chat", "namespace": namespace}
    bed.apply([foreign])
    with pytest.raises(Conflict):
        await cluster_on(ReadsThePast(connection, ours)).apply(child(service), epoch=7)  # type: ignore[arg-type]
    live = await cluster.read(DEPLOYMENT, namespace=namespace, name="chat")
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "theirs:1"


async def test_an_apply_does_not_force_when_somebody_created_the_name_first(
    bed: Bed, cluster: Cluster, connection: Connection, service: dict[str, Any]
) -> None:
    namespace = service["metadata"]["namespace"]
    foreign = child(service, image="theirs:1")
    foreign["metadata"] = {"name": "chat", "namespace": namespace}
    bed.apply([foreign])
    with pytest.raises(Conflict):
        await cluster_on(ReadsThePast(connection, None)).apply(child(service), epoch=7)  # type: ignore[arg-type]
    live = await cluster.read(DEPLOYMENT, namespace=namespace, name="chat")
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "theirs:1"


async def test_an_event_is_posted_exactly_once(bed: Bed, cluster: Cluster, service: dict[str, Any]) -> None:
    namespace = service["metadata"]["namespace"]
    happened = Event(reason="RolledBack", note="TPOT got worse", action="Rollback", transition="c1", warning=True)
    for _ in range(3):
        await cluster.post_event(service, happened, now=NOW)
    found = json.loads(bed.kubectl("get", "events.events.k8s.io", f"--namespace={namespace}", "-o", "json"))["items"]
    assert [(each["reason"], each["note"], each["type"]) for each in found] == [
        ("RolledBack", "TPOT got worse", "Warning")
    ]
    assert "TPOT got worse" in bed.kubectl("describe", "vllmservice", "chat", f"--namespace={namespace}")


async def test_a_write_after_losing_the_lead_is_not_sent(connection: Connection, service: dict[str, Any]) -> None:
    outcomes: list[tuple[str, str, str]] = []
    follower = cluster_on(connection, may_write=lambda: False, observe=lambda *seen: outcomes.append(seen))
    with pytest.raises(Unavailable) as caught:
        await follower.apply(child(service), epoch=7)
    assert caught.value.reason == "NotLeader"
    with pytest.raises(NotFound):
        await follower.read(DEPLOYMENT, namespace=service["metadata"]["namespace"], name="chat")


async def test_lists_come_in_pages_of_one_moment(
    bed: Bed, cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "PAGE_SIZE", 2)
    bed.apply([vllm_service(namespace, f"chat-{number}") for number in range(5)])
    pages = [page async for page in cluster.pages(VLLM_SERVICE, namespace=namespace)]
    assert [len(page.objects) for page in pages] == [2, 2, 1]
    assert len({page.resource_version for page in pages}) == 1
    assert all(each["kind"] == "VLLMService" and "spec" in each for page in pages for each in page.objects)
    listed = cluster.pages(VLLM_SERVICE, namespace=namespace, metadata_only=True)
    objects = [each async for page in listed for each in page.objects]
    assert {each["metadata"]["name"] for each in objects} == {f"chat-{number}" for number in range(5)}
    assert not any("spec" in each for each in objects), "metadata was asked for"


async def test_selectors_keep_other_peoples_objects_out(bed: Bed, cluster: Cluster, service: dict[str, Any]) -> None:
    namespace = service["metadata"]["namespace"]
    foreign = child(service, name="theirs")
    foreign["metadata"] = {"name": "theirs", "namespace": namespace}
    bed.apply([foreign])
    await cluster.apply(child(service), epoch=7)
    pages = cluster.pages(DEPLOYMENT, namespace=namespace, selector=MANAGED_SELECTOR)
    assert [each["metadata"]["name"] async for page in pages for each in page.objects] == ["chat"]


async def test_free_gpus_are_what_the_scheduler_would_count(bed: Bed, cluster: Cluster, namespace: str) -> None:
    """Under the chart's rights: nodes, the pods on them that have not ended, and what a quota leaves."""
    gpus, label = "nvidia.com/gpu", "nvidia.com/gpu.product"
    nodes = {"gpus-1": 8, "gpus-2": 2}
    try:
        for name, count in nodes.items():
            labels = {label: "NVIDIA-H100-80GB-HBM3", "pool": "gpus"}
            taint = {"key": gpus, "value": "present", "effect": "NoSchedule"}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
            bed.apply([node | {"spec": {"taints": [taint]}}])
            resources = {"cpu": "8", "memory": "64Gi", "pods": "10", gpus: str(count)}
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": None, "lastTransitionTime": None}
            status = {"status": {"capacity": resources, "allocatable": resources, "conditions": [ready]}}
            bed.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
            # The controllers that look after nodes taint new ones until somebody has seen them ready.
            spec = {"spec": {"taints": [taint]}}
            bed.kubectl("patch", "node", name, "--type=merge", "-p", json.dumps(spec))
        quota = {"spec": {"hard": {f"requests.{gpus}": "7"}}, "metadata": {"name": "gpus", "namespace": namespace}}
        bed.apply([quota | {"apiVersion": "v1", "kind": "ResourceQuota"}])
        bed.kubectl(
            "wait", "-n", namespace, "resourcequota/gpus", "--for=jsonpath={.status.hard}", f"--timeout={PATIENCE:.0f}s"
        )
        bed.apply([_gpu_pod(namespace, "chat-0", "gpus-1", 2), _gpu_pod(namespace, "other", "gpus-1", 3)])
        ended = {"status": {"phase": "Succeeded"}}
        bed.apply([_gpu_pod(namespace, "done", "gpus-2", 1)])
        bed.kubectl(
            "patch", "pod", "done", "-n", namespace, "--subresource=status", "--type=merge", "-p", json.dumps(ended)
        )
        service = parse_service(vllm_service(namespace))
        assert isinstance(service, VLLMService)
        free_gpu_lookup = FreeGpuLookup(cluster, enabled=True, monotonic=time.monotonic, beat=lambda: None)
        await free_gpu_lookup.look(NOW)
        free_gpus = free_gpu_lookup.of(service, ["chat-0"], now=NOW)
        assert free_gpus is not None
        assert (free_gpus.free, free_gpus.vacated, free_gpus.largest_node, free_gpus.devices) == ((3, 2), (5, 2), 8, 2)
        assert free_gpus.product == "NVIDIA-H100-80GB-HBM3"
        assert free_gpus.quota is not None
        assert 1 <= free_gpus.quota <= 2, "the ended pod counts until the quota's controller has seen its end"
    finally:
        bed.kubectl("delete", "node", *nodes, "--ignore-not-found", "--wait=false")


def _gpu_pod(namespace: str, name: str, node: str, devices: int) -> dict[str, Any]:
    """A pod on a node that no kubelet looks after: it stays as it is written."""
    engine = {"name": "vllm", "image": "python:3", "resources": {"limits": {"nvidia.com/gpu": str(devices)}}}
    spec = {
        "nodeName": node,
        "nodeSelector": {"pool": "gpus"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [engine],
    }
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def test_a_persons_annotations_are_set_and_removed(bed: Bed, service: dict[str, Any]) -> None:
    # As a person's command does it; the operator itself has no right to change a VLLMService.
    async with connect(bed.admin_kubeconfig) as connection:
        cluster, namespace = cluster_on(connection), service["metadata"]["namespace"]
        paused = await cluster.annotate_service(namespace, "chat", {"vllm-autotuner.dev/paused": "true"})
        assert paused["metadata"]["annotations"]["vllm-autotuner.dev/paused"] == "true"
        resumed = await cluster.annotate_service(namespace, "chat", {"vllm-autotuner.dev/paused": None})
        assert "vllm-autotuner.dev/paused" not in resumed["metadata"].get("annotations", {})
        assert resumed["metadata"]["generation"] == service["metadata"]["generation"]


async def test_the_crd_is_found(cluster: Cluster) -> None:
    assert await cluster.serves_crd()


async def test_what_the_account_may_not_do_is_refused_with_the_rule_that_is_missing(
    cluster: Cluster, namespace: str
) -> None:
    secrets = Kind(api_version="v1", kind="Secret", plural="secrets")
    with pytest.raises(Refused, match="cannot get resource") as caught:
        await cluster.read(secrets, namespace=namespace, name="token")
    assert (caught.value.status, caught.value.reason) == (403, "Forbidden")


async def test_an_invalid_child_is_refused_with_the_servers_words(cluster: Cluster, service: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="selector"):
        await cluster.apply(child(service, selector={"matchLabels": {"app": "x"}}), epoch=7)


def restarts_of(pod: dict[str, Any]) -> int:
    return sum(int(each["restartCount"]) for each in pod["status"].get("containerStatuses") or [])


PRINTS_AND_FAILS = "for number in range(3000): print(f'line {number:04d}')\nraise SystemExit(3)"


async def test_a_log_is_read_from_either_end_also_of_the_instance_before(
    bed: Bed, cluster: Cluster, namespace: str
) -> None:
    container = {"name": "vllm", "image": "python:3", "args": ["-c", PRINTS_AND_FAILS]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "engine", "namespace": namespace}}
    bed.apply([pod | {"spec": {"containers": [container]}}])
    deadline = time.monotonic() + PATIENCE
    while restarts_of(live := json.loads(bed.kubectl("-n", namespace, "get", "pod", "engine", "-o", "json"))) < 1:
        assert time.monotonic() < deadline, live["status"]
        await asyncio.sleep(0.2)
    head = await cluster.pod_log(namespace, "engine", "vllm", previous=True, head_bytes=20)
    tail = await cluster.pod_log(namespace, "engine", "vllm", previous=True, tail_bytes=20)
    assert head == "line 0000\nline 0001\n"
    assert tail == "line 2998\nline 2999\n"
    with pytest.raises(NotFound):
        await cluster.pod_log(namespace, "engine", "sidecar", tail_bytes=20)


async def test_a_log_that_is_not_there_is_not_found(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(NotFound):
        await cluster.pod_log(namespace, "nobody", "vllm", tail_bytes=100)


async def test_a_server_that_is_not_there_is_unavailable(bed: Bed, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    write_kubeconfig(
        tmp_path / "kubeconfig", server=f"https://127.0.0.1:{port}", ca_file=bed.ca_file, token="irrelevant"
    )
    async with connect(tmp_path / "kubeconfig") as connection:
        with pytest.raises(Unavailable):
            await cluster_on(connection).serves_crd()


async def test_a_token_that_is_not_accepted_is_waited_for(bed: Bed, tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "kubeconfig", server=bed.api_url, ca_file=bed.ca_file, token="expired")
    async with connect(tmp_path / "kubeconfig") as connection:
        with pytest.raises(Unavailable) as caught:
            await cluster_on(connection).serves_crd()
    assert caught.value.status == 401


async def test_a_lease_changes_hands_on_release_and_on_silence(
    bed: Bed, connection: Connection, kubeconfig: Path, namespace: str
) -> None:
    # Short enough to wait for, and longer than a busy machine takes for a step.
    settings = LeaseSettings(lease_duration=12, renew_deadline=10, retry_period=0.2, request_timeout=8)

    def contender(name: str) -> Election:
        return Election(
            connection,
            namespace=namespace,
            name="tuner",
            identity=name,
            settings=settings,
            monotonic=time.monotonic,
            # Slowly: an epoch is as late as its leadership, and here they are to follow each other by one.
            wall=lambda: NOW + timedelta(milliseconds=time.monotonic()),
        )

    first, second, third = contender("a"), contender("b"), contender("c")
    stop = asyncio.Event()
    leading = asyncio.create_task(first.run(stop))
    async with asyncio.timeout(PATIENCE):
        await first.leading.wait()
        epoch = first.epoch
        await second.step()
        assert not second.is_leader
        stop.set()
        await leading
        await second.step()
        assert second.is_leader, "a released lease is free at once"
        assert second.epoch == epoch + 1
        while not third.is_leader:  # `second` is silent from here on, as if it had crashed
            assert not (second.is_leader and third.is_leader)
            await third.step()
            await asyncio.sleep(0.05)
    assert not second.is_leader
    assert third.epoch == epoch + 2
    lease = await connection.request("GET", LEASE.path(namespace, "tuner"))
    assert lease["spec"]["holderIdentity"] == "c"
