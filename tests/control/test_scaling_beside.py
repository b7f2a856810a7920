"""Which classes get replicas while a change is under way, and which have to wait for its end."""

import pytest
from tests.builders import SCRAPES, engine, observation
from tests.change.worlds import change as begun

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ActiveChange, ChangeState, ChangeTarget
from vllm_autotuner.control.scaling_beside import answers_beside
from vllm_autotuner.diagnosis.classes import DiagnosisClass

LASTING = [9.0] * SCRAPES
COMES_AND_GOES = [9.0 if scrape % 5 < 3 else 0.0 for scrape in range(SCRAPES)]


def change(target: ChangeTarget, state: ChangeState, *, knob: Knob = Knob.MAX_NUM_SEQS) -> ActiveChange:
    return begun(state).model_copy(update={"target": target, "knob": knob.value})


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
    assert answers_beside(change(target, state), diagnosed, observation=seen) is answered


def test_another_length_has_nothing_to_do_with_late_tokens() -> None:
    found = change(ChangeTarget.TTFT, ChangeState.PROVISIONING, knob=Knob.MAX_MODEL_LEN)
    assert answers_beside(found, DiagnosisClass.PAST_TPOT_KNEE, observation=observation())


@pytest.mark.parametrize(("waiting", "answered"), [(LASTING, True), (COMES_AND_GOES, False)])
def test_seats_that_are_nearly_enough_are_judged_first(waiting: list[float], answered: bool) -> None:
    """Replicas beside them would take the credit, and the change would be undone."""
    seen = observation(engine(running=64.0, waiting=waiting))
    found = change(ChangeTarget.TTFT, ChangeState.ANALYZING)
    assert answers_beside(found, DiagnosisClass.CONCURRENCY_CAPPED, observation=seen) is answered
