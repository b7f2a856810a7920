"""The web page over real HTTP: what it shows, what it never does, and how large it gets."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from tests.cluster.virtual_time import Clock
from tests.overview.elements import NASTY, Elements, runs_and_loads_nothing
from tests.overview.objects import full, with_texts
from tests.patience import PATIENCE

from vllm_autotuner.control.read.registry import Key, Registry
from vllm_autotuner.control.read.views import ServiceEntry
from vllm_autotuner.control.run.liveness import Heartbeat, LoopLag
from vllm_autotuner.control.run.operator_metrics import OperatorMetrics
from vllm_autotuner.control.run.probes import Probes, serve
from vllm_autotuner.control.run.web_pages import PAGE_SIZE, WebPages
from vllm_autotuner.overview.gpu_hours import Prices

NOW = datetime(2026, 11, 20, 18, tzinfo=UTC)


def named(name: str, body: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    found = deepcopy(body or full())
    found["metadata"] |= {"name": name, "uid": name, "resourceVersion": "1"}
    found["status"] |= status
    return found


@dataclass
class Site:
    """A page over a registry that a test fills."""

    clock: Clock = field(default_factory=Clock)
    registry: Registry = field(default_factory=Registry)
    url: str = ""
    reads: int = 0

    def services(self) -> Mapping[Key, ServiceEntry]:
        self.reads += 1
        return self.registry.services.views()

    def add(self, *bodies: dict[str, Any]) -> None:
        for body in bodies:
            assert self.registry.services.see(body)
        self.clock.now += 60

    async def get(self, path: str = "/", **options: Any) -> tuple[aiohttp.ClientResponse, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(options.pop("method", "GET"), self.url + path, **options) as response,
        ):
            return response, await response.text()


@pytest.fixture
async def site(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Site]:
    caplog.set_level(logging.INFO)
    found, stop = Site(), asyncio.Event()
    pages = WebPages(
        services=found.services, prices=Prices(flat=2.0), wall=lambda: NOW, monotonic=found.clock.monotonic
    )
    probes = Probes(
        heartbeat=Heartbeat(found.clock.monotonic),
        heartbeat_limit=60,
        lag=LoopLag(found.clock.monotonic),
        ready=lambda: True,
        metrics=OperatorMetrics(),
        is_leader=lambda: True,
    )
    task = asyncio.create_task(serve(probes, listen_address="127.0.0.1:0", stop=stop, pages=pages.routes()))
    async with asyncio.timeout(PATIENCE):
        while not (bound := [record for record in caplog.records if hasattr(record, "addresses")]):
            await asyncio.sleep(0.01)
    found.url = f"http://{bound[0].addresses[0]}"
    yield found
    stop.set()
    await task


async def test_the_fleet_worst_first_with_links_to_each(site: Site) -> None:
    fine = {"class": "Healthy", "since": "2026-11-20T12:00:00Z", "message": "all is well"}
    site.add(named("fine", diagnosis=fine, conditions=[]), named("chat"))
    response, text = await site.get()
    assert response.status == 200
    page = Elements(text)
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert links == ["services/prod/chat", "services/prod/fine"]
    for part in ("KVCacheSaturated", "Approve", "2/2", "2.4s/1s", "CircuitOpen", "saved 7.5 GPU-hours (15.00)"):
        assert part in page.text, part


async def test_one_service_with_its_decision_and_history(site: Site) -> None:
    site.add(named("chat"))
    response, text = await site.get("/services/prod/chat")
    assert response.status == 200
    page = Elements(text)
    for part in ("48 sequences fit.", "maxNumSeqs 32 -> 64", "ConcurrencyCapped", "Read-only."):
        assert part in page.text, part
    assert ("a", {"href": "../../"}) in page.elements, "relative: it works behind a proxy with a path"


async def test_a_service_that_is_not_there_is_404_and_named_harmlessly(site: Site) -> None:
    response, text = await site.get("/services/prod/%3Cscript%3E")
    assert response.status == 404
    runs_and_loads_nothing(text)


async def test_the_policy_allows_no_script_and_no_style_but_its_own(site: Site) -> None:
    site.add(named("chat"))
    for path in ("/", "/services/prod/chat", "/services/prod/none"):
        response, text = await site.get(path)
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        runs_and_loads_nothing(text)
        assert not [tag for tag, attributes in Elements(text).elements if "style" in attributes]


@pytest.mark.parametrize("nasty", NASTY)
async def test_no_text_of_a_tenant_changes_a_page(site: Site, nasty: str) -> None:
    site.add(named("plain", with_texts(lambda text: f"{text}x")), named("nasty", with_texts(lambda text: text + nasty)))
    (_, plain), (_, hostile) = await site.get("/services/prod/plain"), await site.get("/services/prod/nasty")
    assert Elements(hostile).shape == Elements(plain).shape
    runs_and_loads_nothing(hostile)
    _, search = await site.get("/", params={"q": nasty})
    runs_and_loads_nothing(search)


async def test_no_secret_of_a_spec_is_on_a_page(site: Site) -> None:
    site.add(named("chat"))
    for path in ("/", "/services/prod/chat"):
        assert "hidden-" not in (await site.get(path))[1]


async def test_thousands_of_services_are_pages_of_bounded_size(site: Site) -> None:
    huge = with_texts(lambda text: f"{text}{'<b>' * 2000}")
    site.add(*(named(f"s{index:04}", huge) for index in range(5 * PAGE_SIZE + 1)))
    sizes = []
    for number in ("1", "6", "7", "0", "-1", "x", "9" * 50):
        response, text = await site.get("/", params={"page": number})
        assert response.status == 200
        sizes.append(len(text))
        rows = [tag for tag, _ in Elements(text).elements].count("tr") - 1
        assert rows == (1 if number in ("6", "7") else PAGE_SIZE)
    assert max(sizes) < 2_000_000, "300 characters of a cell, each escaped to 4"
    _, found = await site.get("/", params={"q": "S0123"})
    assert [tag for tag, _ in Elements(found).elements].count("tr") == 2
    assert "No service matches." in (await site.get("/", params={"q": "nothing"}))[1]


async def test_a_reader_who_reloads_does_not_order_the_fleet_each_time(site: Site) -> None:
    site.add(*(named(f"s{index}") for index in range(3)))
    await site.get()
    site.registry.services.see(named("later"))
    assert "later" not in (await site.get())[1]
    site.clock.now += 5
    assert "later" in (await site.get())[1]


async def test_an_object_that_trips_the_reader_costs_no_other(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    odd = named("odd")
    odd["status"]["diagnosis"] = "text"
    site.add(odd, named("chat"))
    _, text = await site.get()
    assert "prod/chat" in text
    assert "failed to show service" in caplog.text


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_nothing_can_be_written(site: Site, method: str) -> None:
    site.add(named("chat"))
    for path in ("/", "/services/prod/chat"):
        assert (await site.get(path, method=method))[0].status == 405


async def test_probes_and_metrics_stay_where_they_are(site: Site) -> None:
    assert (await site.get("/healthz"))[0].status == 200
    assert "vllm_autotuner_leader" in (await site.get("/metrics"))[1]
