"""An operator that was in trouble begins nothing for a window; what runs goes on."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from tests.control.cluster_model import MOST_BYTES
from tests.control.loop_bed import bed, queueing

from vllm_autotuner.api.status import Outcome
from vllm_autotuner.cluster.errors import Unavailable
from vllm_autotuner.control.run.self_health import LATEST, OWN_FAULT, SelfHealth
from vllm_autotuner.observation.reading import Absence, NoData

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
WINDOW, INTERVAL = timedelta(seconds=30), timedelta(seconds=15)
DOWN = Unavailable("PUT: 503", reason="ServiceUnavailable", status=503)

Refuses = Callable[[str, str], Exception | None]


def nothing(verb: str, name: str) -> Exception | None:
    return None


def no_status(verb: str, name: str) -> Exception | None:
    return DOWN if verb == "status" else None


def health() -> SelfHealth:
    return SelfHealth(interval=INTERVAL, window=WINDOW)


def trouble(found: SelfHealth, *, uid: str = "u1", source: str = "", services: int = 4) -> str:
    return found.trouble(uid, source=source, services=services, now=NOW)


@pytest.mark.parametrize(
    ("failing", "services", "well"), [(0, 4, True), (1, 4, True), (2, 4, False), (4, 50, True), (5, 50, False)]
)
def test_one_object_that_cannot_be_written_does_not_stop_the_others(failing: int, services: int, well: bool) -> None:
    found = health()
    for number in range(failing):
        found.api_failed(f"other-{number}", at=NOW)
    found.looked(took=INTERVAL, now=NOW)
    assert (trouble(found, services=services) == "") is well


def failing_for(found: SelfHealth, span: timedelta, *uids: str, meanwhile: Callable[[datetime], None]) -> None:
    """These objects' requests fail in each tick until now; `meanwhile` is what else happens in it."""
    for tick in range(span // INTERVAL, -1, -1):
        at = NOW - tick * INTERVAL
        for uid in uids:
            found.api_failed(uid, at=at)
        meanwhile(at)
        found.looked(took=INTERVAL, now=at)


def test_objects_that_fail_alone_for_long_do_not_stop_the_others() -> None:
    found = health()
    failing_for(found, OWN_FAULT * WINDOW, "odd", "odd2", meanwhile=lambda at: found.api_wrote("u1", at=at))
    assert trouble(found, uid="odd") != "", "their own changes wait"
    assert trouble(found) == ""
    for uid in ("u2", "u3"):
        found.api_failed(uid, at=NOW)
    assert trouble(found) != "", "an outage that comes after it is one"


@pytest.mark.parametrize(
    ("span", "writer"),
    [
        pytest.param(OWN_FAULT * WINDOW - INTERVAL, "u1", id="not yet"),
        pytest.param(OWN_FAULT * WINDOW, "odd", id="nothing of others was written"),
    ],
)
def test_until_that_is_known_it_is_an_outage(span: timedelta, writer: str) -> None:
    found = health()
    failing_for(found, span, "odd", "odd2", meanwhile=lambda at: found.api_wrote(writer, at=at))
    assert trouble(found) != ""


def test_an_object_that_was_well_meanwhile_fails_anew() -> None:
    found = health()
    for ago in (OWN_FAULT * WINDOW, timedelta()):
        for uid in ("odd", "odd2"):
            found.api_failed(uid, at=NOW - ago)
        found.api_wrote("u1", at=NOW - ago)
        found.looked(took=INTERVAL, now=NOW - ago)
    assert trouble(found) != ""


@pytest.mark.fault("T56")
@pytest.mark.parametrize("verb", ["status", "apply Deployment"])
async def test_two_objects_whose_writes_always_fail_hold_no_other_for_ever(verb: str) -> None:
    found = bed("chat", "odd", "odd2", load=queueing)
    broken = Unavailable("PUT: failed calling webhook", reason="InternalError", status=500)
    found.api.refuses = lambda asked, name: broken if asked == verb and name.startswith("odd") else None
    begun = None
    for tick in range(90):
        await found.tick()
        if begun is None and found.change() is not None:
            begun = tick
    assert begun is not None
    assert begun * INTERVAL >= OWN_FAULT * WINDOW - 4 * INTERVAL, "an outage looks like this at first"
    assert [entry.outcome for entry in found.status().history] == [Outcome.SUCCEEDED]
    assert all(found.change(name) is None and not found.status(name).history for name in ("odd", "odd2"))


@pytest.mark.fault("T56")
async def test_an_object_that_is_too_large_is_told_so_and_delays_no_other() -> None:
    found = bed("chat", "odd", "odd2", load=queueing)
    for name in ("odd", "odd2"):
        template = {"spec": {"x": "y" * (MOST_BYTES - 2000)}}
        found.api.objects["VLLMService", name]["spec"]["podTemplate"] = template
    await found.ticks(await begins_after() + 1)
    assert found.change() is not None
    assert found.told.count("ObjectTooLarge") == 2
    assert all("conditions" not in found.api.objects["VLLMService", name].get("status", {}) for name in ("odd", "odd2"))


def test_without_trouble_there_is_none() -> None:
    found = health()
    found.looked(took=LATEST, now=NOW)
    assert trouble(found) == ""


@pytest.mark.parametrize(
    ("ago", "well"),
    [(timedelta(), False), (WINDOW - timedelta(seconds=1), False), (WINDOW, True), (-timedelta(hours=2), False)],
)
def test_a_failure_counts_for_one_window(ago: timedelta, well: bool) -> None:
    writes, metrics = health(), health()
    writes.api_failed("u1", at=NOW - ago)
    metrics.source_failed("a", at=NOW - ago)
    assert (trouble(writes) == "") is well
    assert (trouble(metrics, source="a") == "") is well


def test_a_source_concerns_those_who_use_it() -> None:
    found = health()
    found.source_failed("eu", at=NOW)
    assert trouble(found, source="us") == ""
    assert trouble(found, source="eu") == "queries to metrics source eu failed within the last window"


def test_a_slow_look_counts_until_the_next_one() -> None:
    found = health()
    found.looked(took=LATEST + timedelta(seconds=1), now=NOW)
    assert trouble(found) == "the last tick took more than 30 s"
    found.looked(took=INTERVAL, now=NOW)
    assert trouble(found) == ""


async def begins_after(*, at: int = 0, refuses: Refuses = nothing, silent: NoData | None = None) -> int:
    """How many ticks it takes until a change begins, with a fault of one tick."""
    found = bed(load=queueing)
    for tick in range(1, 30):
        found.api.refuses, found.api.silent = (refuses, silent) if tick == at else (nothing, None)
        await found.tick()
        if found.change() is not None:
            return tick
    raise AssertionError(f"no change began: {found.status().recommendation}")


async def test_after_trouble_a_change_waits_for_a_window() -> None:
    undisturbed = await begins_after()
    ticks = WINDOW // INTERVAL
    assert await begins_after(at=undisturbed, refuses=no_status) == undisturbed + ticks
    assert await begins_after(at=undisturbed, silent=NoData(Absence.PROVIDER_ERROR, "503")) >= undisturbed + ticks


async def test_trouble_stops_no_change_that_runs() -> None:
    found = bed(load=queueing)
    while found.change() is None:
        await found.tick()
    tick = 0
    while found.change() is not None:
        tick += 1
        found.api.refuses = no_status if tick % 3 == 0 else nothing
        await found.tick()
        assert tick < 300
    assert [entry.outcome for entry in found.status().history] == [Outcome.SUCCEEDED]
