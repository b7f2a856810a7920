"""Conditions and the kstatus rules: no sequence of updates may mislead Argo CD, Flux or `kubectl wait`."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.api.conditions import (
    ABNORMAL_TRUE,
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    find_condition,
    kstatus_violations,
    set_condition,
)
from vllm_autotuner.api.status import VLLMServiceStatus

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
T, F, U = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


def conditions(**statuses: ConditionStatus) -> tuple[Condition, ...]:
    return tuple(
        Condition(type=name, status=status, reason="Test", last_transition_time=NOON, observed_generation=2)
        for name, status in statuses.items()
    )


def set_ready(
    before: tuple[Condition, ...], status: bool, *, minute: int, reason: Reason = Reason.SERVING
) -> tuple[Condition, ...]:
    return set_condition(
        before,
        type=ConditionType.READY,
        status=status,
        reason=reason,
        message=f"at minute {minute}",
        observed_generation=minute,
        now=NOON + timedelta(minutes=minute, microseconds=7),
    )


def test_only_a_flip_moves_the_transition_time() -> None:
    first = set_ready((), True, minute=0)
    second = set_ready(first, True, minute=1)
    third = set_ready(second, False, minute=2, reason=Reason.REPLICAS_UNAVAILABLE)
    assert [found[0].last_transition_time for found in (first, second, third)] == [
        NOON,
        NOON,
        NOON + timedelta(minutes=2),
    ]
    assert second[0].message == "at minute 1"
    assert second[0].observed_generation == 1


@pytest.mark.parametrize("abnormal", sorted(ABNORMAL_TRUE))
def test_an_abnormal_condition_is_absent_rather_than_false(abnormal: ConditionType) -> None:
    def put(before: tuple[Condition, ...], status: bool) -> tuple[Condition, ...]:
        return set_condition(
            before, type=abnormal, status=status, reason="Test", message="", observed_generation=1, now=NOON
        )

    assert put((), False) == ()
    assert find_condition(put((), True), abnormal) is not None
    assert put(put((), True), False) == ()


@given(st.lists(st.tuples(st.sampled_from(sorted(ConditionType)), st.booleans()), max_size=30))
def test_the_conditions_stay_a_map_in_stable_order(updates: list[tuple[ConditionType, bool]]) -> None:
    found: tuple[Condition, ...] = ()
    for kind, status in updates:
        before = [condition.type for condition in found]
        found = set_condition(
            found, type=kind, status=status, reason="Test", message="", observed_generation=1, now=NOON
        )
        after = [condition.type for condition in found]
        assert len(set(after)) == len(after)
        assert [name for name in before if name in after] == [name for name in after if name in before]


@pytest.mark.parametrize(
    "statuses",
    [
        pytest.param({"Ready": U, "Reconciling": T}, id="first apply"),
        pytest.param({"Ready": F, "Reconciling": T}, id="the workload rolls"),
        pytest.param({"Ready": T, "MetricsAvailable": T}, id="serving, idle"),
        pytest.param({"Ready": T, "TuningInProgress": T}, id="a canary under way"),
        pytest.param({"Ready": T, "LastChangeSucceeded": F}, id="a change rolled back"),
        pytest.param({"Ready": T, "MetricsAvailable": F}, id="metrics gone"),
        pytest.param({"Ready": T, "Paused": T, "CircuitOpen": T}, id="paused by a person"),
        pytest.param({"Ready": F, "Stalled": T}, id="an invalid spec"),
        pytest.param({"Ready": F, "Stalled": T, "RollbackFailed": T}, id="the rollback failed"),
    ],
)
def test_every_situation_of_the_design_is_conformant(statuses: dict[str, ConditionStatus]) -> None:
    status = VLLMServiceStatus(observed_generation=2, conditions=conditions(**statuses))
    assert kstatus_violations(status, 2) == []


@pytest.mark.parametrize(
    ("statuses", "observed", "named"),
    [
        pytest.param({"Ready": T, "Stalled": T}, 2, "Ready=True beside an abnormal condition", id="FAIL0001"),
        pytest.param({"MetricsAvailable": T}, 2, "Ready is absent", id="FAIL0002"),
        pytest.param({"Ready": T, "Reconciling": T}, 2, "Ready=True beside", id="FAIL0003"),
        pytest.param({"Ready": U, "Stalled": T}, 2, "Stalled=True needs Ready=False", id="FAIL0004"),
        pytest.param({"Ready": F, "Stalled": T, "Reconciling": T}, 2, "at once", id="FAIL0005"),
        pytest.param({"Ready": F, "Reconciling": T}, 3, "ahead of the object", id="FAIL0006"),
        pytest.param({"Ready": T}, 1, "not observed", id="FAIL0007"),
        pytest.param({"Ready": U}, 2, "Ready=Unknown needs Reconciling", id="FAIL0011"),
        pytest.param({"Ready": T, "Paused": F}, 2, "instead of absent", id="abnormal but False"),
        pytest.param({"Ready": F, "RollbackFailed": T}, 2, "needs Stalled", id="a failed rollback that hopes"),
    ],
)
def test_what_would_mislead_is_named(statuses: dict[str, ConditionStatus], observed: int, named: str) -> None:
    status = VLLMServiceStatus(observed_generation=observed, conditions=conditions(**statuses))
    assert any(named in violation for violation in kstatus_violations(status, 2))


def test_readiness_judged_on_another_generation_is_named() -> None:
    ready = conditions(Ready=T)[0].model_copy(update={"observed_generation": 1})
    status = VLLMServiceStatus(observed_generation=2, conditions=(ready,))
    assert kstatus_violations(status, 2) == ["Ready=True judged another generation than status.observedGeneration"]
