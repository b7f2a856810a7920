"""A finished change as text: evidence, predicted and measured effects, and outcome.

Must not: judge. Everything comes from the history in the status; fields that an earlier version lacked are left out.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from vllm_autotuner.cli.number_format import figure, moment
from vllm_autotuner.cli.terminal import printable

__all__ = ["entry_lines", "predicted_effect"]

_STYLES: Final = {"Succeeded": "green", "RolledBack": "yellow", "RollbackFailed": "bold red"}
_LEVELS: Final = (("TTFT", "ttftSeconds", "s"), ("TPOT", "tpotSeconds", "s"), ("tokens", "tokensPerSecond", "tokens/s"))


def entry_lines(entry: Mapping[str, Any]) -> Iterator[Text | Table]:
    """Yield what to print of one entry."""
    outcome = entry["outcome"]
    yield Text.assemble(
        f"{moment(entry.get('finishedAt'))}  ",
        (printable(f"{entry['knob']} {entry.get('fromValue', 'default')} -> {entry.get('toValue')}  "), "bold"),
        (outcome, _STYLES.get(outcome, "")),
        f"  (id {entry['id']}{_took(entry)})",
    )
    rows = Table.grid(padding=(0, 2))
    for what, text in _rows(entry):
        rows.add_row(f"  {what}", Text(printable(text)))
    if rows.row_count:
        yield rows


def predicted_effect(effect: Mapping[str, Any]) -> str:
    """Return one predicted effect."""
    unit = effect.get("unit") or ""
    current, predicted = (figure(effect.get(side), unit) for side in ("current", "predicted"))
    return f"{effect['name']} {current} -> {predicted}"


def _rows(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    grounds = entry.get("grounds") or {}
    if grounds:
        facts = "; ".join(_fact(each) for each in grounds.get("evidence") or [])
        yield "decided on", f"{grounds['diagnosis']}{': ' if facts else ''}{facts}"
    if effects := grounds.get("predicted"):
        sure = f" (confidence {grounds['confidence']})" if grounds.get("confidence") else ""
        yield "predicted", ", ".join(map(predicted_effect, effects)) + sure
    if measured := _measured(entry):
        yield "measured", measured
    if entry.get("reason"):
        yield "reason", entry["reason"]


def _fact(fact: Mapping[str, Any]) -> str:
    unit = fact.get("unit") or ""
    limit = "" if fact.get("threshold") is None else f" (threshold {figure(fact['threshold'], unit)})"
    return f"{fact['name']} {figure(fact.get('value'), unit)}{limit}"


def _measured(entry: Mapping[str, Any]) -> str:
    """Both sides of the last window; empty when the new value was never measured."""
    before, after = entry.get("before") or {}, entry.get("after") or {}
    if not after:
        return ""
    levels = (
        f"{label} {figure(before.get(key), unit)} -> {figure(after.get(key), unit)}"
        for label, key, unit in _LEVELS
        if key in before or key in after
    )
    counts = [
        f"{entry[key]} {what}" for key, what in (("windowsGood", "passed"), ("windowsBad", "failed")) if key in entry
    ]
    return ", ".join(levels) + (f"; windows: {', '.join(counts)}" if counts else "")


def _took(entry: Mapping[str, Any]) -> str:
    if not (entry.get("startedAt") and entry.get("finishedAt")):
        return ""
    seconds = (datetime.fromisoformat(entry["finishedAt"]) - datetime.fromisoformat(entry["startedAt"])).total_seconds()
    return f", took {int(seconds // 60)} min {int(seconds % 60)} s" if seconds >= 60 else f", took {seconds:.0f} s"
