"""The table of all services, and the kill switch."""

import json
from typing import Any

import pytest
import yaml
from tests.cli.api_stub import ApiStub
from typer.testing import CliRunner

from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.fleet import kill_switch, stored_services


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ApiStub:
    stub = ApiStub()
    monkeypatch.setattr(stored_services, "connected", stub.connected)
    monkeypatch.setattr(kill_switch, "connected", stub.connected)
    return stub


def told(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    return found.exit_code, found.stdout, found.stderr


def diagnosed(name: str, since: str = "2026-11-20T12:00:00Z", **more: Any) -> dict[str, Any]:
    return {"diagnosis": {"class": name, "since": since, "message": f"it is {name}"}} | more


def names(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:] if line.strip(" ─")][1:]


def test_what_needs_a_person_comes_first_then_the_worst_class(api: ApiStub) -> None:
    api.add("prod", "fine", status=diagnosed("Healthy"))
    api.add("prod", "full", status=diagnosed("KVCacheSaturated"))
    api.add("prod", "older", status=diagnosed("Overloaded", "2026-11-20T11:00:00Z"))
    api.add("prod", "hung", status=diagnosed("Wedged"))
    api.add("prod", "broken", status=diagnosed("Healthy", conditions=[{"type": "RollbackFailed", "status": "True"}]))
    api.add("prod", "was", status=diagnosed("Healthy", conditions=[{"type": "RollbackFailed", "status": "False"}]))
    api.add("prod", "new")
    code, text, _ = told("status")
    assert code == 0
    assert names(text) == ["broken", "hung", "older", "full", "new", "fine", "was"]


def test_a_row_says_what_runs_and_what_comes(api: ApiStub) -> None:
    found = diagnosed(
        "ConcurrencyCapped",
        readyReplicas=2,
        effective={"replicas": 3},
        summary={"ttft": "2.4s/1s", "tpot": "20ms/25ms", "kvUsage": "40%", "effective": "seqs=64"},
        recommendation={"knob": "maxNumSeqs", "current": "64", "recommended": "128"},
    )
    api.add("prod", "chat", spec={"tuning": {"mode": "Approve"}}, status=found)
    line = told("status")[1].splitlines()[-2].split("  ")
    assert [part.strip() for part in line if part.strip()] == [
        *("chat", "ConcurrencyCapped", "Approve", "2/3", "2.4s/1s", "20ms/25ms", "40%"),
        "recommends maxNumSeqs 64 -> 128",
    ]
    wide = told("status", "-o", "wide")[1]
    assert "seqs=64" in wide
    assert "it is ConcurrencyCapped" in wide


def test_one_namespace_or_all(api: ApiStub) -> None:
    api.add("prod", "chat", status=diagnosed("Healthy"))
    api.add("dev", "chat", status=diagnosed("Idle"))
    of_context, of_dev, of_all = (
        json.loads(told("status", "-o", "json", *options)[1])["services"] for options in ((), ("-n", "dev"), ("-A",))
    )
    assert [[each["namespace"] for each in found] for found in (of_context, of_dev, of_all)] == [
        ["prod"],
        ["dev"],
        ["dev", "prod"],
    ]
    assert yaml.safe_load(told("status", "-A", "-o", "yaml")[1])["services"] == of_all


def test_no_services_are_no_error(api: ApiStub) -> None:
    assert told("status")[:2] == (0, "no VLLMService in namespace prod (-A shows all)\n")
    assert told("status", "-A")[:2] == (0, "no VLLMService in any namespace\n")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("-A", "-n", "prod"), "give --all-namespaces or --namespace, not both"),
        (("--gpu-price", "nan"), "--gpu-price nan: write an amount above zero"),
        (("-o", "csv"), "--output 'csv' is unknown: write table, wide, json or yaml"),
    ],
)
def test_wrong_options_are_refused(api: ApiStub, options: tuple[str, ...], why: str) -> None:
    code, _, error = told("status", *options)
    assert code == 2
    assert why in " ".join(error.replace("│", " ").split())
    assert "2 wrong options" in told("status", "--help")[1]


@pytest.mark.parametrize(
    ("word", "value", "says"),
    [
        pytest.param("on", "true", "within one tick (15 s); replicas stay as they are", id="on"),
        pytest.param("off", "false", "as their mode and the mode ceiling say", id="off"),
    ],
)
def test_the_kill_switch_is_one_key_of_the_limits(api: ApiStub, word: str, value: str, says: str) -> None:
    limits = {"data": {"modeCeiling": "Approve", "killSwitch": "?"}}
    api.config_maps["vllm-autotuner", "vllm-autotuner-limits"] = limits
    code, text, _ = told("kill-switch", word)
    assert code == 0
    assert (text.startswith(f"kill switch {word}: "), says in text) == (True, True)
    assert limits["data"] == {"modeCeiling": "Approve", "killSwitch": value}


def test_a_release_of_another_name(api: ApiStub) -> None:
    code, _, error = told("kill-switch", "on", "-n", "ops")
    assert code == 1
    assert "ConfigMap ops/vllm-autotuner-limits not found: --namespace and --configmap" in error
    assert "`kubectl get configmap -A | grep limits`" in error


def test_what_the_kill_switch_does_to_replicas_stands_in_its_help() -> None:
    assert "While it is on, replicas stay as they are" in " ".join(told("kill-switch", "--help")[1].split())


def test_savings_of_the_last_month_stand_in_the_wide_table(api: ApiStub) -> None:
    steps = [
        {"at": "2020-01-01T00:00:00Z", "cause": "Start", "gpus": 3, "reference": 3},
        {"at": "2020-01-02T00:00:00Z", "cause": "Scaling", "gpus": 2, "reference": 3},
    ]
    api.add("prod", "chat", status=diagnosed("Healthy", gpuSteps=steps))
    api.add("prod", "new")
    wide = told("status", "-o", "wide", "--gpu-price", "2")[1]
    assert "saved 720 GPU-hours (1,440.00)" in wide
    assert "not known" in wide
    assert wide.splitlines()[-1].startswith("GPUs, last 30 days: saved 720 GPU-hours (1,440.00)")
    assert "GPU-hours" not in told("status")[1]
    (chat, new) = json.loads(told("status", "-o", "json")[1])["services"]
    found = {chat["name"]: chat["savings"], new["name"]: new["savings"]}
    assert found["chat"]["gpuHoursSaved"] == pytest.approx(720)
    assert found["new"]["gpuHoursSaved"] is None
    assert found["new"]["why"].startswith("the operator has not recorded GPUs")
