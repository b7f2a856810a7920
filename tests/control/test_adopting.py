"""What is read of somebody else's Deployment, and whose it is."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from tests.api.cases import changed
from tests.control.adopting_bed import ADOPTING, NAME, AdoptingBed, AdoptingServer, adopting, theirs
from tests.control.cluster_model import ApiServer, Body
from tests.control.desk import SPEC, START
from tests.control.loop_bed import service_body
from tests.control.test_hostile_objects import CHANGE
from tests.patience import PATIENCE
from typing_extensions import override

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.budgets import OBJECT_BYTES
from vllm_autotuner.cluster.adapter import Cluster, Page
from vllm_autotuner.cluster.bounded_json import OBJECT_TOO_LARGE
from vllm_autotuner.cluster.errors import Unavailable
from vllm_autotuner.cluster.kinds import Kind
from vllm_autotuner.control.read import adopting as adopting_module
from vllm_autotuner.control.read.adopted import Adopted, adopted_from
from vllm_autotuner.control.read.adopting import Adopting, claims
from vllm_autotuner.control.read.registry import Key
from vllm_autotuner.control.read.views import ServiceEntry, service_entry
from vllm_autotuner.workload.adoption import Target, Unadoptable, read_target

THEIRS = Key("prod", NAME)


def naming(
    name: str, *, created: str = "2026-11-20T12:00:00Z", uid: str = "u", target: str = NAME, **meta: Any
) -> ServiceEntry:
    metadata = {"namespace": "prod", "name": name, "uid": uid, "creationTimestamp": created, "generation": 1, **meta}
    return service_entry({"metadata": metadata, "spec": {"targetRef": {"name": target}}})


@pytest.mark.parametrize(
    ("entries", "owners"),
    [
        pytest.param([naming("a")], {THEIRS: "a"}, id="the only one"),
        pytest.param(
            [naming("a", created="2026-11-20T12:00:01Z"), naming("b")], {THEIRS: "b"}, id="the older one, not the first"
        ),
        pytest.param([naming("a", uid="2"), naming("b", uid="1")], {THEIRS: "b"}, id="of equal age one and the same"),
        pytest.param(
            [naming("a", deletionTimestamp="2026-11-20T12:00:00Z"), naming("b")], {THEIRS: "b"}, id="one that goes away"
        ),
        pytest.param([naming("a"), naming("b", target="o")], {THEIRS: "a", Key("prod", "o"): "b"}, id="two of two"),
        pytest.param([service_entry(service_body("a"))], {}, id="one that has an engine of its own"),
        pytest.param(
            [service_entry({"metadata": {"namespace": "prod", "name": "a"}, "spec": {}})], {}, id="unreadable"
        ),
    ],
)
def test_the_oldest_service_has_a_deployment(entries: list[ServiceEntry], owners: dict[Key, str]) -> None:
    assert claims(entries) == {deployment: Key("prod", name) for deployment, name in owners.items()}


def reading_of(api: ApiServer, *entries: ServiceEntry, beat: Callable[[], None] = lambda: None) -> Adopting:
    services = {Key(each.namespace, each.name): each for each in entries}
    return Adopting(services, cluster=cast(Cluster, api), monotonic=lambda: api.now.timestamp(), beat=beat)


async def read(deployment: dict[str, Any], *entries: ServiceEntry) -> Adopted | Unadoptable | None:
    api = AdoptingServer(now=START)
    api._store("Deployment", NAME, deployment)
    first, *_ = known = entries or (naming("chat"),)
    reading = reading_of(api, *known)
    await reading.read_all(put_off={})
    assert not isinstance(first.service, str)
    return await reading.of(first.service)  # type: ignore[arg-type]  # readable, by `naming`


async def test_a_service_without_a_target_has_none() -> None:
    assert await read(theirs(), service_entry(service_body("chat"))) is None


async def test_what_the_operator_rendered_is_not_adopted() -> None:
    owner = {"kind": "VLLMService", "name": "other", "controller": True}
    labels = {"app.kubernetes.io/managed-by": "vllm-autotuner", "vllm-autotuner.dev/service": "other"}
    by_owner = await read(theirs(metadata__ownerReferences=[owner]))
    by_label = await read(theirs(metadata__labels=labels), naming("chat"), service_entry(service_body("other")))
    for found in (by_owner, by_label):
        assert isinstance(found, Unadoptable)
        assert "managed by VLLMService other" in found.message
    assert isinstance(await read(theirs(metadata__labels=labels)), Adopted), "its VLLMService is gone (Retain)"


async def test_a_deployment_on_its_way_out_is_not_there() -> None:
    found = await read(theirs(metadata__deletionTimestamp="2026-11-20T12:00:00Z"))
    assert isinstance(found, Unadoptable)
    assert found.reason == "TargetNotFound"


async def test_a_deployment_that_is_too_large_is_not_adopted() -> None:
    found = await read({**theirs(), "spec": OBJECT_TOO_LARGE})
    assert isinstance(found, Unadoptable)
    assert found.reason == "InvalidSpec"
    assert found.message == f"Deployment {NAME} is not read: the object is larger than 256 KiB of JSON; shorten it"


def test_little_is_kept_of_a_large_deployment() -> None:
    """A tick keeps what it reads of every adopted Deployment until it has decided."""
    many = [{"name": f"volume-{number:08}", "emptyDir": {}} for number in range(OBJECT_BYTES.limit // 50)]
    variables = [{"name": f"VARIABLE_{number:08}", "value": ""} for number in range(100)]
    body = theirs(spec__template__spec__volumes=many)
    body["spec"]["template"]["spec"]["containers"][0]["env"] = variables
    text, service = json.dumps(body), naming("chat").service
    del body, many, variables
    assert isinstance(service, VLLMService)
    tracemalloc.start()
    target = read_target(json.loads(text))
    assert isinstance(target, Target)
    found = adopted_from(service, target=target, bodies=[], selector="app=chat", autoscalers=())
    del target
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.deployment.config_hash == found.hash_of(EngineKnobs())
    assert kept < 2 * len(text), "as a value it takes ten times as much"


class Slow(AdoptingServer):
    """Whose answers take 3 s."""

    @override
    async def read(self, kind: Kind, *, namespace: str, name: str) -> Body:
        self.now += timedelta(seconds=3)
        return await super().read(kind, namespace=namespace, name=name)


async def test_what_a_tick_has_no_time_to_read_is_read_in_the_next_ones_in_turn() -> None:
    entries = [naming(f"s-{number}", uid=f"u-{number}", target=f"d-{number}") for number in range(5)]
    api, beats, put_off = Slow(now=START), list[int](), dict[str, float]()
    left = []
    for _ in range(4):
        put_off = dict(await reading_of(api, *entries, beat=lambda: beats.append(1)).read_all(put_off=put_off))
        left.append([*put_off])
    assert left == [["u-2", "u-3", "u-4"], ["u-4", "u-0", "u-1"], ["u-1", "u-2", "u-3"], ["u-3", "u-0", "u-4"]]
    assert len(beats) == 8


async def test_one_deployment_whose_pods_do_not_come_holds_up_no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its selector finds 5,000 pods: at 2 s for 20 of them all others waited for eight minutes, in each tick."""
    monkeypatch.setattr(adopting_module, "LONGEST_READ", 0.05)
    api = AdoptingServer(now=START)
    for name, app in (("one", "one"), ("other", "chat")):
        selector = {"matchLabels": {"app": app}}
        api._store("Deployment", name, theirs(metadata__name=name, metadata__uid=name, spec__selector=selector))
    pages = api.pages

    async def endless(kind: Kind, *, selector: str = "", **which: Any) -> AsyncIterator[Page]:
        if selector == "app=one":
            await asyncio.Event().wait()
        async for page in pages(kind, selector=selector, **which):
            yield page

    monkeypatch.setattr(api, "pages", endless)
    one, other = (naming(name, uid=name, target=name) for name in ("one", "other"))
    reading = reading_of(api, one, other)
    async with asyncio.timeout(PATIENCE):
        assert await reading.read_all(put_off={}) == {}
    assert isinstance(other.service, VLLMService)
    assert isinstance(one.service, VLLMService)
    assert isinstance(await reading.of(other.service), Adopted)
    with pytest.raises(Unavailable, match="prod/one and its pods were not read within"):
        await reading.of(one.service)


async def test_a_running_change_is_read_in_each_tick() -> None:
    changing = naming("z", uid="z", target="z").body
    status = {"activeChange": {**CHANGE, "deadline": "2026-11-21T12:00:00Z", "startedAt": "2026-11-21T12:00:00Z"}}
    entries = [naming(f"s-{number}", uid=f"u-{number}", target=f"d-{number}") for number in range(5)]
    reading = reading_of(Slow(now=START), *entries, service_entry({**changing, "status": status}))
    assert set(await reading.read_all(put_off={"u-3": 0.0})) == {"u-0", "u-1", "u-2", "u-4"}


async def test_a_service_whose_deployment_was_not_read_is_decided_in_a_later_tick() -> None:
    api = Slow(now=START)
    for number in range(5):
        spec = changed(SPEC, {**ADOPTING, "targetRef.name": f"d-{number}"})
        api.create({**service_body(f"s-{number}"), "spec": spec})
    bed = AdoptingBed(api)
    decided = []
    for _ in range(3):
        await bed.tick()
        decided.append(sum("status" in api.objects["VLLMService", f"s-{number}"] for number in range(5)))
    assert decided == [2, 4, 5]


async def test_only_pods_of_this_very_deployment_count() -> None:
    bed = adopting(tuning__mode="Recommend")
    await bed.ticks(4)
    assert bed.status().ready_replicas == 1
    bed.api.pods[0].deployment = "theirs-canary"
    await bed.tick()
    condition = bed.condition("MetricsAvailable")
    assert condition[0] == "False"


async def test_a_selector_with_expressions() -> None:
    expressions = [
        {"key": "tier", "operator": "In", "values": ["a", "b"]},
        {"key": "old", "operator": "DoesNotExist"},
        {"key": "app", "operator": "Exists"},
        {"key": "zone", "operator": "NotIn", "values": ["x"]},
    ]
    deployment = theirs(spec__selector={"matchLabels": {"app": "chat"}, "matchExpressions": expressions})
    asked: list[str] = []

    class Listening(AdoptingServer):
        @override
        def pages(self, *args: Any, selector: str = "", **rest: Any) -> Any:
            asked.append(selector)
            return super().pages(*args, selector="app=chat", **rest)

    api = Listening(now=START)
    api._store("Deployment", NAME, deployment)
    entry = naming("chat")
    await reading_of(api, entry).read_all(put_off={})
    assert asked == ["app=chat,tier in (a,b),!old,app,zone notin (x)"]
