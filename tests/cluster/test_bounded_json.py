"""One object that is nested too deep or too large costs neither the list it is in, nor the watch, nor the memory."""

import asyncio
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from kopf._cogs.clients.api import iter_jsonlines
from tests.cluster.test_client import kubeconfig

from vllm_autotuner.api.pod_template import TOO_DEEP, TOO_LARGE, refusal
from vllm_autotuner.budgets import (
    JSON_DEPTH,
    MANAGED_FIELDS_BYTES,
    OBJECT_BYTES,
    POD_TEMPLATE_BYTES,
    POD_TEMPLATE_DEPTH,
)
from vllm_autotuner.cluster.adapter import PAGE_SIZE, Cluster
from vllm_autotuner.cluster.bounded_json import LARGE, bounded, decoded, is_cut
from vllm_autotuner.cluster.client import connect
from vllm_autotuner.cluster.kinds import VLLM_SERVICE
from vllm_autotuner.cluster.throttle import Throttle, ThrottleSettings


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def service(name: str, template: str = "{}", managed: str = "[]") -> str:
    metadata = f'{{"name":"{name}","namespace":"demo","managedFields":{managed}}}'
    return f'{{"metadata":{metadata},"spec":{{"podTemplate":{template},"replicas":1}},"status":{{"x":1}}}}'


def wide(size: int) -> str:
    return json.dumps({f"k{number}": {} for number in range(size // 12)})


@pytest.mark.parametrize("depth", [65, 190, 300, 3000, 9000])
async def test_what_is_too_deep_is_cut_and_its_neighbours_are_whole(depth: int) -> None:
    text = f'{{"items":[{service("one")},{service("deep", nested(depth))},{service("two")}]}}'
    found = await decoded(text.encode())
    one, deep, two = found["items"]
    assert one == json.loads(service("one"))
    assert two == json.loads(service("two"))
    assert deep["status"] == {"x": 1}
    assert refusal(deep["spec"]["podTemplate"]) == TOO_DEEP


async def test_what_is_too_large_is_named_and_its_neighbours_are_whole() -> None:
    large = service("large", wide(600_000), managed=json.dumps([{"fieldsV1": json.loads(wide(600_000))}]))
    found = await decoded(f'{{"items":[{service("one")},{large},{service("two")}]}}'.encode())
    assert found["items"][1]["spec"] == {"podTemplate": TOO_LARGE, "replicas": 1}
    assert found["items"][1]["metadata"]["managedFields"] == []
    assert [item["metadata"]["name"] for item in found["items"]] == ["one", "large", "two"]
    assert found["items"][2] == json.loads(service("two"))


async def test_a_page_of_large_objects_takes_little_memory() -> None:
    text = f'{{"items":[{",".join(service(f"s{number}", wide(200_000)) for number in range(5))}]}}'.encode()
    tracemalloc.start()
    found = await decoded(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found["items"]) == 5
    assert peak < 2 * len(text), "parsed, it is thirty times as large"


def test_a_usual_text_is_left_as_it_is() -> None:
    text = service("one", nested(20)).encode()
    assert bounded(text) is text


NAMES = st.sampled_from(["podTemplate", "managedFields", '"', "\\\\", "{", "]", ":"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=5) | NAMES, inside, max_size=4),
    max_leaves=20,
)


@given(JSON, st.booleans())
async def test_a_large_text_within_the_limits_reads_as_it_was_written(value: Any, escaped: bool) -> None:
    text = json.dumps([value, "x" * LARGE], ensure_ascii=escaped).encode()
    assert await decoded(text) == [value, "x" * LARGE]


@given(JSON, st.integers(min_value=0, max_value=200))
async def test_nothing_deeper_than_the_limit_is_read(value: Any, depth: int) -> None:
    text = f'[{"[" * depth}{json.dumps(value)}{"]" * depth}, "after", "{"x" * LARGE}"]'
    found = await decoded(text.encode())
    assert found[1] == "after"
    deepest, level = 0, [found]
    while level := [part for each in level for part in (each.values() if isinstance(each, dict) else each)]:
        level = [part for part in level if isinstance(part, dict | list)]
        deepest += 1
    assert deepest <= JSON_DEPTH.limit


async def test_a_list_and_a_watch_go_on_beside_a_poisoned_object(tmp_path: Path) -> None:
    poisoned = service("poisoned", nested(3000))
    events = [
        f'{{"type":"ADDED","object":{one}}}\n'
        for one in (service("before"), poisoned, service("large", wide(1_300_000)), service("after"))
    ]

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            items = ",".join([service("before"), poisoned, service("after")])
            return web.Response(text=f'{{"metadata":{{}},"items":[{items}]}}', content_type="application/json")
        stream = web.StreamResponse()
        await stream.prepare(request)
        for event in events:
            await stream.write(event.encode())
        return stream

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    throttle = Throttle(ThrottleSettings(), monotonic=asyncio.get_running_loop().time)
    try:
        async with connect(kubeconfig(tmp_path, server)) as connection:
            cluster = Cluster(connection, throttle=throttle, instance="x")
            pages = [page async for page in cluster.pages(VLLM_SERVICE)]
            assert [each["metadata"]["name"] for each in pages[0].objects] == ["before", "poisoned", "after"]
            async with connection.session() as session:
                async with session.get(f"{server}/list") as response:
                    assert len((await response.json())["items"]) == 3
                async with session.get(f"{server}/list?watch=true") as response:
                    # As kopf reads its watches.
                    seen = [json.loads(line) async for line in iter_jsonlines(response.content)]
        assert [each["object"]["metadata"]["name"] for each in seen] == ["before", "poisoned", "large", "after"]
        assert refusal(seen[1]["object"]["spec"]["podTemplate"]) == TOO_DEEP
        assert seen[2]["object"]["spec"]["podTemplate"] == TOO_LARGE
        assert seen[3]["object"] == json.loads(service("after"))
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("template", "why"),
    [
        pytest.param({}, "", id="empty"),
        pytest.param(None, "", id="absent"),
        pytest.param(json.loads(nested(POD_TEMPLATE_DEPTH.limit)), "", id="as deep as allowed"),
        pytest.param(json.loads(nested(POD_TEMPLATE_DEPTH.limit + 1)), TOO_DEEP, id="one level deeper"),
        pytest.param({"a": ["x" * POD_TEMPLATE_BYTES.limit]}, TOO_LARGE, id="too large"),
    ],
)
def test_a_pod_template_is_refused_with_the_reason(template: Any, why: str) -> None:
    assert refusal(template) == why


def workload(name: str, *, spec: str = "{}", labels: str = "{}", status: str = '{"readyReplicas":1}') -> str:
    metadata = f'{{"name":"{name}","namespace":"demo","uid":"u-{name}","labels":{labels},"managedFields":[{{"a":1}}]}}'
    return f'{{"metadata":{metadata},"spec":{spec},"status":{status}}}'


def volumes(size: int) -> str:
    each = [{"name": f"volume-{number:08}", "emptyDir": {}} for number in range(size // 45)]
    return json.dumps({"template": {"spec": {"volumes": each}}})


async def test_of_an_object_that_is_too_large_only_the_spec_is_lost() -> None:
    text = f'{{"items":[{workload("one")},{workload("large", spec=volumes(1_300_000))},{workload("two")}]}}'
    found = await decoded(text.encode())
    one, large, two = found["items"]
    assert (one, two) == (json.loads(workload("one")), json.loads(workload("two")))
    assert is_cut(large)
    assert (large["metadata"]["uid"], large["status"]) == ("u-large", {"readyReplicas": 1})
    assert not is_cut(one)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", "", id="alone"),
        pytest.param('{"type":"ADDED","object":', "}", id="in an event of a watch"),
        pytest.param('{"kind":"PodList","metadata":{},"items":[', "]}", id="in a list"),
        pytest.param('{"items":[', '],"kind":"VLLMServiceList","metadata":{}}', id="in a list of custom objects"),
    ],
)
@pytest.mark.parametrize(
    "full",
    [
        pytest.param({"spec": volumes(1_300_000)}, id="of volumes"),
        pytest.param({"labels": wide(1_300_000)}, id="of labels"),
        pytest.param({"spec": volumes(700_000), "labels": wide(700_000)}, id="of both"),
    ],
)
def test_an_object_is_small_wherever_it_stands(full: dict[str, str], before: str, after: str) -> None:
    cut = bounded(f"{before}{workload('large', **full)}{after}".encode())
    assert len(cut) <= OBJECT_BYTES.limit + len(before) + len(after)
    assert b'"uid":"u-large"' in cut


async def test_an_object_with_a_usual_spec_is_read_beside_its_managed_fields() -> None:
    managed = json.dumps([{"fieldsV1": json.loads(wide(MANAGED_FIELDS_BYTES.limit - 2000))}])
    text = service("one", wide(50_000), managed).replace('"x":1', f'"x":"{"y" * 150_000}"')
    found = await decoded(text.encode())
    assert not is_cut(found)
    assert (found["metadata"]["managedFields"], len(found["status"]["x"])) == ([], 150_000)


async def test_no_object_is_read_without_its_owners_that_would_be_too_large_with_them() -> None:
    """Whoever declares the flags of a Deployment stands in its managedFields: without them nobody would."""
    managed = json.dumps([{"manager": "argocd-controller", "fieldsV1": json.loads(wide(7_000))}])
    annotations = json.dumps({"note": "y" * (OBJECT_BYTES.limit - 5_000)})
    more = f'"managedFields":{managed},"annotations":{annotations},"labels"'
    assert is_cut(await decoded(workload("one", spec=wide(2_000)).replace('"labels"', more, 1).encode()))


@pytest.mark.parametrize("size", [300_000, 100_000])
async def test_labels_that_are_larger_than_the_spec_do_not_hide_that_it_is_cut(size: int) -> None:
    found = await decoded(workload("one", spec=volumes(size), labels=wide(400_000)).encode())
    assert is_cut(found)


async def test_with_the_annotations_goes_the_spec_that_they_may_pause() -> None:
    annotations = json.dumps({f"{number}": "" for number in range(60_000)})
    found = await decoded(
        workload("one", spec=wide(10_000)).replace("labels", "annotations", 1).replace("{}", annotations, 1).encode()
    )
    assert found["metadata"]["annotations"] == {}
    assert is_cut(found)


@pytest.mark.parametrize("large", [{"spec": volumes(1_300_000)}, {"labels": wide(1_300_000)}], ids=["spec", "labels"])
def test_a_page_of_workloads_as_large_as_etcd_takes_fits_into_memory(large: dict[str, str]) -> None:
    items = ",".join(workload(f"large-{number}", **large) for number in range(5))
    cut = bounded(f'{{"items":[{items}]}}'.encode())
    assert len(cut) < 5_000
    assert len(json.loads(cut)["items"]) == 5


def test_a_page_of_workloads_that_are_just_small_enough_fits_into_memory() -> None:
    text = bounded(workload("large", spec=wide(OBJECT_BYTES.limit * 7 // 8)).encode())
    assert len(text) <= OBJECT_BYTES.limit
    tracemalloc.start()
    found = json.loads(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not is_cut(found)
    assert peak * PAGE_SIZE < 64 * 2**20, "an eighth of the chart's limit"
