"""Changes on a line of time: what is drawn where, where it leads, and what has no time."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.overview.elements import Elements
from tests.overview.objects import full
from tests.overview.test_service_section import NOW, section

from vllm_autotuner.api.status import HistoryEntry, Outcome
from vllm_autotuner.overview.change_timeline import change_timeline

START = datetime(2026, 11, 10, tzinfo=UTC)
ACTIVE = {
    "id": "c9", "generation": 1, "knob": "maxNumSeqs", "fromValue": "64", "toValue": "48", "strategy": "Canary",
    "from": {"maxNumSeqs": 64}, "to": {"maxNumSeqs": 48}, "reason": "48 fit", "state": "Analyzing",
    "startedAt": "2026-11-20T17:00:00Z",
}  # fmt: skip


def entry(day: float | None, outcome: Outcome = Outcome.SUCCEEDED, *, hours: float = 1, **rest: Any) -> HistoryEntry:
    begin = None if day is None else START + timedelta(days=day)
    end = None if begin is None else begin + timedelta(hours=hours)
    named = {"id": "c", "knob": "maxNumSeqs", "from_value": "32", "to_value": "64"}
    return HistoryEntry(**(named | {"outcome": outcome, "started_at": begin, "finished_at": end} | rest))


def drawn(*history: HistoryEntry) -> Elements:
    return Elements(change_timeline(history, None, now=START + timedelta(days=10), identity="s"))


def marks(page: Elements) -> list[tuple[float, float]]:
    """From and to of each mark, in percent of the width."""
    lines = [found for tag, found in page.elements if tag == "line" and found.get("class") != "axis"]
    return [(float((each["x1"] or "").rstrip("%")), float((each["x2"] or "").rstrip("%"))) for each in lines]


def test_each_change_is_where_its_time_is() -> None:
    [(first, _), (second, _)] = marks(drawn(entry(0), entry(5)))
    assert (first, second) == (2, 50)


def test_each_way_to_end_has_a_lane_with_its_name() -> None:
    page = drawn(*(entry(index, outcome) for index, outcome in enumerate(Outcome)))
    assert [tag for tag, _ in page.elements].count("text") == len(Outcome)
    for lane in ("kept", "rolled back", "rollback failed", "rejected", "superseded"):
        assert lane in page.text


def test_every_mark_says_what_it_is_and_leads_to_its_entry() -> None:
    page = Elements(section(full(activeChange=ACTIVE)))
    links = {found["href"]: found["aria-label"] for tag, found in page.elements if tag == "a"}
    assert links == {
        "#service-change-0": "2026-11-19 11:30:00Z maxNumSeqs 32 -> 64: kept",
        "#service-change-under-way": "maxNumSeqs 64 -> 48: Analyzing since 2026-11-20 17:00:00Z",
    }
    assert {href.removeprefix("#") for href in links if href} <= {found.get("id") for _, found in page.elements}


def test_times_that_are_odd_stay_inside() -> None:
    ahead = entry(40)
    backwards = entry(5, hours=-30)
    for begin, end in marks(drawn(entry(0, hours=0), ahead, backwards)):
        assert 2 <= begin <= end <= 98
    [(begin, end)] = marks(drawn(entry(10, hours=0)))
    assert begin == end == 2


def test_a_change_without_a_time_is_counted_and_not_drawn() -> None:
    page = drawn(entry(0), entry(None), entry(3, finished_at=None))
    assert len(marks(page)) == 2
    assert "1 change without a time not shown" in page.text
    assert change_timeline([entry(None)], None, now=NOW, identity="s") == ""
    assert change_timeline([], None, now=NOW, identity="s") == ""
