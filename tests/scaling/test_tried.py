"""Fewer replicas that were too few are not tried again at that load, and nothing else is held back by them."""

from datetime import timedelta

import pytest
from tests.builders import WINDOW
from tests.scaling.loads import LENGTH, carrying
from tests.scaling.test_replicas import NOW, desired

from vllm_autotuner.api.scale_ins import ScaleInTried
from vllm_autotuner.api.spec import ScaleIn
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.scaling.failed_scale_ins import FORGOTTEN, after_scaling, failed_at, most_too_few, tried_again_from
from vllm_autotuner.scaling.supply import Scale

ON_TRIAL = ScaleInTried(replicas=2, config_hash="a", at=NOW - timedelta(minutes=5))
FAILED = ON_TRIAL.updated(failed_at=NOW, tokens_per_second=3000.0)


def scaled(
    *tried: ScaleInTried,
    before: int,
    to: int,
    ready: int | None = None,
    load: float | None = 3000.0,
    runs: str = "a",
    lacking: bool = True,
    foretold: bool = True,
    newest: timedelta | None = None,
) -> tuple[ScaleInTried, ...]:
    return after_scaling(
        tried,
        before=before,
        ready=before if ready is None else ready,
        newest_since=None if newest is None else NOW - newest,
        scale=Scale(replicas=to, reason="", lacking=lacking, foretold=foretold),
        config_hash=runs,
        load=load,
        now=NOW,
    )


def test_fewer_are_on_trial() -> None:
    assert scaled(before=3, to=2) == (ScaleInTried(replicas=2, config_hash="a", at=NOW),)


@pytest.mark.parametrize("hours", [0, 5])
def test_more_say_that_fewer_did_not_do_and_at_what_load(hours: int) -> None:
    """Whenever that was: a load that varies by chance is too much an hour later as well."""
    since = ON_TRIAL.updated(at=NOW - timedelta(hours=hours))
    assert scaled(since, before=2, to=3) == (FAILED.updated(at=since.at),)
    assert scaled(ON_TRIAL, before=2, to=4, load=None)[0].tokens_per_second is None


def test_what_is_still_starting_has_not_been_tried() -> None:
    """Two replicas were late, a third is on its way, and a fourth is asked for before it is there."""
    third = ScaleInTried(replicas=3, config_hash="a", at=NOW - timedelta(hours=1))
    assert scaled(third, ON_TRIAL, before=3, to=4, ready=2) == (third, FAILED)
    assert scaled(third, ON_TRIAL, before=3, to=4, ready=3)[0].failed_at == NOW


@pytest.mark.parametrize(
    ("minutes", "replicas", "came_back"),
    [
        pytest.param(1, 2, True, id="just now"),
        pytest.param(5, 2, None, id="its load is in that of five minutes"),
        pytest.param(90, 2, None, id="before the scale-in"),
        pytest.param(1, 10, None, id="one of ten is noise"),
    ],
)
def test_a_number_of_which_a_pod_just_came_back_waits_and_is_not_too_few_for_a_day(
    minutes: int, replicas: int, came_back: bool | None
) -> None:
    """One of two pods hung for half an hour, was deleted, and serves again: the other has all that waited since."""
    since = ON_TRIAL.updated(at=NOW - timedelta(hours=1), replicas=replicas)
    [one] = scaled(since, before=replicas, to=replicas + 1, newest=timedelta(minutes=minutes))
    assert (one.failed_at, one.pod_came_back) == (NOW, came_back)
    assert most_too_few([one], load=3000.0) == (0 if came_back else replicas)
    assert tried_again_from(replicas, [one], stabilization=timedelta(minutes=10)) == NOW + timedelta(minutes=20)


def test_a_scale_in_right_after_a_pod_came_back_is_a_trial_like_any() -> None:
    [one] = scaled(ON_TRIAL.updated(at=NOW - timedelta(minutes=2)), before=2, to=3, newest=timedelta(minutes=4))
    assert one.pod_came_back is None


@pytest.mark.parametrize(
    ("tried", "before", "runs"),
    [
        pytest.param(ON_TRIAL, 3, "a", id="another number"),
        pytest.param(ON_TRIAL, 2, "b", id="another setting"),
    ],
)
def test_more_for_another_reason_say_nothing(tried: ScaleInTried, before: int, runs: str) -> None:
    assert scaled(tried, before=before, to=before + 1, runs=runs) == (tried,)


def test_more_while_nothing_was_late_say_nothing() -> None:
    """A user who raises minReplicas has seen nothing of the number before."""
    assert scaled(ON_TRIAL, before=2, to=3, lacking=False) == (ON_TRIAL,)


def test_fewer_of_which_nothing_was_foretold_are_no_trial() -> None:
    """An idle service wakes up every hour: no prediction was wrong."""
    assert scaled(FAILED, ON_TRIAL, before=3, to=2, foretold=False) == (FAILED,)


def test_a_number_that_was_enough_for_a_further_scale_in_is_no_longer_on_trial() -> None:
    """Two were enough, one was not, and what waits when the second is back makes a third come: two are not to blame."""
    one = scaled(ON_TRIAL, before=2, to=1)
    assert [each.replicas for each in one] == [1]
    back = scaled(*one, before=1, to=2)
    assert [(each.replicas, each.failed_at) for each in scaled(*back, before=2, to=3)] == [(1, NOW)]


def test_what_is_forgotten_leaves_its_place_to_others() -> None:
    old = FAILED.updated(failed_at=NOW - FORGOTTEN)
    assert scaled(old, FAILED, before=3, to=2) == (FAILED, ScaleInTried(replicas=2, config_hash="a", at=NOW))


def test_trying_again_replaces_the_trial_and_keeps_the_failure() -> None:
    again = scaled(FAILED, ON_TRIAL, before=3, to=2)
    assert again == (FAILED, ScaleInTried(replicas=2, config_hash="a", at=NOW))


@pytest.mark.parametrize(
    ("replicas", "load", "speaks"),
    [
        pytest.param(2, 3000.0, True, id="the same again"),
        pytest.param(2, 2701.0, True, id="less by noise"),
        pytest.param(2, 2600.0, False, id="clearly less"),
        pytest.param(1, 3000.0, True, id="even fewer"),
        pytest.param(3, 9000.0, False, id="more of them have not been tried"),
    ],
)
def test_what_a_failure_speaks_against(replicas: int, load: float, speaks: bool) -> None:
    assert (most_too_few([FAILED], load=load) >= replicas) is speaks


def test_of_several_failures_the_most_replicas_count() -> None:
    fewer = FAILED.updated(replicas=1, tokens_per_second=2000.0)
    assert [most_too_few([fewer, FAILED], load=load) for load in (3000.0, 2000.0, 1000.0)] == [2, 1, 0]


def test_where_the_load_is_not_known_every_load_may_be_too_much() -> None:
    assert most_too_few([FAILED.updated(tokens_per_second=None)], load=1.0) == 2


def test_failures_are_of_one_setting_and_of_a_day() -> None:
    assert failed_at([ON_TRIAL, FAILED], config_hash="a", now=NOW) == (FAILED,)
    assert failed_at([FAILED], config_hash="b", now=NOW) == ()
    assert failed_at([FAILED], config_hash="a", now=NOW + FORGOTTEN) == ()


def test_a_failure_of_the_future_does_not_count() -> None:
    """A status that was edited, or one of today where `explain --at` asks about yesterday."""
    assert failed_at([FAILED], config_hash="a", now=NOW - timedelta(hours=1)) == ()


@pytest.mark.parametrize(("part", "replicas"), [(0.95, 2), (1.5, 1)])
def test_a_replica_that_was_missed_before_is_kept(part: float, replicas: int) -> None:
    """Two engines make 1,600 tokens/s each, and one looks as if it could make them all; it could not at such a load."""
    seen = carrying([90.0] * 4 + [60.0] * 16, engines=2)
    load, at = 2 * 60.0 * LENGTH / WINDOW * part, NOW - timedelta(hours=1)
    alone = ScaleInTried(replicas=1, config_hash="a", at=at, failed_at=at, tokens_per_second=load)
    assert desired(DiagnosisClass.UNDERUTILIZED, seen=seen).replicas == 1
    assert desired(DiagnosisClass.UNDERUTILIZED, seen=seen, failed=[alone]).replicas == replicas


@pytest.mark.parametrize(
    ("replicas", "failed", "minutes"),
    [
        pytest.param(2, [FAILED], 20, id="once"),
        pytest.param(2, [FAILED, FAILED], 40, id="twice"),
        pytest.param(1, [FAILED, FAILED.updated(replicas=1)], 20, id="each number once, as on any rising morning"),
        pytest.param(1, [FAILED], 20, id="more of them"),
        pytest.param(
            1,
            [*[FAILED.updated(failed_at=NOW - timedelta(hours=5))] * 3, FAILED.updated(replicas=1)],
            20,
            id="another one more often, long ago",
        ),
        pytest.param(3, [FAILED], None, id="more were not tried"),
    ],
)
def test_each_failure_of_a_number_doubles_the_time_that_it_rests(
    replicas: int, failed: list[ScaleInTried], minutes: int | None
) -> None:
    found = tried_again_from(replicas, failed, stabilization=timedelta(minutes=10))
    assert found == (None if minutes is None else NOW + timedelta(minutes=minutes))


@pytest.mark.parametrize(("minutes", "replicas"), [(15, 2), (25, 1)])
def test_what_failed_at_a_higher_load_is_tried_again_after_its_rest(minutes: int, replicas: int) -> None:
    seen = carrying([90.0] * 4 + [60.0] * 16, engines=2)
    at = NOW - timedelta(minutes=minutes)
    alone = ScaleInTried(replicas=1, config_hash="a", at=at, failed_at=at, tokens_per_second=1e6)
    assert desired(DiagnosisClass.UNDERUTILIZED, seen=seen, newest=60 * minutes).replicas == 1
    assert desired(DiagnosisClass.UNDERUTILIZED, seen=seen, newest=60 * minutes, failed=[alone]).replicas == replicas


def test_pods_that_move_meanwhile_do_not_lengthen_the_rest() -> None:
    seen, at = carrying([90.0] * 4 + [60.0] * 16, engines=2), NOW - timedelta(minutes=25)
    alone = ScaleInTried(replicas=1, config_hash="a", at=at, failed_at=at, tokens_per_second=1e6)
    assert desired(DiagnosisClass.UNDERUTILIZED, seen=seen, newest=660, asked=660, failed=[alone]).replicas == 1


def test_a_longer_stabilization_than_is_remembered_asks_for_what_is() -> None:
    """30 minutes of windows are kept: with an hour nothing ever counted as known."""
    seen = carrying([90.0] * 4 + [60.0] * 56, engines=2)
    patient = ScaleIn(stabilization=timedelta(hours=1))
    assert desired(DiagnosisClass.UNDERUTILIZED, seen=seen, newest=3700, scale_in=patient).replicas == 1
    assert desired(DiagnosisClass.UNDERUTILIZED, seen=seen, newest=3500, scale_in=patient).replicas == 2
