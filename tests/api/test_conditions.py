"""Conditions: times move only with the status, and abnormal-true conditions are absent rather than False."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.api.conditions import (
    ABNORMAL_TRUE,
    Condition,
    ConditionType,
    Reason,
    find_condition,
    set_condition,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


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
