"""The ledger: a finished change says what it was decided on, what was foreseen, and what was measured."""

import json

from tests.control.desk import CAPPED, HARMED, HELPED, desk
from tests.control.test_reporting import PROPOSAL
from tests.invariants.values import LARGEST_STATUS

from vllm_autotuner.api.grounds import GROUNDS_LENGTH, Confidence, Evidence, Grounds, Prediction
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.status import HISTORY_LENGTH, Outcome
from vllm_autotuner.control.decide.status_evidence import grounds_of
from vllm_autotuner.guardrails.reasons import HoldReason


def test_a_change_carries_its_grounds_into_the_history() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    change = found.read.active_change
    assert change is not None
    assert change.grounds is not None
    found.until(None, HELPED)
    entry = found.read.history[-1]
    assert (entry.outcome, entry.grounds) == (Outcome.SUCCEEDED, change.grounds)
    assert change.grounds.diagnosis == "ConcurrencyCapped"
    assert {fact.name for fact in change.grounds.evidence if fact.value is not None}
    assert entry.windows_good is not None
    assert entry.windows_good >= 3
    assert entry.before is not None
    assert entry.after is not None
    assert (entry.before.ttft_seconds or 0) > (entry.after.ttft_seconds or 0)


def test_what_was_foreseen_is_written_with_three_digits() -> None:
    found = desk()
    found.ticks(3, CAPPED)
    assert found.last is not None
    grounds = grounds_of(PROPOSAL, found.last.diagnosis)
    assert (grounds.diagnosis, grounds.confidence) == ("ConcurrencyCapped", PROPOSAL.confidence)
    assert [(each.name, each.current, each.predicted) for each in grounds.predicted] == [("TPOT", 0.0312, 0.0412)]


def test_the_windows_that_spoke_against_it_are_counted() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    found.until(None, HARMED)
    entry = found.read.history[-1]
    assert entry.outcome is Outcome.ROLLED_BACK
    assert (entry.windows_bad or 0) > (entry.windows_good or 0)


def test_a_full_ledger_leaves_room_in_the_status() -> None:
    """T35: ten changes with all that each may say."""
    found = desk()
    found.until("Provisioning", CAPPED)
    found.until(None, HELPED)
    fact = Evidence(name="n" * 40, value=2.3e-7, unit="u" * 20, threshold=1.23456e-7, window="1h30m", note="x" * 999)
    foreseen = Prediction(name="n" * 40, unit="u" * 20, current=1.23456e-7, predicted=1.23456e-7)
    full = Grounds(
        diagnosis="d" * 30,
        confidence=Confidence.HIGH,
        evidence=(fact,) * 2 * GROUNDS_LENGTH,
        predicted=(foreseen,) * 2 * GROUNDS_LENGTH,
    )
    assert (len(full.evidence), len(full.predicted)) == (GROUNDS_LENGTH, GROUNDS_LENGTH)
    entry = found.read.history[-1].updated(grounds=full, reason="y" * 256)
    status = found.read.updated(history=(entry,) * HISTORY_LENGTH)
    assert len(json.dumps(to_wire(status)).encode()) < LARGEST_STATUS * 2 // 3


def test_what_holds_a_recommendation_is_a_constant() -> None:
    found = desk(tuning__mode="Recommend")
    found.ticks(3, CAPPED)
    recommendation = found.read.recommendation
    assert recommendation is not None
    assert recommendation.held_by == HoldReason.MODE
    found.edit(tuning__mode="Automatic", paused=True)
    found.ticks(2, CAPPED)
    recommendation = found.read.recommendation
    assert recommendation is not None
    assert recommendation.held_by == HoldReason.PAUSED
