"""More seats or a replica: the seats are tried where they save one, and not where it is needed all the same."""

from dataclasses import replace

import pytest
from tests.builders import engine, latency, observation
from tests.planning.situations import line, scaling, served, situation, with_steps

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.spec import Scaling
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.planning.engines_in_general import seconds_alone, seconds_per_sequence
from vllm_autotuner.planning.instead_of_seats import saves_no_replica
from vllm_autotuner.planning.placement import FreeGpus
from vllm_autotuner.planning.plan import plan
from vllm_autotuner.planning.platform import Platform
from vllm_autotuner.planning.situation import Situation

STEPS = line(20.0, 50.0, 80.0, base=0.02, per_sequence=0.0003)
"""80 sequences take 44 ms a token; inside 50 ms, less a tenth, are 83."""


def capped(waiting: float, *, tpot: float, seats: float = 80.0) -> Observation:
    """All seats are taken; 1,024 prompt tokens and 256 output tokens a request."""
    itl = latency(tpot)
    return served(observation(engine(running=seats, waiting=waiting, kv=0.2), ttft=latency(5.0), tpot=itl, itl=itl))


def of(seen: Observation, *, seats: int = 80, scale: Scaling | None = None, replicas: int = 1) -> Situation:
    return situation(
        seen, primary=DiagnosisClass.CONCURRENCY_CAPPED, seats=seats, scale=scale or scaling(), replicas=replicas
    )


@pytest.mark.parametrize(
    ("waiting", "value", "most", "refused"),
    [
        pytest.param(34.0, 92, 4, True, id="114 requests: two replicas with 92 seats as with 80"),
        pytest.param(34.0, 114, 4, False, id="114 seats need one"),
        pytest.param(170.0, 160, 4, False, id="250 requests: four replicas with 80 seats, two with 160"),
        pytest.param(170.0, 88, 4, False, id="three instead of four"),
        pytest.param(170.0, 88, 3, False, id="not even the most replicas hold them: every seat counts"),
        pytest.param(0.0, 88, 4, False, id="80 requests need no replica"),
    ],
)
def test_seats_that_save_no_replica(waiting: float, value: int, most: int, refused: bool) -> None:
    seen = with_steps(capped(waiting, tpot=0.04), STEPS)
    assert bool(saves_no_replica(of(seen, scale=scaling(high=most)), seats=80, value=value)) is refused


def test_replicas_that_are_there_are_not_needed_anew() -> None:
    """Two engines with 114 requests between them have room: what waits on one is not for more replicas."""
    busy, idle = engine(running=80.0, waiting=14.0), engine(pod="chat-1", running=20.0)
    seen = with_steps(observation(busy, idle, tpot=latency(0.04), itl=latency(0.04)), STEPS)
    assert saves_no_replica(of(seen, replicas=2), seats=80, value=92) == ""


def test_replicas_that_are_the_users_own_or_find_no_gpu_are_no_alternative() -> None:
    given = of(with_steps(capped(34.0, tpot=0.04), STEPS))
    assert saves_no_replica(given, seats=80, value=92)
    assert saves_no_replica(replace(given, scaling=None), seats=80, value=92) == ""
    full = Platform(free_gpus=FreeGpus(free=(), largest_node=8))
    assert saves_no_replica(replace(given, platform=full), seats=80, value=92) == ""


@pytest.mark.parametrize(
    ("tpot", "knob"),
    [
        pytest.param(0.044, Knob.REPLICAS, id="tokens have no time for more seats"),
        pytest.param(0.020, Knob.MAX_NUM_SEQS, id="they have for all that are asked for"),
    ],
)
def test_before_a_model_is_known_engines_in_general_tell_what_a_trial_is_worth(tpot: float, knob: Knob) -> None:
    """114 requests on 80 seats; the objective is 50 ms, less a tenth."""
    found = plan(of(capped(34.0, tpot=tpot))).proposal
    assert found is not None
    assert found.knob is knob
    assert knob is Knob.REPLICAS or found.value == 114, "they choose no value"


def test_a_model_is_asked_instead_of_engines_in_general() -> None:
    """By its own windows this one takes hardly longer with more: 114 seats are in time at 44 ms, too."""
    flat = line(20.0, 50.0, 80.0, base=0.036, per_sequence=0.00005)
    found = plan(of(with_steps(capped(34.0, tpot=0.04), flat))).proposal
    assert found is not None
    assert (found.knob, found.value) == (Knob.MAX_NUM_SEQS, 114)


def test_engines_in_general() -> None:
    """1,152 tokens held each: 80 * (0.004 + 0.004 * 1.152) = 69 % of an empty step on top of it."""
    given = of(capped(34.0, tpot=0.04))
    alone, each = seconds_alone(given), seconds_per_sequence(given)
    itl = given.observation.itl.mean
    assert alone is not None
    assert each is not None
    assert alone == pytest.approx(getattr(itl, "value", 0.0) / 1.6886, rel=1e-3)
    assert each == pytest.approx(0.6886 * alone / 80, rel=1e-3)


def test_nothing_is_said_of_an_engine_that_tells_no_lengths() -> None:
    seen = observation(engine(running=80.0, waiting=34.0, finished=None), tpot=latency(0.044), itl=latency(0.044))
    given = of(seen)
    assert seconds_alone(given) is None
    assert seconds_per_sequence(given) is None
    assert saves_no_replica(given, seats=80, value=114) == "", "then the trial tells"
