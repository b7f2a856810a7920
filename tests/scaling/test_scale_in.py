"""One replica fewer only where the highest load of the last minutes is known to fit on the rest."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import NOW as AT
from tests.builders import WINDOW, engine, latency, observation, targets
from tests.scaling.loads import steps
from tests.scaling.test_replicas import desired

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.observation import FirstTokens, Observation, StepPoint
from vllm_autotuner.performance.step_time import StepTime
from vllm_autotuner.scaling.scale_in import fewer_do, peak_tokens_per_second

TEN_MINUTES = timedelta(minutes=10)


MINUTES = [20.0, 12.0] * 10
"""Ten minutes in half-minute windows."""
EARLIER = [60.0, 60.0]
"""A minute before them, which shows what steps of larger batches take."""


def service(*loads: list[float], kv: float = 0.1, **rest: Any) -> Observation:
    """An engine for each list of batches; pools used to `kv` by 20 sequences."""
    seen = {
        "ttft": latency(0.2),
        "tpot": latency(0.012),
        "recent_output_length": latency(200.0),
        "steps": tuple(p for one in loads for p in steps(one)),
        **rest,
    }
    return observation(*(engine(pod=f"p-{n}", running=20.0, kv=kv) for n, _ in enumerate(loads)), **seen)


def fewer(
    seen: Observation,
    *,
    seats: int | None = 256,
    tpot: float = 0.05,
    ttft: float = 2.0,
    since: float | None = None,
    learned: StepTime | None = None,
) -> str | None:
    case = Case(
        observation=seen,
        targets=targets(ttft=ttft, tpot=tpot),
        knobs=EngineKnobs(max_num_seqs=seats, tensor_parallel_size=1),
        learned={} if learned is None else {1: learned},
    )
    return fewer_do(case, replicas=len(seen.engines), over=TEN_MINUTES, since=since)


def test_the_worked_example() -> None:
    said = fewer(service([*EARLIER, *MINUTES], MINUTES))
    assert said == "1 replica(s) carry the highest load of the last 10 min at batch size 50 and a TPOT of 15 ms"


def test_what_was_never_seen_is_taken_as_slower() -> None:
    said = fewer(service(MINUTES, MINUTES))
    assert said is not None
    assert "at batch size 75 " in said


def test_a_pile_of_before_that_broke_the_line_hides_no_batch_that_was_measured() -> None:
    """110 and 220 sequences were far off the line when the pool was full: nothing is sure of twice as many, all of 50.

    One alone needs 50 at 15 ms, which lies between the measured 36 and 60.
    """
    pile = tuple(
        StepPoint(running=batch, itl=itl, tokens=batch / itl * WINDOW, time=AT - WINDOW * back)
        for back, (batch, itl) in enumerate([(220.0, 0.100), (110.0, 0.024)] * 3, start=len(MINUTES) + 4)
    )
    seen = service([36.0, *EARLIER, *MINUTES], MINUTES)
    said = fewer(replace(seen, steps=(*pile, *seen.steps)))
    assert said is not None
    assert "at batch size 50 " in said


STEADY = service([20.0] * 20, [20.0] * 20)


@pytest.mark.parametrize(
    ("line", "batch"),
    [
        pytest.param(
            StepTime(base=0.01, per_sequence=0.0001, low=10.0, high=60.0, points=9, error=0.01), 50, id="seen"
        ),
        pytest.param(
            StepTime(base=0.01, per_sequence=0.0001, low=10.0, high=20.0, points=9, error=0.01), 75, id="near"
        ),
        pytest.param(
            StepTime(base=0.02, per_sequence=0.0001, low=10.0, high=60.0, points=9, error=0.01), None, id="old"
        ),
        pytest.param(None, None, id="none"),
    ],
)
def test_a_steady_load_is_judged_by_the_line_of_when_it_moved(line: StepTime | None, batch: int | None) -> None:
    said = fewer(STEADY, learned=line)
    assert (said is None) if batch is None else (said is not None and f"at batch size {batch} " in said)


@pytest.mark.parametrize(
    ("seen", "limits"),
    [
        pytest.param(service(MINUTES), {}, id="the last one"),
        pytest.param(service([*EARLIER, *MINUTES], MINUTES), {"tpot": 0.0145}, id="tokens later than their objective"),
        pytest.param(service([*EARLIER, *MINUTES], MINUTES), {"ttft": 0.45}, id="first tokens later than theirs"),
        pytest.param(service([*EARLIER, *MINUTES], MINUTES), {"seats": 52}, id="first tokens wait for a seat"),
        pytest.param(service([*EARLIER, *MINUTES], MINUTES, kv=0.36), {}, id="a pool that holds 50 and no margin"),
        pytest.param(service(MINUTES[:12], MINUTES[:12]), {}, id="six minutes are not ten"),
        pytest.param(service([20.0] * 20, [20.0] * 20), {}, id="no slope was seen"),
        pytest.param(service([100.0, 60.0] * 10, [100.0, 60.0] * 10), {"tpot": 1.0}, id="more than one can make"),
        pytest.param(service(MINUTES, MINUTES, ttft=latency(0.2, count=0)), {}, id="TTFT is not known"),
        pytest.param(service(MINUTES, MINUTES, kv=0.0), {}, id="nobody knows what a sequence takes of the pool"),
        pytest.param(
            service(MINUTES, MINUTES, recent_output_length=latency(200.0, count=0)),
            {},
            id="nobody knows how long a seat is held",
        ),
    ],
)
def test_keeps_the_replica(seen: Observation, limits: dict[str, Any]) -> None:
    assert fewer(seen, **limits) is None


@pytest.mark.parametrize(("share", "fits"), [(None, True), (0.1, True), (0.5, False)])
def test_prompts_that_would_fill_the_time_of_the_rest_keep_the_replica(share: float | None, fits: bool) -> None:
    """Half of the time of two is all of the time of one, whatever tokens and the pool say."""
    seen = service([*EARLIER, *MINUTES], MINUTES)
    seconds = None if share is None else share * seen.engines[0].sampled
    busy = replace(seen, engines=tuple(replace(each, prefill_seconds=seconds) for each in seen.engines))
    assert (fewer(busy) is not None) is fits


@pytest.mark.parametrize(("tokens_per_second", "fits"), [(3333.0, True), (1666.0, False)])
def test_prompts_of_the_highest_load_count(tokens_per_second: float, fits: bool) -> None:
    """At the moment prompts take 0.3 of the time; at the peak, with twice the tokens, they took twice that."""
    seen = service([*EARLIER, *MINUTES], MINUTES)
    calm = tuple(
        replace(each, prefill_seconds=0.3 * each.sampled, generation_tokens=tokens_per_second / 2 * each.sampled)
        for each in seen.engines
    )
    assert (fewer(replace(seen, engines=calm)) is not None) is fits


RISING = [8.0 + 0.6 * minute for minute in range(20)]


@pytest.mark.parametrize(
    ("load", "fits"),
    [
        pytest.param(RISING, False, id="its highest is still to come"),
        pytest.param(RISING[::-1], True, id="it was highest ten minutes ago"),
        pytest.param([14.0, 13.0, 14.0, 15.0] * 5, True, id="it comes and goes"),
        pytest.param(
            [20.0 - 1.4 * half for half in range(10)] + [8.0] * 6 + [10.0, 12.0, 13.0, 14.0],
            False,
            id="it has left a trough",
        ),
    ],
)
def test_no_replica_leaves_while_the_load_rises(load: list[float], fits: bool) -> None:
    assert (fewer(service([*EARLIER, *load], load)) is not None) is fits


def test_a_burst_that_was_late_keeps_the_replica_while_it_is_remembered() -> None:
    """Half an hour ago, with as many replicas as now: what one fewer would have made of it is known well enough."""
    calm = service([*EARLIER, *MINUTES], MINUTES)
    past = tuple(
        FirstTokens(mean=3.0 if back in (40, 41, 42) else 0.2, requests=100.0, time=AT - WINDOW * back)
        for back in range(50)
    )
    assert fewer(replace(calm, first_tokens=past[:40])) is not None
    assert fewer(replace(calm, first_tokens=past)) is None


def test_a_peak_before_the_time_asked_about_does_not_count() -> None:
    assert fewer(service([*EARLIER, *MINUTES], [*EARLIER, *MINUTES])) is not None
    assert fewer(service([*MINUTES, *EARLIER], [*MINUTES, *EARLIER])) is None


def test_the_peak_is_that_of_all_engines_in_one_window() -> None:
    seen = service([10.0] * 19 + [30.0], [10.0] * 18 + [30.0, 10.0])
    together = 10 / 0.011 + 30 / 0.013
    assert peak_tokens_per_second(seen, over=TEN_MINUTES) == pytest.approx(together)


def test_an_engine_that_does_not_report_is_no_spare() -> None:
    seen = service(MINUTES, MINUTES)
    case = Case(observation=seen, targets=targets(), knobs=EngineKnobs())
    assert fewer_do(case, replicas=3, over=TEN_MINUTES) is None


def test_one_leaves_from_what_is_in_order_when_the_newest_has_had_ten_minutes() -> None:
    seen = service([*EARLIER, *MINUTES], MINUTES)
    spare = DiagnosisClass.UNDERUTILIZED
    assert desired(spare, seen=seen, newest=599).replicas == 2
    assert desired(spare, seen=seen, ready=1).replicas == 2
    assert desired(spare, seen=seen, low=2).replicas == 2
    assert desired(DiagnosisClass.UNCLEAR, seen=seen).replicas == 2
    assert desired(DiagnosisClass.HEALTHY, seen=seen, held=599).replicas == 2, "between bursts it is healthy, too"
    for found in (desired(spare, seen=seen, newest=600), desired(DiagnosisClass.HEALTHY, seen=seen, held=600)):
        assert found.replicas == 1
        assert found.reason.startswith("1 replica(s) carry")


@given(load=st.floats(2, 60), more=st.floats(1, 3))
def test_more_load_never_frees_a_replica(load: float, more: float) -> None:
    lighter = service([load, load / 2] * 10, [load, load / 2] * 10)
    heavier = replace(lighter, steps=tuple(replace(one, tokens=one.tokens * more) for one in lighter.steps))
    assert fewer(lighter) is not None or fewer(heavier) is None
