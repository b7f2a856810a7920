"""Predictions against measurements, after a user applied the recommendation or the load reached the batch."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.change.worlds import NOW

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.status import (
    ActiveChange,
    ChangeState,
    ComparedBy,
    ConfigRef,
    Foretold,
    Measurement,
    Prediction,
    Recommendation,
)
from vllm_autotuner.change.prediction_check import (
    FEWEST_WINDOWS,
    KEPT_FOR,
    SAME_LOAD,
    TOLERANCE,
    Now,
    followed_up,
    noted,
)

THEN = EngineKnobs(max_num_seqs=64)
DONE = EngineKnobs(max_num_seqs=128)
LATER = NOW + timedelta(hours=1)


def recommendation(**changes: Any) -> Recommendation:
    given = {
        "id": "a1",
        "knob": "maxNumSeqs",
        "current": "64",
        "recommended": "128",
        "predicted": (
            Prediction(name="TTFT", unit="s", current=4.0, predicted=1.0),
            Prediction(name="TPOT", unit="s", current=0.03, predicted=0.04),
            Prediction(name="GPUs", unit="GPUs", current=1, predicted=1),
        ),
    }
    return Recommendation(**(given | changes))


def window(number: int, **changes: Any) -> Measurement:
    given = {"ttft_seconds": 1.1, "tpot_seconds": 0.042, "requests_per_second": 9.0, "running": 100.0, "waiting": 20.0}
    return Measurement(at=LATER + number * timedelta(seconds=30), tokens_per_second=2500.0, **(given | changes))


def windows(*, few: bool = False, **changes: Any) -> tuple[Measurement, ...]:
    return tuple(window(number, **changes) for number in range(FEWEST_WINDOWS - few))


def made(**changes: Any) -> tuple[Foretold, ...]:
    now = Now(at=NOW, knobs=THEN, replicas=1)
    return noted((), recommendation(**changes), now=now, in_system=120.0, arrivals_per_second=9.0)


def later(knobs: EngineKnobs = DONE, *, seen: Sequence[Measurement] | None = None, **changes: Any) -> Now:
    found = Now(at=LATER + timedelta(minutes=5), knobs=knobs, replicas=1, windows=windows() if seen is None else seen)
    return replace(found, **changes)


def test_what_was_foretold_is_kept_with_the_load_of_then() -> None:
    (found,) = made()
    assert (found.made_at, found.knobs, found.replicas, found.in_system) == (NOW, THEN, 1, 120.0)
    assert [each.name for each in found.predicted] == ["TTFT", "TPOT"], "GPUs are not measured"
    assert found.came is None


def test_what_foretells_nothing_measurable_is_not_kept() -> None:
    assert made(predicted=(Prediction(name="GPUs", unit="GPUs", predicted=1.0),)) == ()
    assert made(predicted=(Prediction(name="TTFT", unit="s", current=1.0, predicted=None),)) == ()


def test_the_same_question_asked_again_takes_the_place_of_the_first() -> None:
    now = Now(at=LATER, knobs=THEN, replicas=1)
    record = made()
    assert noted(record, recommendation(), now=now, in_system=1.0, arrivals_per_second=None) == record
    again = noted(record, recommendation(id="b2"), now=now, in_system=1.0, arrivals_per_second=None)
    assert [each.id for each in again] == ["b2"]
    other = noted(record, recommendation(id="c3", recommended="96"), now=now, in_system=1.0, arrivals_per_second=None)
    assert [each.id for each in other] == ["a1", "c3"]


def test_a_length_that_went_with_it_does_not_hide_that_it_was_done() -> None:
    (found,) = followed_up(made(), later(DONE.updated(max_model_len=8192)))
    assert found.came is not None
    (found,) = followed_up(made(knob="maxModelLen", current="16384", recommended="8192"), later(THEN))
    assert found.came is None, "nobody has set the length"


def test_slots_that_went_with_it_are_part_of_what_was_foretold() -> None:
    (smaller,) = made(knob="tensorParallelSize", current="2", recommended="1", max_num_seqs=174)
    before = THEN.updated(tensor_parallel_size=2)
    asked = (smaller.updated(knobs=before),)
    done = before.updated(tensor_parallel_size=1, max_num_seqs=174)
    (found,) = followed_up(asked, later(done))
    assert found.came is not None
    assert followed_up(asked, later(done.updated(max_num_seqs=8))) == asked, "requests wait for 8 slots"


def test_done_by_a_person_under_a_like_load_it_is_compared() -> None:
    (found,) = followed_up(made(), later())
    came = found.came
    assert came is not None
    assert (came.compared_by, came.windows, came.at) == (ComparedBy.VALUE, FEWEST_WINDOWS, windows()[-1].at)
    assert (came.ttft_seconds, came.tpot_seconds, came.tokens_per_second) == (1.1, 0.042, 2500.0)
    assert came.held is True
    assert followed_up((found,), later(THEN)) == (found,), "it is told once"


@pytest.mark.parametrize(
    ("measured", "held"),
    [
        pytest.param({"ttft_seconds": 1.0 + TOLERANCE}, True, id="worse by the tolerance"),
        pytest.param({"ttft_seconds": 1.3}, False, id="TTFT clearly worse than foretold"),
        pytest.param({"tpot_seconds": 0.06}, False, id="TPOT clearly worse than foretold"),
        pytest.param({"ttft_seconds": 0.1, "tpot_seconds": 0.01}, True, id="better than foretold"),
        pytest.param({"ttft_seconds": None, "tpot_seconds": 0.04}, True, id="only one is known"),
        pytest.param({"ttft_seconds": None, "tpot_seconds": None}, None, id="neither is known"),
    ],
)
def test_whether_it_held(measured: dict[str, Any], *, held: bool | None) -> None:
    (found,) = followed_up(made(), later(seen=windows(**measured)))
    assert found.came is not None
    assert found.came.held is held


ELSEWHERE: dict[str, Any] = {"requests_per_second": 20.0, "running": 300.0}


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(later(THEN), id="not applied"),
        pytest.param(later(EngineKnobs(max_num_seqs=127)), id="another value"),
        pytest.param(later(DONE.updated(kv_cache_dtype="fp8")), id="something else was changed as well"),
        pytest.param(later(replicas=2), id="another number of replicas"),
        pytest.param(later(seen=windows(few=True)), id="too few windows"),
        pytest.param(later(seen=windows(**ELSEWHERE)), id="another load"),
        pytest.param(later(seen=windows(running=None, requests_per_second=None)), id="an unknown load"),
    ],
)
def test_what_was_not_tested_says_nothing(now: Now) -> None:
    assert followed_up(made(), now) == made()


@pytest.mark.parametrize(
    "load",
    [
        pytest.param({"running": 300.0}, id="the same rate, more of them at once"),
        pytest.param({"requests_per_second": 30.0}, id="the same number of clients, served faster"),
        pytest.param({"running": 120.0 * (1 + SAME_LOAD) - 20.0, "requests_per_second": None}, id="just alike"),
    ],
)
def test_a_load_is_alike_by_its_rate_or_by_its_number(load: dict[str, Any]) -> None:
    (found,) = followed_up(made(), later(seen=windows(**load)))
    assert found.came is not None


def test_a_load_that_comes_to_the_foretold_batch_tests_its_tpot_alone() -> None:
    fewer = made(recommended="32", predicted=(Prediction(name="TPOT", unit="s", current=0.06, predicted=0.03),))
    (found,) = followed_up(fewer, later(THEN, seen=windows(running=33.0, waiting=0.0, tpot_seconds=0.05)))
    came = found.came
    assert came is not None
    assert (came.compared_by, came.tpot_seconds, came.ttft_seconds, came.held) == (ComparedBy.LOAD, 0.05, None, False)
    assert followed_up(fewer, later(THEN, seen=windows(running=45.0))) == fewer, "another batch"
    unfilled = (fewer[0].updated(in_system=20.0),)
    assert followed_up(unfilled, later(THEN, seen=windows(running=33.0))) == unfilled, "32 slots were not full"


def test_replicas_are_done_when_there_are_so_many() -> None:
    more = made(knob="replicas", current="1", recommended="2")
    (found,) = followed_up(more, later(THEN, replicas=2))
    assert found.came is not None
    assert followed_up(more, later(THEN, replicas=3)) == more


def test_what_becomes_a_change_of_ours_has_a_verdict_instead() -> None:
    change = ActiveChange(
        id="c",
        epoch=1,
        generation=1,
        knob="maxNumSeqs",
        to_value="128",
        from_=ConfigRef(max_num_seqs=64),
        to=ConfigRef(max_num_seqs=128),
        state=ChangeState.ANALYZING,
    )
    assert followed_up(made(), later(change=change)) == ()
    other = change.updated(to_value="96")
    assert followed_up(made(), later(change=other)) == made(), "while something changes nothing is compared"


def test_what_nothing_tests_is_forgotten_and_what_was_tested_is_not() -> None:
    assert followed_up(made(), later(THEN, at=NOW + KEPT_FOR)) == ()
    tested = followed_up(made(), later())
    assert followed_up(tested, later(at=NOW + 9 * KEPT_FOR)) == tested


def test_a_record_that_was_edited_by_hand_breaks_nothing() -> None:
    for knob, value in (("color", "blue"), ("maxNumSeqs", "many"), ("replicas", "x"), ("maxNumSeqs", "-1")):
        odd = (made()[0].updated(knob=knob, recommended=value, replicas=None),)
        assert followed_up(odd, later()) == odd
