"""Late tokens are named before the queue beside them; that first tokens wait as well is told all the same."""

import pytest
from tests.builders import NOT_MEASURED, SCRAPES, WINDOW, engine, latency, named, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.overloaded import first_tokens_wait
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.observation import Observation

LATE = latency(3.0)
"""The objective is 2 s."""


def waits(seen: Observation) -> bool:
    return first_tokens_wait(Case(observation=seen, targets=targets(), knobs=EngineKnobs()))


def queue_in(scrapes: int) -> list[float]:
    return [9.0 if scrape < scrapes else 0.0 for scrape in range(SCRAPES)]


@pytest.mark.parametrize(
    ("waiting", "ttft", "stalled_for", "expected"),
    [
        pytest.param(queue_in(SCRAPES), LATE, 0.0, True, id="all the time"),
        pytest.param(queue_in(8), LATE, 0.0, True, id="in half of the scrapes"),
        pytest.param(queue_in(7), LATE, 0.0, False, id="less often: a burst that is over"),
        pytest.param(queue_in(SCRAPES), latency(1.9), 0.0, False, id="first tokens come in time all the same"),
        pytest.param(queue_in(SCRAPES), NOT_MEASURED, 0.0, False, id="nobody knows when they come"),
        pytest.param(queue_in(SCRAPES), LATE, WINDOW, False, id="no token moves: a hang is no load"),
    ],
)
def test_first_tokens_wait(waiting: list[float], ttft: Distribution, stalled_for: float, expected: bool) -> None:
    assert waits(observation(engine(waiting=waiting, stalled_for=stalled_for), ttft=ttft)) is expected


def test_one_engine_that_queues_is_enough() -> None:
    seen = observation(engine(waiting=9.0), engine(pod="chat-1"), ttft=LATE)
    assert waits(seen)


def test_the_class_tells_of_the_tokens_only() -> None:
    """All seats are taken and requests wait; a twentieth of lateness in the tokens hides it."""
    queued = engine(running=64.0, waiting=9.0, kv=0.3)
    hidden = observation(queued, ttft=LATE, tpot=latency(0.0525), itl=latency(0.0525))
    assert named(hidden).primary is DiagnosisClass.PAST_TPOT_KNEE
    assert waits(hidden)
    assert named(observation(queued, ttft=LATE)).primary is DiagnosisClass.CONCURRENCY_CAPPED
