"""The real vLLM in a pod of the bed: it is what the simulated engine and the parsers claim it to be.

Runs only where it is installed (`python -m e2e.real_engine_command install`); an engine needs half a minute to start,
or four on a machine that has other work.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.bed import DEFAULT_IMAGES, Bed
from e2e.operator_account import vllm_service
from e2e.real_engine import RealEngine, image_row
from e2e.stage import ENGINE_IMAGE, MODEL, condition, engine_env, plain_client, until
from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.engine.flags import parse_effective
from vllm_autotuner.engine.startup_log import StartupReason, parse_startup_failure
from vllm_autotuner.workload.rendering import render_deployment

pytestmark = pytest.mark.vllm

START_SECONDS: Final = 400.0
SMALL_POOL: Final = f"{ENGINE_IMAGE}-small-pool"
"""An image whose engine has four KV blocks of 128 tokens, of which it keeps one: that of a GPU with little memory."""
RECORDED: Final = Path(__file__).parent.parent / "tests" / "data" / "vllm-0.32" / "metrics.txt"


@pytest.fixture(scope="module")
def node(real_engine: RealEngine, bed: Bed) -> Iterator[Bed]:
    """The bed, with the real engine behind vLLM's image. `real_engine` comes first: without one no bed is started."""
    row = dict(image_row(real_engine))
    small = {**row, "match": "-small-pool$", "append": [*row["append"], "--num-gpu-blocks-override", "4"]}  # type: ignore[misc]
    bed.set_images([small, row, *DEFAULT_IMAGES])
    yield bed
    bed.set_images(DEFAULT_IMAGES)


def deployment(namespace: str, **engine: Any) -> dict[str, Any]:
    """What the operator applies for a VLLMService with this engine."""
    raw = vllm_service(
        namespace,
        model={"name": MODEL, "servedName": "tiny"},
        engine={"image": ENGINE_IMAGE} | engine,
        podTemplate=engine_env(),
        deletionPolicy="Retain",  # no owner: there is no such VLLMService, and garbage collection would notice
    )
    raw["metadata"]["uid"] = "u-1"
    service = parse_service(raw)
    assert isinstance(service, VLLMService), service
    assert service.spec.engine is not None
    return render_deployment(service, service.spec.engine.knobs, 1)


async def the_pod(bed: Bed, namespace: str, *, what: str, seconds: float) -> dict[str, Any]:
    """Wait until the engine's container is `ready`, or has `ended` once, and return the pod."""

    def reached() -> dict[str, Any] | None:
        pods = json.loads(bed.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"]
        for pod in pods:
            if what == "ready" and condition(pod["status"], "Ready") == "True":
                return dict(pod)
            for container in pod["status"].get("containerStatuses", []):
                ended = [container[when].get("terminated") for when in ("state", "lastState") if container.get(when)]
                if any(ended):
                    assert what == "ended", f"the engine ended: {logs(bed, pod)[-3000:]}"
                    return dict(pod)
        return None

    found: dict[str, Any] = await until(f"a pod that is {what}", reached, seconds=seconds, every=1)
    return found


def logs(bed: Bed, pod: dict[str, Any]) -> str:
    """The whole log of the engine's first start."""
    restarts = pod["status"]["containerStatuses"][0]["restartCount"]
    previous = ["--previous"] if restarts else []
    return bed.kubectl("logs", "-n", pod["metadata"]["namespace"], pod["metadata"]["name"], *previous)


def series(page: str) -> dict[str, set[str]]:
    """Sample name -> its label sets, as they are written; vLLM's own only."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, labels in re.findall(r"^(vllm:\w+)(\{.*\})? \S+$", page, re.MULTILINE):
        found[name].add(labels)
    return dict(found)


async def test_a_rendered_deployment_starts_it_and_it_is_what_was_recorded(node: Bed, namespace: str) -> None:
    # The length of the recording: the edges of the histograms over tokens end there.
    node.apply([deployment(namespace, maxNumSeqs=3, maxModelLen=2048)])
    pod = await the_pod(node, namespace, what="ready", seconds=START_SECONDS)

    effective = parse_effective(logs(node, pod))
    assert effective is not None
    assert (effective.max_num_seqs, effective.max_model_len, effective.served_model_name) == (3, 2048, "tiny")

    async with plain_client(f"http://{pod['status']['podIP']}:8000") as client:
        page = (await client.get("/metrics")).text
        assert series(page) == series(RECORDED.read_text(encoding="utf-8"))
        body = {"model": "tiny", "prompt": [11, 12, 13], "max_tokens": 7, "ignore_eos": True}
        answer = await client.post("/v1/completions", json=body, timeout=60)
        assert answer.json()["usage"] == answer.json()["usage"] | {"prompt_tokens": 3, "completion_tokens": 7}
        page = (await client.get("/metrics")).text
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 7.0' in page


@pytest.mark.parametrize(
    ("engine_spec", "reason", "suggested"),
    [
        ({"tensorParallelSize": 3}, StartupReason.HEADS_NOT_DIVISIBLE, None),
        ({"maxModelLen": 100_000}, StartupReason.LENGTH_OVER_MODEL, 8192),
        ({"image": SMALL_POOL, "maxModelLen": 2048}, StartupReason.INSUFFICIENT_KV_CACHE, 384),
    ],
    ids=["heads do not divide by three", "longer than the model was made for", "one request does not fit the KV cache"],
)
async def test_a_start_that_fails_is_understood(
    node: Bed, namespace: str, engine_spec: dict[str, Any], reason: StartupReason, suggested: int | None
) -> None:
    node.apply([deployment(namespace, **engine_spec)])
    pod = await the_pod(node, namespace, what="ended", seconds=START_SECONDS)
    failure = parse_startup_failure(logs(node, pod))
    assert failure is not None
    assert (failure.reason, failure.suggested_max_model_len) == (reason, suggested)
