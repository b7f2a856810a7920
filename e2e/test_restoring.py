"""The way back of a change whose spec cannot be read, on a real API server: written over the live Deployment.

A spec that the operator cannot read does not get past this API server, so here the write itself is shown: the pod
template is the former one to the letter, and the next apply finds nothing that somebody else has taken.
"""

import copy
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.workload.services import COMPLETE

from e2e.bed import Bed
from e2e.operator_account import install, vllm_service
from e2e.stage import until
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.api.status import ConfigRef
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.client import connect
from vllm_autotuner.cluster.errors import Conflict, Refused
from vllm_autotuner.cluster.kinds import DEPLOYMENT
from vllm_autotuner.cluster.throttle import Throttle, ThrottleSettings
from vllm_autotuner.control.read.interference import interference_of
from vllm_autotuner.control.read.views import deployment_view
from vllm_autotuner.workload.engine_container import SHARED_MEMORY_MOUNT, SHARED_MEMORY_VOLUME
from vllm_autotuner.workload.hashing import config_hash
from vllm_autotuner.workload.rendering import render_deployment
from vllm_autotuner.workload.restoring import restored

OLD = EngineKnobs(max_num_seqs=64, tensor_parallel_size=2)
KNOBS = {
    "seats": EngineKnobs(max_num_seqs=128, tensor_parallel_size=2),
    "kv cache": EngineKnobs(max_num_seqs=64, kv_cache_dtype="fp8", tensor_parallel_size=2),
    "devices": EngineKnobs(max_num_seqs=64, tensor_parallel_size=1),
}


@pytest.fixture
async def cluster(bed: Bed) -> AsyncIterator[Cluster]:
    kubeconfig: Path = install(bed)
    async with connect(kubeconfig) as connection:
        throttle = Throttle(ThrottleSettings(), monotonic=time.monotonic)
        yield Cluster(connection, throttle=throttle, instance="test_1")


@pytest.fixture
async def service(bed: Bed, cluster: Cluster, namespace: str) -> VLLMService:
    bed.apply([vllm_service(namespace, **COMPLETE)])
    found = parse_service(await cluster.read_service(namespace, "chat"))
    assert isinstance(found, VLLMService)
    return found


def asked(service: VLLMService, knobs: EngineKnobs) -> tuple[dict[str, Any], ConfigRef]:
    """The Deployment with these knobs and no pods, and its name in a status."""
    body = render_deployment(service, knobs, 0)
    return body, ConfigRef(**knobs.model_dump(), config_hash=config_hash(body))


async def put_back(
    cluster: Cluster, live: dict[str, Any], service: VLLMService, *, tried: EngineKnobs
) -> dict[str, Any]:
    patch = restored(live, to=asked(service, tried)[1], back=asked(service, OLD)[1])
    return await cluster.patch_child(
        live, patch, service_name=service.metadata.name, service_uid=service.metadata.uid, epoch=3
    )


async def seen(cluster: Cluster, service: VLLMService) -> dict[str, Any]:
    """The Deployment once the controller has told of it: until then it writes the status at any moment."""
    live = await cluster.read(DEPLOYMENT, namespace=service.metadata.namespace, name="chat")
    return live if live["status"].get("observedGeneration") == live["metadata"]["generation"] else {}


@pytest.mark.parametrize("tried", KNOBS.values(), ids=KNOBS.keys())
async def test_restored_it_is_the_former_template_and_still_all_ours(
    cluster: Cluster, service: VLLMService, tried: EngineKnobs
) -> None:
    body, _ = asked(service, OLD)
    first = await cluster.apply(body, epoch=1)
    await cluster.apply(asked(service, tried)[0], epoch=3)
    second = await until("the controller has seen it", partial(seen, cluster, service), seconds=120)
    assert second["spec"]["template"] != first["spec"]["template"]
    back = await put_back(cluster, second, service, tried=tried)
    assert back["spec"] == first["spec"]
    assert interference_of(deployment_view(back), body) is None
    again = await cluster.apply(body, epoch=3)
    assert again["spec"] == back["spec"]
    assert again["metadata"]["generation"] == back["metadata"]["generation"], "the spec's own apply changed something"
    other = await cluster.apply(asked(service, tried)[0], epoch=5)
    assert pods_of(other) == pods_of(second), "a field could not be changed any more"


def pods_of(deployment: dict[str, Any]) -> dict[str, Any]:
    """The pod template without shared memory: written back as an update, no apply of ours takes it away again."""
    template: dict[str, Any] = copy.deepcopy(deployment["spec"]["template"])
    (container,) = template["spec"]["containers"]
    for holder, key, ours in (
        (template["spec"], "volumes", SHARED_MEMORY_VOLUME),
        (container, "volumeMounts", SHARED_MEMORY_MOUNT),
    ):
        holder[key] = [each for each in holder.get(key, []) if each["name"] != ours["name"]]
    return template


async def test_what_somebody_wrote_meanwhile_is_not_overwritten(
    bed: Bed, cluster: Cluster, service: VLLMService
) -> None:
    tried = KNOBS["seats"]
    live = await cluster.apply(asked(service, tried)[0], epoch=1)
    bed.kubectl("annotate", "deployment", "chat", f"--namespace={service.metadata.namespace}", "someone=else")
    with pytest.raises(Conflict):
        await put_back(cluster, live, service, tried=tried)


async def test_a_deployment_of_somebody_else_is_left_alone(cluster: Cluster, service: VLLMService) -> None:
    tried = KNOBS["seats"]
    live = await cluster.apply(asked(service, tried)[0], epoch=1)
    theirs = live | {"metadata": live["metadata"] | {"labels": {}, "ownerReferences": []}}
    with pytest.raises(Refused):
        await put_back(cluster, theirs, service, tried=tried)
    now = await cluster.read(DEPLOYMENT, namespace=service.metadata.namespace, name="chat")
    assert now["spec"] == live["spec"]
