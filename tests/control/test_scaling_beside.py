"""Which classes get replicas while a change is under way, and which have to wait for its end."""

import pytest
from tests.builders import SCRAPES, engine, latency, observation, targets
from tests.change.worlds import change as begun

from vllm_autotuner.api.change_records import ConfigRef
from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.status import ActiveChange, ChangeState, ChangeTarget
from vllm_autotuner.control.decide.scaling_during_change import may_scale_during
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.observation import Observation

LASTING = [9.0] * SCRAPES
COMES_AND_GOES = [9.0 if scrape % 5 < 3 else 0.0 for scrape in range(SCRAPES)]


def case(seen: Observation) -> Case:
    return Case(observation=seen, targets=targets(), knobs=EngineKnobs())


def change(target: ChangeTarget, state: ChangeState, *, knob: Knob = Knob.MAX_NUM_SEQS) -> ActiveChange:
    return begun(state).updated(target=target, knob=knob.value)


@pytest.mark.parametrize(
    ("target", "state", "diagnosed", "answered"),
    [
        pytest.param(
            ChangeTarget.TPOT,
            ChangeState.ANALYZING,
            DiagnosisClass.PAST_TPOT_KNEE,
            True,
            id="fewer seats serve, and tokens are late all the same",
        ),
        pytest.param(
            ChangeTarget.TPOT,
            ChangeState.PROVISIONING,
            DiagnosisClass.PAST_TPOT_KNEE,
            False,
            id="fewer seats may be all that late tokens need",
        ),
        pytest.param(
            ChangeTarget.TTFT,
            ChangeState.ANALYZING,
            DiagnosisClass.PAST_TPOT_KNEE,
            False,
            id="late tokens may be the doing of more seats",
        ),
        pytest.param(
            ChangeTarget.TTFT, ChangeState.BAKING, DiagnosisClass.PAST_TPOT_KNEE, True, id="it was found to be good"
        ),
        pytest.param(
            ChangeTarget.TPOT,
            ChangeState.ANALYZING,
            DiagnosisClass.CONCURRENCY_CAPPED,
            False,
            id="a queue may be the doing of fewer seats",
        ),
    ],
)
def test_what_the_change_may_have_done_waits_for_its_end(
    target: ChangeTarget, state: ChangeState, diagnosed: DiagnosisClass, answered: bool
) -> None:
    seen = observation(engine(running=64.0, waiting=LASTING))
    assert may_scale_during(change(target, state), diagnosed, case=case(seen)) is answered


@pytest.mark.parametrize(
    ("state", "waiting", "ttft", "answered"),
    [
        pytest.param(ChangeState.ANALYZING, LASTING, 3.0, True, id="more seats serve, and a queue lasts all the same"),
        pytest.param(ChangeState.ANALYZING, COMES_AND_GOES, 3.0, False, id="the seats may be nearly enough"),
        pytest.param(ChangeState.PROVISIONING, LASTING, 3.0, False, id="the seats that end it are on their way"),
        pytest.param(ChangeState.ANALYZING, LASTING, 0.2, False, id="first tokens come in time"),
    ],
)
def test_a_queue_behind_slow_tokens_is_one_that_max_num_seqs_may_end(
    state: ChangeState, waiting: list[float], ttft: float, answered: bool
) -> None:
    seen = observation(engine(running=64.0, waiting=waiting), ttft=latency(ttft))
    found = change(ChangeTarget.TTFT, state)
    assert may_scale_during(found, DiagnosisClass.PAST_TPOT_KNEE, case=case(seen)) is answered


@pytest.mark.parametrize("before", [1024, None])
@pytest.mark.parametrize(
    ("state", "diagnosed", "answered"),
    [
        (ChangeState.PROVISIONING, DiagnosisClass.KV_CACHE_SATURATED, False),
        (ChangeState.ANALYZING, DiagnosisClass.KV_CACHE_SATURATED, True),
        (ChangeState.ANALYZING, DiagnosisClass.PREEMPTION_THRASH, True),
        (ChangeState.ANALYZING, DiagnosisClass.CONCURRENCY_CAPPED, False),
        (ChangeState.PROVISIONING, DiagnosisClass.OVERLOADED, True),
    ],
)
@pytest.mark.parametrize("target", [ChangeTarget.TTFT, ChangeTarget.GPUS])
def test_fewer_slots_for_a_larger_cache_are_not_more_slots(
    before: int | None, state: ChangeState, diagnosed: DiagnosisClass, answered: bool, target: ChangeTarget
) -> None:
    found = change(target, state).updated(from_=ConfigRef(max_num_seqs=before), to=ConfigRef(max_num_seqs=205))
    seen = observation(engine(running=20.0, waiting=LASTING))
    assert may_scale_during(found, diagnosed, case=case(seen)) is answered


def test_another_length_has_nothing_to_do_with_late_tokens() -> None:
    found = change(ChangeTarget.TTFT, ChangeState.PROVISIONING, knob=Knob.MAX_MODEL_LEN)
    assert may_scale_during(found, DiagnosisClass.PAST_TPOT_KNEE, case=case(observation()))


@pytest.mark.parametrize(("waiting", "answered"), [(LASTING, True), (COMES_AND_GOES, False)])
def test_a_max_num_seqs_that_is_nearly_enough_is_judged_first(waiting: list[float], answered: bool) -> None:
    """Replicas beside them would take the credit, and the change would be undone."""
    seen = observation(engine(running=64.0, waiting=waiting))
    found = change(ChangeTarget.TTFT, ChangeState.ANALYZING)
    assert may_scale_during(found, DiagnosisClass.CONCURRENCY_CAPPED, case=case(seen)) is answered
