"""T33: a clock set back by two hours during a change delays it by no two hours; small skew has no effect."""

from datetime import datetime, timedelta

import pytest
from tests.change.worlds import NOW, analysis, change
from tests.control.desk import CAPPED, HARMED, desk

from vllm_autotuner.api.status import ChangeState, Outcome
from vllm_autotuner.change.clock import SET_BACK, followed_clock

JUMP = timedelta(hours=2)


def test_the_times_of_a_change_move_back_with_the_clock() -> None:
    before = change(ChangeState.ANALYZING, analysis=analysis(good=3, since=NOW))
    newest = NOW + timedelta(seconds=60)
    after = followed_clock(before, now=newest - JUMP)
    assert after.state_since == NOW - JUMP
    assert after.deadline == NOW + timedelta(minutes=10) - JUMP
    assert after.analysis is not None
    assert after.analysis.started_at == NOW - JUMP
    assert [each.at for each in after.analysis.last] == [
        NOW + timedelta(seconds=30 * index) - JUMP for index in range(3)
    ]
    assert after.started_at == before.started_at
    assert (after.analysis.windows_good, after.id) == (3, before.id)


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(NOW + timedelta(hours=3), id="time goes on"),
        pytest.param(NOW, id="the very moment"),
        pytest.param(NOW - SET_BACK + timedelta(seconds=1), id="two clocks that disagree"),
    ],
)
def test_a_clock_that_goes_on_moves_nothing(now: datetime) -> None:
    before = change(ChangeState.WARMING_UP)
    assert followed_clock(before, now=now) is before


@pytest.mark.fault("T33")
@pytest.mark.parametrize("state", ["Provisioning", "WarmingUp", "Analyzing"])
def test_a_candidate_that_harms_is_taken_back_although_the_clock_went_back(state: str) -> None:
    found = desk()
    found.until(state, CAPPED)
    found.now -= JUMP
    found.until(None, HARMED, at_most=20)
    assert [entry.outcome for entry in found.read.history] == [Outcome.ROLLED_BACK]
    assert found.seats == 64
