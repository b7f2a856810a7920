"""Filling and sweeping the registry from lists, which may be long, expire, or fail."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests.control.objects import deployment_object, pod_object, service_object
from tests.patience import PATIENCE

from vllm_autotuner.cluster.adapter import Page
from vllm_autotuner.cluster.errors import Conflict, Refused, Unavailable
from vllm_autotuner.cluster.kinds import DEPLOYMENT, POD, VLLM_SERVICE, Kind
from vllm_autotuner.control.read.listing import fill, sweep, sweep_regularly
from vllm_autotuner.control.read.registry import Registry
from vllm_autotuner.workload.labels import MANAGED_SELECTOR

EXPIRED = Conflict("the list expired", reason="Expired", status=410)


class Lists:
    """A cluster of which only the lists are asked. Each answer is pages, or an error in the place of a page."""

    def __init__(self, **answers: list[list[Any]]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, str | None, str, bool]] = []

    async def pages(
        self, kind: Kind, *, namespace: str | None = None, selector: str = "", metadata_only: bool = False
    ) -> AsyncIterator[Page]:
        self.asked.append((kind.kind, namespace, selector, metadata_only))
        answers = self._answers.get(kind.kind, [[]])
        for page in answers.pop(0) if len(answers) > 1 else answers[0]:
            if isinstance(page, Exception):
                raise page
            yield Page(objects=tuple(page), resource_version="100")
        if not answers[0]:
            yield Page(objects=(), resource_version="100")


def lists(**answers: list[list[Any]]) -> Any:
    return Lists(**answers)


async def test_everything_is_listed_page_by_page_before_the_registry_counts_as_synced() -> None:
    cluster = lists(
        VLLMService=[[[service_object()], [service_object("search", uid="u2")]]],
        Deployment=[[[deployment_object()]]],
        Pod=[[[pod_object()]]],
    )
    registry = Registry()
    await fill(registry, cluster, namespaces=())
    assert registry.synced
    assert (len(registry.services), len(registry.deployments), len(registry.pods)) == (2, 1, 1)
    assert cluster.asked == [
        ("VLLMService", None, "", False),
        ("Deployment", None, MANAGED_SELECTOR, False),
        ("Pod", None, MANAGED_SELECTOR, False),
    ]


async def test_chosen_namespaces_are_listed_one_by_one() -> None:
    cluster = lists()
    await fill(Registry(), cluster, namespaces=("prod", "test"))
    assert [(kind, namespace) for kind, namespace, _, _ in cluster.asked] == [
        (kind.kind, namespace) for kind in (VLLM_SERVICE, DEPLOYMENT, POD) for namespace in ("prod", "test")
    ]


async def test_a_list_that_expires_between_pages_starts_again() -> None:
    cluster = lists(VLLMService=[[[service_object()], EXPIRED], [[service_object()], [service_object("b", uid="u2")]]])
    registry = Registry()
    await fill(registry, cluster, namespaces=())
    assert len(registry.services) == 2


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(EXPIRED, id="a list that expires each time"),
        pytest.param(Refused("no", reason="Forbidden"), id="no permission"),
    ],
)
async def test_a_list_that_cannot_be_had_leaves_the_registry_unsynced(error: Exception) -> None:
    registry = Registry()
    with pytest.raises(type(error)):
        await fill(registry, lists(Pod=[[error]]), namespaces=())
    assert not registry.synced


async def test_a_sweep_finds_what_no_watch_reported() -> None:
    registry = Registry()
    registry.services.see(service_object(version="10"))
    registry.services.see(service_object("search", uid="u2", version="10"))
    registry.pods.see(pod_object(version="30"))
    cluster = lists(VLLMService=[[[service_object("search", uid="u2")]]])
    assert await sweep(registry, cluster, namespaces=()) == 2
    assert [key.name for key in registry.services.views()] == ["search"]
    assert len(registry.pods) == 0
    assert all(metadata_only for _, _, _, metadata_only in cluster.asked)


async def test_a_list_that_breaks_off_forgets_nothing() -> None:
    registry = Registry()
    registry.services.see(service_object(version="10"))
    broken = lists(VLLMService=[[[], Unavailable("gone", reason="NoAnswer")]])
    with pytest.raises(Unavailable):
        await sweep(registry, broken, namespaces=())
    assert len(registry.services) == 1


async def test_a_failed_sweep_is_made_up_for_by_the_next() -> None:
    registry, stop = Registry(), asyncio.Event()
    registry.services.see(service_object(version="10"))
    cluster = lists(VLLMService=[[Unavailable("gone", reason="NoAnswer")], []])
    found: list[int] = []

    def report(count: int) -> None:
        found.append(count)
        stop.set()

    async with asyncio.timeout(PATIENCE):
        await sweep_regularly(
            registry, cluster, namespaces=(), interval=timedelta(milliseconds=1), report=report, stop=stop
        )
    assert found == [1]
