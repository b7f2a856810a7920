"""What a person tells the operator about a service: the annotation that is set, and the answer that is shown."""

from typing import Any

import pytest
from tests.cli.api_stub import ApiStub
from typer.testing import CliRunner

from vllm_autotuner.api.annotations import APPROVE, PAUSE, PREFIX, REJECT
from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.service import service_object

ADVICE = {"id": "r1", "knob": "maxNumSeqs", "current": "64", "recommended": "128", "confidence": "High"}
CHANGE = {"id": "c1", "knob": "maxNumSeqs", "toValue": "128"}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ApiStub:
    stub = ApiStub()
    monkeypatch.setattr(service_object, "connected", stub.connected)
    return stub


def told(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    return found.exit_code, found.stdout, found.stderr


def annotations(api: ApiStub, namespace: str = "prod") -> dict[str, str]:
    return dict(api.services[namespace, "chat"]["metadata"].get("annotations", {}))


def answering(answer: str | None = None) -> Any:
    """An operator that handles each request at once."""

    def handle(body: dict[str, Any]) -> None:
        status = body["status"]
        status["handledRequests"] = [
            {"kind": key.removeprefix(PREFIX), "nonce": value} | ({} if answer is None else {"answer": answer})
            for key, value in body["metadata"]["annotations"].items()
        ]
        status.pop("recommendation", None)

    return handle


def test_an_approval_names_the_recommendation_of_now(api: ApiStub) -> None:
    api.add("prod", "chat", spec={"tuning": {"mode": "Approve"}}, status={"recommendation": ADVICE})
    code, text, _ = told("approve", "chat")
    assert code == 0
    assert text.startswith("prod/chat: approved maxNumSeqs 64 -> 128 (id r1). It begins within a tick (15 s).")
    assert annotations(api) == {APPROVE: "r1"}


def test_an_approval_tells_what_holds_the_change(api: ApiStub) -> None:
    held = ADVICE | {"heldBy": "cooldown until 12:00"}
    api.add("prod", "chat", spec={"tuning": {"mode": "Approve"}}, status={"recommendation": held})
    assert "It begins when this no longer holds: cooldown until 12:00." in told("approve", "chat")[1]


@pytest.mark.parametrize(
    ("mode", "advice", "options", "why"),
    [
        pytest.param("Recommend", ADVICE, (), "is in mode Recommend: set spec.tuning.mode to Approve", id="recommends"),
        pytest.param("Automatic", ADVICE, (), "the operator needs no approval", id="tunes by itself"),
        pytest.param("Approve", None, (), "prod/chat has no recommendation", id="nothing to approve"),
        pytest.param("Approve", ADVICE, ("--id", "r0"), "is now maxNumSeqs 64 -> 128 (id r1), not r0", id="another"),
    ],
)
def test_an_approval_without_effect_is_refused(
    api: ApiStub, mode: str, advice: dict[str, str] | None, options: tuple[str, ...], why: str
) -> None:
    api.add("prod", "chat", spec={"tuning": {"mode": mode}}, status={"recommendation": advice} if advice else {})
    code, _, error = told("approve", "chat", *options)
    assert code == 1
    assert why in error
    assert annotations(api) == {}


def test_a_rejection_is_confirmed_by_the_operator(api: ApiStub) -> None:
    api.add("prod", "chat", status={"recommendation": ADVICE})
    api.on_annotated = answering()
    code, text, _ = told("reject", "chat")
    assert (code, text) == (0, "prod/chat: rejected maxNumSeqs 64 -> 128 (id r1)\n")
    assert annotations(api) == {REJECT: "r1"}


def test_a_rollback_without_effect_says_why_and_what_to_do(api: ApiStub) -> None:
    api.add("prod", "chat")
    api.on_annotated = answering("no change in progress, nothing to roll back")
    code, _, error = told("rollback", "chat")
    assert (code, error) == (1, "without effect: prod/chat: no change in progress, nothing to roll back\n")


def test_a_rollback_of_a_change(api: ApiStub) -> None:
    api.add("prod", "chat", status={"activeChange": CHANGE})
    api.on_annotated = answering()
    assert told("rollback", "chat")[:2] == (0, "prod/chat: rollback of maxNumSeqs=128 requested\n")


def test_two_requests_are_two(api: ApiStub) -> None:
    api.add("prod", "chat")
    api.on_annotated = answering()
    told("retry", "chat")
    first = annotations(api)
    assert told("retry", "chat")[0] == 0
    assert annotations(api) != first


@pytest.mark.parametrize("command", ["reject", "rollback", "retry"])
def test_an_operator_that_does_not_answer_is_not_taken_for_done(api: ApiStub, command: str) -> None:
    api.add("prod", "chat", status={"recommendation": ADVICE})
    code, text, error = told(command, "chat", "--wait", "0")
    assert (code, text) == (2, "")
    assert error.startswith(f"no answer: prod/chat: {command} requested; the operator has not answered within 0 s.")


@pytest.mark.parametrize("command", ["approve", "reject", "rollback", "pause", "resume", "retry"])
def test_a_wrong_option_is_not_taken_for_an_operator_that_does_not_answer(api: ApiStub, command: str) -> None:
    assert told(command, "chat", "--wiat", "0")[0] == 1


def test_a_pause_and_its_end(api: ApiStub) -> None:
    api.add("dev", "chat")
    assert told("pause", "chat", "-n", "dev")[0] == 0
    assert annotations(api, "dev") == {PAUSE: "true"}
    assert told("resume", "chat", "-n", "dev")[:2] == (0, "dev/chat: tuning resumes\n")
    assert annotations(api, "dev") == {}


def test_what_becomes_of_a_paused_change_stands_in_the_help() -> None:
    shown = " ".join(told("pause", "--help")[1].split())
    assert (
        "A change that is paused for 24 hours is rolled back; one in its bake is kept if its pods are ready." in shown
    )


@pytest.mark.parametrize(("command", "next_one"), [("pause", "resume"), ("approve", "export")])
def test_the_command_that_is_named_next_can_be_pasted(api: ApiStub, command: str, next_one: str) -> None:
    api.add("dev", "chat")
    _, text, error = told(command, "chat", "-n", "dev")
    assert f"`vllm-autotuner {next_one} chat -n dev`" in text + error


def test_what_the_spec_pauses_no_annotation_resumes(api: ApiStub) -> None:
    api.add("prod", "chat", spec={"paused": True})
    code, _, error = told("resume", "chat")
    assert code == 1
    assert "still paused by spec.paused" in error


@pytest.mark.parametrize("command", ["approve", "reject", "rollback", "pause", "resume", "retry"])
def test_a_service_that_is_not_there(api: ApiStub, command: str) -> None:
    code, _, error = told(command, "chat")
    assert (code, error) == (
        1,
        "error: VLLMService prod/chat not found: see `kubectl get vllm --all-namespaces`\n",
    )


@pytest.mark.parametrize("command", ["approve", "reject", "rollback", "pause", "resume", "retry", "explain", "export"])
@pytest.mark.parametrize("name", ["", "A b", "x/../../pods", "-", "a" * 254])
def test_what_can_be_no_name_is_not_asked_for(api: ApiStub, command: str, name: str) -> None:
    code, _, error = told(command, "--", name)
    assert code == 1
    assert "is no name of a VLLMService" in error
