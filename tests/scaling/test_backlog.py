"""What has piled up while a replica was starting: whether it ends by itself."""

from datetime import timedelta

import pytest
from tests.builders import INTERVAL, NOW, SCRAPES, engine, observation

from vllm_autotuner.diagnosis.case import seems_to_become_fewer
from vllm_autotuner.scaling.backlog import ENDS_WITHIN, ends_before_a_trial, ends_by_itself

LAST = SCRAPES - 1


def line(first: float, last: float) -> list[float]:
    """A level that moves evenly through the window."""
    return [first + (last - first) * scrape / LAST for scrape in range(SCRAPES)]


ELAPSED = LAST * INTERVAL
ENOUGH = 100 * ELAPSED / ENDS_WITHIN
"""So many fewer in a window, and 100 are gone just in time."""


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        pytest.param(
            line(200, 100), f"the queue of 100 drains in {ELAPSED:.0f} s at its current rate", id="half is done"
        ),
        pytest.param(line(100, 100), None, id="it stands"),
        pytest.param(line(100, 200), None, id="it grows"),
        pytest.param(line(100 + ENOUGH + 1, 100), "the queue of 100 drains in 1", id="just in time"),
        pytest.param(line(100 + ENOUGH - 1, 100), None, id="later than a replica would come"),
    ],
)
def test_a_queue_ends_by_itself_when_it_is_gone_before_a_replica_would_come(
    waiting: list[float], expected: str | None
) -> None:
    found = ends_by_itself(observation(engine(waiting=waiting)), since=None)
    assert found is None if expected is None else (found or "").startswith(expected)


def test_queues_of_engines_add_up() -> None:
    shrinks, grows = engine(pod="a", waiting=line(100, 50)), engine(pod="b", waiting=line(0, 50))
    assert ends_by_itself(observation(shrinks, grows), since=None) is None


def test_what_was_before_the_newest_replica_does_not_count() -> None:
    # It grew until the last scrapes, when a replica came, and has shrunk since.
    levels = [100 + 5.0 * scrape for scrape in range(LAST)] + [100.0]
    seen = observation(engine(waiting=levels))
    came = seen.engines[0].moments[-2].time - INTERVAL / 2
    assert ends_by_itself(seen, since=None) is None
    assert ends_by_itself(seen, since=came) is not None


@pytest.mark.parametrize(
    ("levels", "ends"),
    [
        pytest.param([0.0, 386.0, 262.0, 138.0], True, id="it came in the window, and most of it is served"),
        pytest.param([0.0, 0.0, 386.0, 262.0], False, id="seen once since its peak"),
        pytest.param([0.0, 386.0, 380.0, 375.0], False, id="hardly any of it is"),
        pytest.param([10.0, 12.0, 9.0, 10.0], False, id="it only varies"),
        pytest.param([0.0, 386.0, 262.0, 320.0], False, id="it has turned"),
        pytest.param([0.0, 400.0, 100.0, 150.0, 200.0, 250.0, 300.0, 330.0], False, id="it has long turned"),
        pytest.param([100.0, 20.0, 40.0, 60.0], False, id="it is still below where it began"),
        pytest.param([400.0, 300.0, 200.0, 210.0], True, id="a little more than before is chance"),
    ],
)
def test_a_queue_is_served_from_its_peak_on(levels: list[float], ends: bool) -> None:
    """The scrape from before a burst says nothing of how fast it is served."""
    seen = observation(engine(waiting=levels, scrapes=len(levels)))
    assert (ends_by_itself(seen, since=None) is not None) is ends


def test_an_engine_that_was_seen_once_may_be_the_one_whose_queue_grows() -> None:
    seen = observation(engine(pod="a", waiting=line(200, 100)), engine(pod="b", scrapes=1))
    assert ends_by_itself(seen, since=None) is None
    assert ends_by_itself(seen, since=NOW + 1) is None


@pytest.mark.parametrize(
    ("running", "ends"),
    [
        pytest.param(line(100, 75), "requests are decreasing: 100 -> 75", id="a quarter less"),
        pytest.param(line(40, 30), None, id="a quarter less of few may be chance"),
        pytest.param(line(1000, 950), None, id="noise"),
        pytest.param(line(30, 40), None, id="more"),
        pytest.param([*line(20, 237)[:-2], 237.0, 109.0], "requests are decreasing: 237", id="a burst that is over"),
    ],
)
def test_where_nothing_waits_fewer_must_be_there(running: list[float], ends: str | None) -> None:
    assert (ends_by_itself(observation(engine(running=running)), since=None) or "").startswith(ends or "")
    assert (ends_by_itself(observation(engine(running=running)), since=None) is not None) is (ends is not None)


def test_what_puts_a_trial_off_lets_no_request_wait() -> None:
    """Two questions: a trial that is put off by chance costs nothing, a replica that is not bought by chance does."""
    seen = observation(engine(running=line(64, 50)))
    assert seems_to_become_fewer(seen)
    assert ends_by_itself(seen, since=None) is None


def test_a_queue_that_a_fresh_replica_has_taken_is_gone_although_more_run() -> None:
    old = engine(pod="old", running=741.0, waiting=[*line(659, 79)[:-1], 0.0])
    fresh = engine(pod="fresh", running=line(63, 560))
    assert ends_by_itself(observation(old, fresh), since=None) == "requests are decreasing: 1463 -> 1301"


MINUTE = timedelta(minutes=1)
MEASURED = ENDS_WITHIN + MINUTE.total_seconds()
"""Seconds until a trial that warms up for a minute has its first window."""


@pytest.mark.parametrize(
    ("waiting", "says"),
    [
        pytest.param(
            line(1000 + 1000 * ELAPSED / MEASURED + 1, 1000),
            "the queue of 1000 drains in 1",
            id="before it is measured",
        ),
        pytest.param(line(1000 + 1000 * ELAPSED / MEASURED - 1, 1000), "", id="while it is measured"),
        pytest.param(line(100, 100), "", id="it stands"),
        pytest.param([*line(9, 2)[:-1], 0.0], "the queue has just drained", id="nobody waits any more"),
        pytest.param([*line(4, 1)[:-1], 0.0], "", id="so few may have ended by chance"),
        pytest.param(line(8, 4), "", id="so few fewer may be chance"),
        pytest.param([0.0, *line(5, 5)[1:-1], 0.0], "", id="it comes and goes"),
        pytest.param(0.0, "", id="nobody waited at all"),
    ],
)
def test_a_trial_begins_for_what_is_still_there_when_it_is_measured(waiting: list[float] | float, says: str) -> None:
    found = ends_before_a_trial(observation(engine(waiting=waiting)), since=None, warm_up=MINUTE)
    assert found.startswith(says)
    assert bool(found) is bool(says)


def test_a_queue_that_has_just_ended_may_come_back_and_keeps_no_replica_from_coming() -> None:
    seen = observation(engine(waiting=[*line(9, 2)[:-1], 0.0]))
    assert ends_before_a_trial(seen, since=None, warm_up=MINUTE)
    assert ends_by_itself(seen, since=None) is None


def test_an_engine_that_was_seen_once_puts_no_trial_off() -> None:
    seen = observation(engine(pod="a", waiting=line(200, 100)), engine(pod="b", scrapes=1))
    assert ends_before_a_trial(seen, since=None, warm_up=MINUTE) == ""
    assert ends_before_a_trial(observation(), since=None, warm_up=MINUTE) == ""
