"""Which change need not wait for the end of the cooldown: one that goes on from what was kept."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import HistoryEntry, Outcome
from vllm_autotuner.guardrails.cooldown import goes_on

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
COOLDOWN = timedelta(hours=6)


def ended(
    start: str | None,
    end: str,
    *,
    knob: str = "maxNumSeqs",
    outcome: Outcome = Outcome.SUCCEEDED,
    ago: timedelta | None = timedelta(minutes=1),
) -> HistoryEntry:
    finished = None if ago is None else NOW - ago
    return HistoryEntry(id="c1", knob=knob, from_value=start, to_value=end, outcome=outcome, finished_at=finished)


@pytest.mark.parametrize(
    ("history", "knob", "value", "expected"),
    [
        pytest.param([ended("13", "26")], Knob.MAX_NUM_SEQS, 52, True, id="the second doubling"),
        pytest.param([ended("52", "26")], Knob.MAX_NUM_SEQS, 13, True, id="the second halving"),
        pytest.param([ended("13", "26")], Knob.MAX_NUM_SEQS, 13, False, id="the way back"),
        pytest.param([ended("13", "26")], Knob.MAX_NUM_SEQS, 20, False, id="half of the way back"),
        pytest.param([ended("13", "26")], Knob.MAX_NUM_SEQS, 26, False, id="the same again"),
        pytest.param([ended(None, "205")], Knob.MAX_NUM_SEQS, 410, False, id="from a default that is not known"),
        pytest.param([ended("13", "")], Knob.MAX_NUM_SEQS, 52, False, id="a history that somebody edited"),
        pytest.param([ended("auto", "fp8", knob="kvCacheDtype")], Knob.MAX_NUM_SEQS, 205, True, id="another knob"),
        pytest.param([ended("auto", "fp8", knob="kvCacheDtype")], Knob.KV_CACHE_DTYPE, "auto", False, id="back"),
        pytest.param([ended("13", "26", outcome=Outcome.ROLLED_BACK)], Knob.KV_CACHE_DTYPE, "fp8", False, id="harm"),
        pytest.param([ended("13", "26", outcome=Outcome.REJECTED)], Knob.MAX_NUM_SEQS, 52, False, id="not placed"),
        pytest.param(
            [ended("13", "26"), ended("auto", "fp8", knob="kvCacheDtype")],
            Knob.MAX_NUM_SEQS,
            13,
            False,
            id="the way back, another change later",
        ),
        pytest.param(
            [ended("64", "32", ago=timedelta(hours=7)), ended("auto", "fp8", knob="kvCacheDtype")],
            Knob.MAX_NUM_SEQS,
            64,
            True,
            id="back to what was left before the cooldown",
        ),
        pytest.param([], Knob.MAX_NUM_SEQS, 52, False, id="nothing is known of the change that is waited for"),
        pytest.param([ended("13", "26", ago=None)], Knob.MAX_NUM_SEQS, 52, True, id="when it ended is not known"),
        pytest.param([ended("13", "26", ago=None)], Knob.MAX_NUM_SEQS, 20, False, id="back, and not known when"),
        pytest.param(
            [ended("13", "26", outcome=Outcome.ROLLED_BACK, ago=None)],
            Knob.MAX_NUM_SEQS,
            52,
            False,
            id="harm, and not known when",
        ),
        pytest.param(
            [ended("13", "26", ago=timedelta(hours=7))],
            Knob.MAX_NUM_SEQS,
            52,
            True,
            id="a cooldown that was lowered after the change",
        ),
        pytest.param([ended("1" * 5000, "26")], Knob.MAX_NUM_SEQS, 52, False, id="a number without end"),
    ],
)
def test_what_goes_on(history: list[HistoryEntry], knob: Knob, value: int | str, expected: bool) -> None:
    assert goes_on(knob, value, history=history, cooldown=COOLDOWN, now=NOW) is expected


@given(start=st.integers(1, 2048), end=st.integers(1, 2048), value=st.integers(1, 2048))
def test_never_there_and_back_within_the_cooldown(start: int, end: int, value: int) -> None:
    found = goes_on(Knob.MAX_NUM_SEQS, value, history=[ended(str(start), str(end))], cooldown=COOLDOWN, now=NOW)
    assert found == (start < end < value or value < end < start)
