"""What the status remembers of scale-ins, as the plan and `explain` ask for it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.builders import NOW as AT
from tests.change.worlds import change
from tests.control.desk import CAPPED, Desk
from tests.planning.situations import scaling, steady

from vllm_autotuner.api.scale_ins import ScaleInTried
from vllm_autotuner.api.status import ChangeState, Effective, VLLMServiceStatus
from vllm_autotuner.control.decide.scaling_history import replicas_too_few, scale_ins_after
from vllm_autotuner.observation.engine_window import StepPoint
from vllm_autotuner.scaling.request_rate import peak_tokens_per_second
from vllm_autotuner.scaling.supply import Scale

NOW = datetime.fromtimestamp(AT, tz=UTC)
TWO_ENGINES = steady(9, 18, 12, base=0.014, per_sequence=0.0003)


@pytest.mark.parametrize(
    ("tried", "found"),
    [
        pytest.param({}, 1, id="it failed an hour ago, at this load"),
        pytest.param({"tokens_per_second": None}, 0, id="at a load that is not known"),
        pytest.param({"failed_at": None}, 0, id="it is on trial"),
        pytest.param({"failed_at": NOW - timedelta(days=1)}, 0, id="a day ago"),
        pytest.param({"config_hash": "b"}, 0, id="with another setting"),
        pytest.param({"share": 1.2}, 0, id="at a clearly higher load"),
    ],
)
def test_replicas_that_were_too_few_for_a_load_like_that_of_now(tried: dict[str, Any], found: int) -> None:
    load = peak_tokens_per_second(TWO_ENGINES, over=timedelta(minutes=10))
    assert load is not None
    given = {"config_hash": "a", "failed_at": NOW - timedelta(hours=1), "tokens_per_second": load, **tried}
    if share := given.pop("share", None):
        given["tokens_per_second"] = share * load
    status = VLLMServiceStatus(
        effective=Effective(config_hash="a", replicas=2),
        scale_ins=(ScaleInTried(replicas=1, at=NOW - timedelta(hours=2), **given),),
    )
    assert replicas_too_few(status, TWO_ENGINES, scaling=scaling(), now=NOW) == found
    assert replicas_too_few(status, TWO_ENGINES, scaling=None, now=NOW) == 0
    by_others = status.updated(effective=Effective(config_hash="a"))
    assert replicas_too_few(by_others, TWO_ENGINES, scaling=scaling(), now=NOW) == 0
    trying = status.updated(active_change=change(ChangeState.ANALYZING))
    assert replicas_too_few(trying, TWO_ENGINES, scaling=scaling(), now=NOW) == 0


def test_replicas_that_are_added_during_a_change_say_nothing_of_fewer() -> None:
    """What was too few ran a trial's pods beside its own, or another configuration."""
    desk = Desk()
    desk.edit(scaling={"minReplicas": 1, "maxReplicas": 4}, replicas=None)
    desk.ticks(2, CAPPED)
    inputs, more = desk.inputs(CAPPED), Scale(replicas=2, reason="", lacking=True)
    effective = desk.read.effective
    assert effective is not None
    status = desk.read.updated(
        active_change=None,
        scale_ins=(ScaleInTried(replicas=1, at=desk.now - timedelta(hours=2), config_hash=effective.config_hash),),
    )
    (failed,) = scale_ins_after(status, more, inputs=inputs)
    assert failed.failed_at == desk.now
    trying = status.updated(active_change=change(ChangeState.ANALYZING))
    assert scale_ins_after(trying, more, inputs=inputs) == status.scale_ins
    # The only pod hangs: one that serves was not tried (closed loop, wedge 680).
    hung = tuple(replace(each, stalled_for=inputs.observation.window) for each in inputs.observation.engines)
    hangs = replace(inputs, observation=replace(inputs.observation, engines=hung))
    assert scale_ins_after(status, more, inputs=hangs) == status.scale_ins


def test_a_load_that_has_just_risen_is_remembered_as_it_is_now() -> None:
    """Five minutes of which four were before the step: by their mean a third of the load would be too much."""
    desk = Desk()
    desk.edit(scaling={"minReplicas": 1, "maxReplicas": 4}, replicas=None)
    desk.ticks(2, CAPPED)
    effective, now = desk.read.effective, CAPPED.generated_per_second
    assert effective is not None
    assert now is not None
    steps = tuple(
        StepPoint(
            running=1.0,
            itl=0.02,
            tokens=now * CAPPED.window * (1.0 if age < 2 else 0.1),
            time=CAPPED.at - CAPPED.window * age,
        )
        for age in range(12)
    )
    seen = replace(CAPPED, steps=steps)
    tried = ScaleInTried(replicas=1, at=desk.now - timedelta(hours=2), config_hash=effective.config_hash)
    status = desk.read.updated(active_change=None, scale_ins=(tried,))
    (failed,) = scale_ins_after(status, Scale(replicas=2, reason="", lacking=True), inputs=desk.inputs(seen))
    assert failed.tokens_per_second == pytest.approx(now)
