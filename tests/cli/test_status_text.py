"""What `explain NAME` tells of the change under way, and of the ledger in the status."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from vllm_autotuner.cli.service.status_text import print_status

ENTRY: dict[str, Any] = {
    "id": "c1",
    "knob": "maxNumSeqs",
    "fromValue": "64",
    "toValue": "128",
    "outcome": "RolledBack",
    "reason": "TPOT 20 ms -> 90 ms",
    "finishedAt": "2026-11-20T12:00:00Z",
}
GROUNDS: dict[str, Any] = {
    "diagnosis": "ConcurrencyCapped",
    "predicted": [{"name": "TPOT", "unit": "s", "current": 0.02, "predicted": 0.04}, {"name": "TTFT", "unit": "s"}],
}


CHANGE: dict[str, Any] = {
    "id": "c2",
    "knob": "maxNumSeqs",
    "fromValue": "64",
    "toValue": "128",
    "target": "TTFT",
    "reason": "all [64] seats are taken",
    "strategy": "Canary",
    "canaryRef": {"name": "chat-t-c2"},
    "baselineRef": {"name": "chat-b-c2"},
    "state": "Analyzing",
    "stateReason": "measuring",
    "stateSince": "2026-11-20T12:00:00Z",
    "startedAt": "2026-11-20T11:59:00Z",
    "deadline": "2026-11-20T12:10:00Z",
    "baseline": {"ttftSeconds": 2.0, "tpotSeconds": 0.03},
    "analysis": {
        "last": [{"ttftSeconds": 0.05, "tpotSeconds": 0.02}],
        "reference": [{"ttftSeconds": 1.5, "tpotSeconds": 0.021}],
    },
}


ADVICE: dict[str, Any] = {
    "id": "a1",
    "knob": "maxNumSeqs",
    "recommended": "128",
    "limitedBy": "TPOT knee",
    "heldBy": "Cooldown",
    "confidence": "Low",
    "reason": "All seats are taken.",
    "predicted": [{"name": "TTFT", "unit": "s", "current": 2.0, "predicted": 0.2}],
}


def told_of(status: dict[str, Any], mode: str = "Recommend") -> str:
    written = StringIO()
    body = {"metadata": {"namespace": "prod", "name": "chat"}, "spec": {"tuning": {"mode": mode}}}
    print_status(Console(width=240, file=written, markup=False), body, status)
    return written.getvalue()


@pytest.mark.parametrize(
    ("mode", "way"),
    [
        ("Recommend", "vllm-autotuner export chat -n prod"),
        ("Approve", "vllm-autotuner approve chat -n prod --id a1"),
    ],
)
def test_a_recommendation_says_what_holds_it_and_how_a_person_has_it_done(mode: str, way: str) -> None:
    text = told_of({"recommendation": ADVICE}, mode)
    for part in (
        "Recommended: maxNumSeqs default -> 128 (id a1, confidence Low)",
        "All seats are taken.",
        "TPOT knee",
        "blocked by  Cooldown",
        "TTFT 2 s -> 200 ms",
        way,
    ):
        assert part in text


def test_in_mode_automatic_there_is_nothing_for_a_person_to_do() -> None:
    assert "to apply" not in told_of({"recommendation": ADVICE}, "Automatic")


def told(entry: dict[str, Any]) -> str:
    return told_of({"history": [entry]})


def test_a_canary_under_way_is_told_with_its_pods_its_figures_and_how_to_stop_it() -> None:
    text = told_of({"activeChange": CHANGE})
    for part in (
        "maxNumSeqs 64 -> 128 by canary, to improve TTFT, since 2026-11-20 11:59:00Z",
        "Analyzing since 2026-11-20 12:00:00Z: both values are being measured; deadline 2026-11-20 12:10:00Z",
        "all [64] seats are taken",
        "chat-t-c2, one additional pod with maxNumSeqs=128",
        "chat-b-c2, started at the same time, with maxNumSeqs=64",
        "the service's own pods are unchanged",
        "1 window(s), newest: TTFT 1.5 s -> 50 ms, TPOT 21 ms -> 20 ms (at the same time)",
        "vllm-autotuner rollback chat -n prod",
    ):
        assert part in text


def test_without_a_baseline_the_canary_is_compared_with_the_services_own_pods() -> None:
    text = told_of({"activeChange": {each: value for each, value in CHANGE.items() if each != "baselineRef"}})
    assert "the service's own pods, with maxNumSeqs=64" in text


def test_once_they_follow_the_own_pods_are_no_longer_called_untouched() -> None:
    assert "unchanged" not in told_of({"activeChange": {**CHANGE, "state": "Promoting", "promoted": True}})


def test_in_place_what_was_before_is_compared_with_now() -> None:
    change = {**CHANGE, "strategy": "InPlace", "analysis": {"last": [{"ttftSeconds": 0.05}]}}
    text = told_of({"activeChange": {key: value for key, value in change.items() if not key.endswith("Ref")}})
    assert "maxNumSeqs 64 -> 128 in place" in text
    assert "TTFT 2 s -> 50 ms, TPOT 30 ms -> unknown (before the change -> now)" in text
    assert "unchanged" not in text


def test_nothing_is_measured_before_the_first_window() -> None:
    assert "measured  " not in told_of({"activeChange": {**CHANGE, "state": "Provisioning", "analysis": None}})


def test_of_many_changes_the_newest_are_told_and_where_the_others_are() -> None:
    text = told_of({"history": [{**ENTRY, "id": f"c{number}"} for number in range(5)]})
    assert [f"id c{number})" in text for number in range(5)] == [False, False, True, True, True]
    assert "(2 older: vllm-autotuner history chat -n prod)" in text


def test_a_change_is_told_with_what_was_foreseen_and_what_came() -> None:
    text = told({**ENTRY, "grounds": GROUNDS})
    for part in (
        "maxNumSeqs 64 -> 128",
        "ConcurrencyCapped",
        "TPOT 20 ms -> 40 ms, TTFT unknown -> unknown",
        "RolledBack",
        "TPOT 20 ms -> 90 ms",
    ):
        assert part in text


def test_a_change_of_an_earlier_version_has_no_grounds() -> None:
    assert "maxNumSeqs 64 -> 128" in told(ENTRY)


FORETOLD: dict[str, Any] = {
    "id": "a1",
    "knob": "maxNumSeqs",
    "current": "64",
    "recommended": "128",
    "madeAt": "2026-11-19T12:00:00Z",
    "predicted": [
        {"name": "TTFT", "unit": "s", "current": 4.0, "predicted": 1.0},
        {"name": "TPOT", "unit": "s", "current": 0.03, "predicted": 0.04},
    ],
}


def test_predictions_that_could_be_tested_are_told_with_what_came() -> None:
    came = {"at": "2026-11-20T12:00:00Z", "comparedBy": "Value", "ttftSeconds": 1.1, "tpotSeconds": 0.06, "held": False}
    by_load = {"comparedBy": "Load", "tpotSeconds": 0.04, "held": True}
    record = [FORETOLD, FORETOLD | {"came": came}, FORETOLD | {"recommended": "32", "came": by_load}]
    found = told_of({"trackRecord": record})
    assert "1 of 2 tested prediction(s) were correct" in found
    assert (
        "64 -> 128: the value was set by a user; TTFT predicted 1 s, measured 1.1 s (+10%), TPOT predicted 40 ms"
        in found
    )
    assert "measured 60 ms (+50%)" in found
    assert "maxNumSeqs 64 -> 32: the load reached that batch size; TPOT predicted 40 ms, measured 40 ms (+0%)" in found


def test_predictions_that_nothing_tested_are_not_told() -> None:
    assert "Track record" not in told_of({"trackRecord": [FORETOLD]})


FAILED: dict[str, Any] = {
    "candidate": "maxNumSeqs=128",
    "knob": "maxNumSeqs",
    "value": "128",
    "failures": 1,
    "retryAfter": "2026-11-21T12:00:00Z",
    "reason": "TPOT rose",
}
DECLINED: dict[str, Any] = {
    "candidate": "maxNumSeqs=128",
    "knob": "maxNumSeqs",
    "value": "128",
    "failures": 0,
    "declinedAt": "2026-11-20T12:00:00Z",
    "reason": "a user requested a rollback",
}
ASK_AGAIN = "vllm-autotuner retry chat -n prod"


def test_what_a_person_declined_is_told_with_the_way_to_have_it_tried_again() -> None:
    text = told_of({"failureMemory": [DECLINED]})
    assert "maxNumSeqs=128 was declined at 2026-11-20 12:00:00Z; to retry it" in text
    assert ASK_AGAIN in text
    assert "failed (" not in text


def test_what_failed_is_told_with_the_end_of_its_rest() -> None:
    text = told_of({"failureMemory": [FAILED]})
    assert "maxNumSeqs=128 failed (TPOT rose); not retried before 2026-11-21 12:00:00Z" in text
    assert "retry=" not in text


def test_what_failed_and_was_declined_is_told_as_both() -> None:
    text = told_of({"failureMemory": [FAILED | {"declinedAt": DECLINED["declinedAt"]}]})
    assert "failed (TPOT rose)" in text
    assert ASK_AGAIN in text


def test_a_request_that_found_nothing_to_act_upon_is_told_with_what_works() -> None:
    asked = {"kind": "rollback", "nonce": "1", "at": "2026-11-20T12:00:00Z"}
    told = told_of({"handledRequests": [asked | {"answer": "leave 128 out"}, asked | {"kind": "retry"}]})
    assert "Requested rollback at 2026-11-20 12:00:00Z: leave 128 out" in told
    assert "retry" not in told


def test_why_there_are_so_many_replicas_is_told_where_the_load_decides() -> None:
    asked = {"replicas": 3, "replicasReason": "the load rises by 12% in the [240] s that a replica takes to start"}
    assert "Replicas: 3 requested, because the load rises by 12% in the [240] s that" in told_of({"effective": asked})
    assert "Replicas:" not in told_of({"effective": {"replicas": 3}})
