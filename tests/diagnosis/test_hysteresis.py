from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.builders import NOW, diagnosed, engine, latency, no_answer, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis, History
from vllm_autotuner.observation.observation import Observation

HEALTHY = observation()
FULL = observation(engine(running=60, waiting=21, kv=0.998), ttft=latency(9.0))
SEATS = observation(engine(running=64, waiting=30, kv=0.5), ttft=latency(9.0))
UNCLEAR = observation(engine(waiting=[0, 1] * 7 + [1]))
BLIND = observation(problem=no_answer())
TICK = 15.0


def evaluated(states: Sequence[Observation]) -> list[Diagnosis]:
    history, found = History(), []
    for tick, state in enumerate(states):
        named, history = diagnosed(
            replace(state, at=NOW + TICK * tick),
            targets=targets(),
            knobs=EngineKnobs(max_num_seqs=64),
            history=history,
        )
        found.append(named)
    return found


H, K, C, U, B = (
    DiagnosisClass.HEALTHY,
    DiagnosisClass.KV_CACHE_SATURATED,
    DiagnosisClass.CONCURRENCY_CAPPED,
    DiagnosisClass.UNCLEAR,
    DiagnosisClass.METRICS_BLIND,
)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        pytest.param([FULL], [K], id="the first evaluation names what it sees"),
        pytest.param([HEALTHY, FULL, FULL], [H, H, K], id="a change is named when it is seen twice"),
        pytest.param([HEALTHY, FULL, HEALTHY, HEALTHY], [H, H, H, H], id="a single outlier is not named"),
        pytest.param([HEALTHY, FULL, HEALTHY, FULL, FULL], [H, H, H, H, K], id="twice means in a row"),
        pytest.param([HEALTHY, BLIND], [H, B], id="not knowing is said at once"),
        pytest.param([BLIND, FULL], [B, K], id="and is over at once"),
        pytest.param([FULL, UNCLEAR, HEALTHY, UNCLEAR, HEALTHY], [K, K, K, K, H], id="an unsupported name falls"),
        pytest.param([FULL, SEATS, SEATS], [K, K, C], id="from one limit to the other"),
    ],
)
def test_what_is_named_when(states: Sequence[Observation], expected: Sequence[DiagnosisClass]) -> None:
    assert [found.primary for found in evaluated(states)] == list(expected)


def test_a_burst_that_no_class_is_named_for_ends_the_time_without_requests() -> None:
    """With bursts of half a minute every five it is never idle for longer, though it is always named so."""
    nothing = engine(running=0, kv=0.0, finished=0.0, generation_tokens=0.0, prompt_tokens=0.0)
    quiet, burst = observation(nothing), observation()
    found = evaluated([*[quiet] * 10, burst, *[quiet] * 10])
    assert {each.primary for each in found} == {DiagnosisClass.IDLE}
    assert [each.since - NOW for each in (found[9], found[10], found[-1])] == [0, 10 * TICK, 10 * TICK]


def test_a_pod_that_was_scraped_once_does_not_end_the_time_without_requests() -> None:
    nothing = engine(running=0, kv=0.0, finished=0.0, generation_tokens=0.0, prompt_tokens=0.0)
    uncounted = engine(running=0, finished=None, generation_tokens=None, prompt_tokens=None, scrapes=1)
    found = evaluated([observation(nothing)] * 10 + [observation(uncounted, nothing)] * 6)
    assert [(each.primary, each.since - NOW) for each in found] == [(DiagnosisClass.IDLE, 0)] * 16


def test_since_is_when_it_was_named() -> None:
    found = evaluated([HEALTHY, HEALTHY, FULL, FULL, FULL])
    assert [one.since - NOW for one in found] == [0, 0, 0, 45, 45]


def test_a_class_that_goes_on_carries_the_newest_figures() -> None:
    busier = observation(engine(running=60, waiting=77, kv=0.998), ttft=latency(9.0))
    assert "77 requests wait" in evaluated([FULL, busier])[-1].message


def test_while_a_change_is_unconfirmed_the_earlier_diagnosis_stands_as_a_whole() -> None:
    first, second = evaluated([HEALTHY, FULL])
    assert second == first


def test_a_named_queue_needs_less_to_stay_than_to_be_named() -> None:
    """60 % of scrapes: too few to be named, enough to stay."""
    waiting = [1] * 9 + [0] * 6
    fading = observation(engine(running=60, waiting=waiting, kv=0.998), ttft=latency(9.0))
    assert evaluated([fading])[-1].primary is not K
    assert [one.primary for one in evaluated([FULL, fading, fading, fading])] == [K] * 4


def test_the_history_of_one_service_does_not_leak() -> None:
    assert evaluated([FULL])[-1] == evaluated([FULL])[-1]
