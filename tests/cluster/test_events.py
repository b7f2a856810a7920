"""The Event's name makes posting exactly once; its fields are within what the API accepts."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from vllm_autotuner.cluster.events import NOTE_LIMIT, Event, event_body, event_name

NOW = datetime(2026, 11, 20, 12, 30, 1, 5, tzinfo=UTC)
CHAT = {
    "apiVersion": "vllm-autotuner.dev/v1alpha1",
    "kind": "VLLMService",
    "metadata": {"name": "chat", "namespace": "prod", "uid": "u1", "resourceVersion": "9"},
}


def event(*, reason: str = "RolledBack", transition: str = "c1/RolledBack", note: str = "n") -> Event:
    return Event(reason=reason, note=note, action="Rollback", transition=transition)


@pytest.mark.parametrize(
    ("other", "uid", "same"),
    [
        pytest.param(event(), "u1", True, id="the same occurrence has the same name"),
        pytest.param(event(note="worded otherwise"), "u1", True, id="the wording is not part of the identity"),
        pytest.param(event(transition="c2/RolledBack"), "u1", False, id="another change is another occurrence"),
        pytest.param(event(reason="Promoted"), "u1", False, id="another reason is another occurrence"),
        pytest.param(event(), "u2", False, id="a re-created service has its own events"),
    ],
)
def test_the_name_identifies_the_occurrence(other: Event, uid: str, same: bool) -> None:
    assert (event_name(event(), name="chat", uid="u1") == event_name(other, name="chat", uid=uid)) is same


def test_the_body_names_the_object_the_reporter_and_utc() -> None:
    later = NOW.astimezone(timezone(timedelta(hours=2)))
    body = event_body(event(), about=CHAT, instance="pod-1_abc", now=later)
    assert body["regarding"] == {
        "apiVersion": "vllm-autotuner.dev/v1alpha1",
        "kind": "VLLMService",
        "namespace": "prod",
        "name": "chat",
        "uid": "u1",
        "resourceVersion": "9",
    }
    assert body["eventTime"] == "2026-11-20T12:30:01.000005Z"
    assert body["type"] == "Normal"
    assert (body["reportingController"], body["reportingInstance"]) == ("vllm-autotuner.dev/operator", "pod-1_abc")


def test_limits_of_the_api_are_kept_for_long_names_and_notes() -> None:
    about = CHAT | {"metadata": CHAT["metadata"] | {"name": "x" * 253}}  # type: ignore[operator]
    body = event_body(event(note="ü" * 2000), about=about, instance="i" * 500, now=NOW)
    assert len(body["metadata"]["name"]) <= 253
    assert len(body["note"].encode()) <= NOTE_LIMIT
    assert body["note"].endswith("ü...")
    assert len(body["reportingInstance"]) == 128
