"""How often an overwritten workload is restored, tick by tick."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.api.status import Contest
from vllm_autotuner.guardrails.contest import (
    CONTEST_WINDOW,
    MOST_RESTORES,
    Interference,
    after_interference,
    is_lost,
)

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ARGO = Interference(manager="argocd", fields=("args", "image"))


def story(*minutes: float, quiet: tuple[float, ...] = (), generation: int = 1) -> Contest | None:
    """What stands after interference seen at these minutes, and its absence seen at others."""
    contest: Contest | None = None
    for minute in sorted((*minutes, *quiet)):
        seen = ARGO if minute in minutes else None
        contest = after_interference(contest, seen, generation=generation, now=NOW + timedelta(minutes=minute))
    return contest


@pytest.mark.parametrize(
    ("contest", "restored", "lost"),
    [
        pytest.param(story(0), 1, False, id="once"),
        pytest.param(story(0, 1), 2, False, id="twice"),
        pytest.param(story(0, 1, 2), 2, True, id="a third time within ten minutes is a machine"),
        pytest.param(story(0, 5, 10), 2, False, id="the first is forgotten after ten minutes"),
        pytest.param(story(0, 1, 2, 30, 60), 2, True, id="lost is lost, however late it is seen again"),
        pytest.param(story(0, 1, 2, quiet=(3, 12)), 2, True, id="quiet for a moment"),
        pytest.param(story(0, 1, 2, 8, quiet=(3, 14)), 2, True, id="the quiet must be one piece"),
    ],
)
def test_how_it_stands(contest: Contest | None, restored: int, lost: bool) -> None:
    assert contest is not None
    assert (contest.manager, contest.fields) == ("argocd", "args, image")
    assert (len(contest.restored), is_lost(contest)) == (restored, lost)


@pytest.mark.parametrize(
    "contest",
    [
        pytest.param(story(quiet=(0,)), id="nothing happened"),
        pytest.param(story(0, quiet=(1, 10)), id="one slip, ten minutes ago"),
        pytest.param(story(0, 1, 2, quiet=(3, 13)), id="ten quiet minutes after it was lost"),
    ],
)
def test_when_there_is_none(contest: Contest | None) -> None:
    assert contest is None


def test_an_edit_of_the_service_gives_two_new_tries() -> None:
    contest = after_interference(story(0, 1, 2), ARGO, generation=2, now=NOW + timedelta(minutes=3))
    assert contest is not None
    assert (len(contest.restored), is_lost(contest)) == (1, False)


@pytest.mark.fault("T29")
@given(st.lists(st.tuples(st.integers(0, 600), st.booleans()), max_size=60))
def test_never_more_writes_in_ten_minutes_than_allowed(looks: list[tuple[int, bool]]) -> None:
    contest: Contest | None = None
    writes: list[datetime] = []
    now = NOW
    for seconds, seen in looks:
        now += timedelta(seconds=seconds)
        before = contest.restored if contest is not None else ()
        contest = after_interference(contest, ARGO if seen else None, generation=1, now=now)
        if contest is not None:
            writes += [at for at in contest.restored if at not in before]
    for first in writes:
        assert len([at for at in writes if first <= at < first + CONTEST_WINDOW]) <= MOST_RESTORES
