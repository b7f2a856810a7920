"""`history`: the remembered changes with their figures, for people and for programs."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from typer.testing import CliRunner

from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.kubernetes import ClusterOptions
from vllm_autotuner.cli.service import history

KEPT: dict[str, Any] = {
    "id": "c1",
    "knob": "maxNumSeqs",
    "fromValue": "64",
    "toValue": "128",
    "outcome": "Succeeded",
    "reason": "TTFT 2 s -> 80 ms",
    "startedAt": "2026-11-20T11:58:00Z",
    "finishedAt": "2026-11-20T12:00:30Z",
    "windowsGood": 7,
    "windowsBad": 0,
    "before": {"at": "2026-11-20T11:57:00Z", "ttftSeconds": 2.0, "tpotSeconds": 0.02},
    "after": {"at": "2026-11-20T12:00:00Z", "ttftSeconds": 0.08},
    "grounds": {
        "diagnosis": "ConcurrencyCapped",
        "confidence": "Medium",
        "evidence": [{"name": "seats", "value": 1.0, "unit": "share", "threshold": 0.95}],
        "predicted": [{"name": "TTFT", "unit": "s", "current": 2.0, "predicted": 0.1}],
    },
}
NEVER_RAN: dict[str, Any] = {
    "id": "c2",
    "knob": "maxNumSeqs",
    "toValue": "256",
    "outcome": "Rejected",
    "reason": "Unschedulable: [no] node",
    "finishedAt": "2026-11-21T12:00:00Z",
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command about an object with this status; return exit code, stdout and stderr."""

    def run(status: Mapping[str, Any] | None, *arguments: str) -> tuple[int, str, str]:
        async def read(name: str, *, where: ClusterOptions) -> Mapping[str, Any]:
            if status is None:
                raise CommandError(f"there is no VLLMService {where.namespace}/{name}")
            return {"metadata": {"namespace": where.namespace, "name": name}, "status": status}

        monkeypatch.setattr(history, "read_service", read)
        found = CliRunner().invoke(app, ["history", "chat", "-n", "prod", *arguments], env={"COLUMNS": "120"})
        return found.exit_code, found.stdout, found.stderr

    return run


def test_each_change_with_its_grounds_and_its_figures_the_newest_first(told: Any) -> None:
    code, text, _ = told({"history": [KEPT, NEVER_RAN]})
    assert code == 0
    for part in (
        "2026-11-20 12:00:30Z  maxNumSeqs 64 -> 128  Succeeded  (id c1, took 2 min 30 s)",
        "decided on  ConcurrencyCapped: seats 100% (threshold 95%)",
        "predicted   by the model TTFT 2 s -> 100 ms (confidence Medium)",
        "measured    TTFT 2 s -> 80 ms, TPOT 20 ms -> unknown; windows: 7 passed, 0 failed",
        "reason      TTFT 2 s -> 80 ms",
    ):
        assert part in text
    assert text.index("id c2") < text.index("id c1")


def test_what_never_ran_was_not_measured_and_words_of_others_are_shown_to_the_letter(told: Any) -> None:
    _, text, _ = told({"history": [NEVER_RAN]})
    assert "maxNumSeqs default -> 256  Rejected  (id c2)" in text
    assert "reason  Unschedulable: [no] node" in text
    assert "measured" not in text


def test_the_same_for_programs(told: Any) -> None:
    code, text, _ = told({"history": [KEPT, NEVER_RAN]}, "--output", "json")
    assert code == 0
    found = json.loads(text)
    assert (found["namespace"], found["name"], found["changes"]) == ("prod", "chat", [NEVER_RAN, KEPT])
    assert found["savings"]["gpuHoursSaved"] is None
    assert found["gpuSteps"] == []


@pytest.mark.parametrize("status", [{}, {"history": []}])
def test_nothing_was_ever_changed(told: Any, status: dict[str, Any]) -> None:
    code, text, _ = told(status)
    assert code == 0
    assert text.startswith("prod/chat: no changes recorded.\nGPUs: not known: the operator has not recorded GPUs")


def test_a_service_that_is_not_there_is_one_line_and_exit_code_1(told: Any) -> None:
    assert told(None) == (1, "", "error: there is no VLLMService prod/chat\n")


STEPS = [
    {"at": "2026-11-20T00:00:00Z", "cause": "Start", "gpus": 3, "reference": 3, "replicas": 3},
    {"at": "2026-11-20T10:00:00Z", "cause": "Scaling", "gpus": 2, "reference": 3, "replicas": 2},
    {"at": "2026-11-20T18:00:00Z", "cause": "Scaling", "gpus": 3, "reference": 3, "replicas": 3},
]


def test_what_each_step_of_gpus_saved_and_the_price_of_it(told: Any) -> None:
    _, text, _ = told({"history": [KEPT | {"extraGpus": 1}], "gpuSteps": STEPS}, "--gpu-price", "2.5")
    text = " ".join(text.split())
    # 8 hours with one GPU less, and 150 s of one more for the change
    for part in (
        "GPUs the same GPUs",
        "trying it took at most 0.042 GPU-hours",
        "GPUs: saved 8 GPU-hours (19.90) since 2026-11-20 00:00Z",
        "3 -> 2 GPUs, 2 replicas (scaled by the operator), saves 24 GPU-hours a day; 8 h: saved 8 GPU-hours",
    ):
        assert part in text, part
    assert text.index("2026-11-20 18:00:00Z") < text.index("2026-11-20 10:00:00Z")


@pytest.mark.parametrize("price", ["0", "-1", "nan", "inf"])
def test_a_price_that_is_none_is_refused(told: Any, price: str) -> None:
    code, _, error = told({}, "--gpu-price", price)
    assert code == 1
    assert "write an amount above zero, such as 2.49" in error
