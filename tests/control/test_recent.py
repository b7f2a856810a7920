"""What a change in place is compared with: the windows of the service as it ran, and none of anything else."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from tests.builders import NOT_MEASURED, WINDOW, nobody
from tests.change.worlds import TARGETS
from tests.control.desk import CAPPED, HEALTHY, HELPED, TICK, desk

from vllm_autotuner.api.status import MEASUREMENTS_LENGTH, ActiveChange
from vllm_autotuner.control.decide.recent_windows import steady_windows
from vllm_autotuner.observation.observation import Observation

APART = timedelta(seconds=WINDOW)
SILENCE = nobody(ttft=NOT_MEASURED, tpot=NOT_MEASURED, itl=NOT_MEASURED)


def test_windows_are_kept_apart_up_to_ten() -> None:
    service = desk()
    service.tick(HEALTHY)
    for tick in range(1, 30):
        service.tick(HEALTHY)
        kept = service.history.measured
        assert len(kept) == min(MEASUREMENTS_LENGTH, tick * TICK // APART)
        assert all(later.at - earlier.at >= APART for earlier, later in pairwise(kept))


def test_a_window_of_another_number_of_replicas_is_not_kept() -> None:
    """The Deployment is as settled in the next look as in the one before."""
    service = desk()
    service.ticks(12, HEALTHY)
    inputs = service.inputs(HEALTHY)
    known = replace(inputs, history=replace(inputs.history, measured=service.history.measured))
    assert len(steady_windows(known, targets=TARGETS)) > 3
    status = service.read
    assert status.effective is not None
    fewer = status.updated(effective=status.effective.updated(since=inputs.now - timedelta(seconds=10)))
    after = replace(known, service=replace(inputs.service, status=fewer))
    assert steady_windows(after, targets=TARGETS) == ()


def test_what_was_not_measured_is_not_kept() -> None:
    service = desk()
    service.ticks(4, SILENCE)
    assert service.history.measured == ()


def test_old_windows_are_forgotten_while_nothing_is_seen() -> None:
    service = desk()
    service.ticks(8, HEALTHY)
    kept = len(service.history.measured)
    assert kept == 3
    service.ticks(61, SILENCE)
    assert service.history.measured == ()


def begun(*, paused_ticks: int, seen: Observation = CAPPED) -> ActiveChange:
    """A change that had to wait for a person, while `seen` was."""
    service = desk(paused=True)
    service.ticks(paused_ticks, seen)
    service.edit(paused=False)
    service.until("Provisioning", CAPPED)
    assert service.history.measured != ()
    service.tick(HELPED)
    assert service.history.measured == ()
    change = service.read.active_change
    assert change is not None
    return change


def test_a_change_takes_its_windows_with_it_and_the_service_begins_anew() -> None:
    change = begun(paused_ticks=12)
    assert change.before[-1] == change.baseline
    assert len(change.before) > 4
    assert all(later.at - earlier.at >= APART for earlier, later in pairwise(change.before))


def test_how_it_was_before_the_trouble_began_is_no_comparison() -> None:
    change = begun(paused_ticks=12, seen=HEALTHY)
    assert len(change.before) < 3
    assert {one.ttft_seconds for one in change.before} == {change.baseline.ttft_seconds if change.baseline else None}


def test_after_a_restart_there_is_the_present_window() -> None:
    service = desk()
    service.ticks(1, HEALTHY)
    service.restart()
    service.until("Provisioning", CAPPED)
    change = service.read.active_change
    assert change is not None
    assert change.before
