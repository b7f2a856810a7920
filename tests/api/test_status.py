"""Status: survives a round trip, tolerates unknown fields, and never becomes empty by mistake."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.api.cases import SMALLEST

from vllm_autotuner.api.fields import MESSAGE_MAX_LENGTH
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import InvalidReason, InvalidService, parse_service
from vllm_autotuner.api.status import (
    EVIDENCE_LENGTH,
    FAILURE_MEMORY_LENGTH,
    HISTORY_LENGTH,
    RECORD_LENGTH,
    UNTOLD_LENGTH,
    ActiveChange,
    Analysis,
    Came,
    ChangeState,
    ChangeTarget,
    ComparedBy,
    ConfigRef,
    Contribution,
    DiagnosisStatus,
    Evidence,
    FailedCandidate,
    Foretold,
    HistoryEntry,
    Measurement,
    Outcome,
    Prediction,
    StatusUnreadable,
    UntoldEvent,
    VLLMServiceStatus,
    parse_status,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def active_change() -> ActiveChange:
    return ActiveChange(
        id="c1",
        generation=3,
        knob="maxNumSeqs",
        from_value="128",
        to_value="64",
        from_=ConfigRef(max_num_seqs=128, config_hash="aaaa"),
        to=ConfigRef(max_num_seqs=64, config_hash="bbbb"),
        target=ChangeTarget.TPOT,
        state=ChangeState.ANALYZING,
        state_since=NOON,
        deadline=NOON + timedelta(minutes=5, microseconds=250_000),
        baseline=Measurement(at=NOON, ttft_seconds=0.8, tpot_seconds=0.061, running=64.0),
        analysis=Analysis(started_at=NOON, windows_good=2, last=(Measurement(at=NOON, tpot_seconds=0.04),)),
    )


def test_a_change_under_way_survives_the_wire() -> None:
    status = VLLMServiceStatus(observed_generation=3, active_change=active_change())
    wire = json.loads(json.dumps(to_wire(status)))
    assert wire["activeChange"]["from"] == {"maxNumSeqs": 128, "configHash": "aaaa"}
    assert wire["activeChange"]["stateSince"] == "2026-03-01T12:00:00Z"
    assert wire["activeChange"]["deadline"] == "2026-03-01T12:05:00.250000Z"
    assert parse_status(wire) == status


def test_nothing_known_is_absent_not_null() -> None:
    assert "null" not in json.dumps(to_wire(VLLMServiceStatus(active_change=active_change())))


@pytest.mark.fault("T34")
@pytest.mark.parametrize("raw", [None, {}, {"conditions": [], "newField": {"a": 1}}], ids=["absent", "empty", "newer"])
def test_tolerates(raw: dict[str, Any] | None) -> None:
    assert parse_status(raw) == VLLMServiceStatus()


@pytest.mark.fault("T34")
@pytest.mark.parametrize(
    ("raw", "named"),
    [
        pytest.param({"activeChange": {"id": "c1"}}, "activeChange.generation: Field required", id="half a change"),
        pytest.param({"observedGeneration": "many"}, "status.observedGeneration", id="a text for a number"),
        pytest.param({"cooldownUntil": "tomorrow"}, "status.cooldownUntil", id="a time that is none"),
        pytest.param({"cooldownUntil": "2026-03-01T12:00:00"}, "status.cooldownUntil", id="a time without a zone"),
        pytest.param({"history": {}}, "status.history", id="an object for a list"),
    ],
)
def test_a_status_edited_into_nonsense_is_refused_and_not_forgotten(raw: dict[str, Any], named: str) -> None:
    with pytest.raises(StatusUnreadable, match=named):
        parse_status(raw)
    parsed = parse_service(
        {"metadata": {"name": "chat", "namespace": "prod"}, "spec": dict(SMALLEST), "status": raw},
    )
    assert isinstance(parsed, InvalidService)
    assert parsed.reason is InvalidReason.STATUS
    assert parsed.status is None


def test_an_invalid_spec_keeps_the_status() -> None:
    wire = to_wire(VLLMServiceStatus(active_change=active_change()))
    parsed = parse_service({"metadata": {"name": "chat", "namespace": "prod"}, "spec": {}, "status": wire})
    assert isinstance(parsed, InvalidService)
    assert parsed.status is not None
    assert parsed.status.active_change == active_change()


def test_times_are_kept_in_utc() -> None:
    berlin = timezone(timedelta(hours=1))
    assert Measurement(at=datetime(2026, 3, 1, 13, tzinfo=berlin)).at == NOON
    assert to_wire(Measurement(at=datetime(2026, 3, 1, 13, tzinfo=berlin))) == {"at": "2026-03-01T12:00:00Z"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), None])
def test_an_unknown_number_is_absent(number: float | None) -> None:
    assert to_wire(Evidence(name="kv_usage", value=number)) == {"name": "kv_usage"}


@pytest.mark.fault("T35")
def test_lists_keep_what_matters_most_and_texts_are_cut() -> None:
    status = VLLMServiceStatus(
        history=tuple(
            HistoryEntry(id=str(number), knob="maxNumSeqs", outcome=Outcome.SUCCEEDED) for number in range(50)
        ),
        failure_memory=tuple(
            FailedCandidate(candidate=str(number), knob="maxNumSeqs", value="1", reason="x" * 9000)
            for number in range(50)
        ),
        diagnosis=DiagnosisStatus(
            class_="KvCacheSaturated",
            message="y" * 9000,
            evidence=tuple(Evidence(name=str(number)) for number in range(50)),
        ),
    )
    assert status.history[-1].id == "49"
    assert len(status.history) == HISTORY_LENGTH
    assert len(status.failure_memory) == FAILURE_MEMORY_LENGTH
    assert status.diagnosis is not None
    assert status.diagnosis.evidence[0].name == "0"
    assert len(status.diagnosis.message) == MESSAGE_MAX_LENGTH


@pytest.mark.fault("T35")
def test_the_fullest_status_stays_below_64_kib() -> None:
    long, moment = "x" * 2 * MESSAGE_MAX_LENGTH, NOON + timedelta(microseconds=1)
    measured = Measurement(
        at=moment,
        ttft_seconds=1 / 3,
        tpot_seconds=1 / 3,
        requests_per_second=1 / 3,
        tokens_per_second=1 / 3,
        running=1 / 3,
        waiting=1 / 3,
    )
    status = VLLMServiceStatus(
        active_change=active_change().updated(
            reason=long[:MESSAGE_MAX_LENGTH], analysis=Analysis(started_at=moment, last=(measured,) * 10)
        ),
        diagnosis=DiagnosisStatus(
            class_="KvCacheSaturated",
            message=long,
            evidence=tuple(Evidence(name="n", value=1 / 3, threshold=1 / 3, note=long) for _ in range(99)),
            contributing=tuple(Contribution(class_="Overloaded", message=long) for _ in range(EVIDENCE_LENGTH)),
        ),
        history=tuple(
            HistoryEntry(
                id="0" * 16,
                knob="maxNumSeqs",
                outcome=Outcome.ROLLED_BACK,
                reason=long,
                before=measured,
                after=measured,
            )
            for _ in range(HISTORY_LENGTH)
        ),
        failure_memory=tuple(
            FailedCandidate(candidate="maxNumSeqs=64", knob="maxNumSeqs", value="64", reason=long)
            for _ in range(FAILURE_MEMORY_LENGTH)
        ),
        untold=(UntoldEvent(reason="ChangeRolledBack", action="Tune", transition="0" * 64, note=long),) * UNTOLD_LENGTH,
        track_record=tuple(
            Foretold(
                id="0" * 8,
                knob="maxNumSeqs",
                recommended="64",
                made_at=moment,
                knobs=EngineKnobs(max_num_seqs=64, max_model_len=4096, kv_cache_dtype="fp8", tensor_parallel_size=2),
                in_system=1 / 3,
                predicted=tuple(Prediction(name="n", unit="s", current=1 / 3, predicted=1 / 3) for _ in range(9)),
                came=Came(at=moment, compared_by=ComparedBy.VALUE, windows=5, ttft_seconds=1 / 3, tpot_seconds=1 / 3),
            )
            for _ in range(RECORD_LENGTH)
        ),
    )
    assert len(json.dumps(to_wire(status))) < 64 * 1024
