"""What `explain NAME` tells of the ledger in the status."""

from io import StringIO
from typing import Any

from rich.console import Console

from vllm_autotuner.cli.status_text import print_status

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


def told(entry: dict[str, Any]) -> str:
    written = StringIO()
    body = {"metadata": {"namespace": "prod", "name": "chat"}, "spec": {}}
    print_status(Console(width=240, file=written), body, {"history": [entry]})
    return written.getvalue()


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
