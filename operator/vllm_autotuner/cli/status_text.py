"""The status of one VLLMService as text: what the operator sees, what it changed, and why.

Must not: judge. Everything comes from the object: the same facts that decisions were made from.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

__all__ = ["print_status"]

_SOURCES: Final = {"Tuned": "tuned", "Observed": "as its Deployment says"}


def print_status(console: Console, body: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """Print what a person asks first: the diagnosis, the recommendation or change, and the history."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    if not status:
        console.print(f"{metadata['name']}: the operator has not looked at it yet. Is it running?")
        return
    mode = (spec.get("tuning") or {}).get("mode", "Recommend")
    effective = status.get("effective") or {}
    console.print(
        f"[bold]{metadata['namespace']}/{metadata['name']}[/bold]  mode {mode}, "
        f"{status.get('readyReplicas', 0)} of {effective.get('replicas', '?')} replica(s) ready, runs "
        f"{_knobs(effective)} ({_SOURCES.get(effective.get('source', ''), 'as in the spec')})"
    )
    if diagnosis := status.get("diagnosis"):
        console.print(_diagnosis(diagnosis))
    _advice(console, status)
    if history := status.get("history"):
        console.print(_history(history))
    for entry in status.get("failureMemory") or []:
        console.print(
            f"Remembered: {entry['candidate']} did not help ({entry.get('reason', '')}); "
            f"not tried again before {entry.get('retryAfter', 'long')}"
        )
    for condition in status.get("conditions") or []:
        if condition["type"] in ("MetricsAvailable", "Ready") and condition["status"] != "True":
            console.print(f"[red]{condition['type']}={condition['status']}[/red]: {condition.get('message', '')}")
        if condition["type"] in ("Paused", "Stalled", "CircuitOpen", "RollbackFailed", "OwnershipConflict"):
            console.print(f"[yellow]{condition['type']}[/yellow]: {condition.get('message', '')}")


def _diagnosis(diagnosis: Mapping[str, Any]) -> Panel:
    table = Table(box=None, pad_edge=False)
    for column in ("evidence", "value", "limit", "over", ""):
        table.add_column(column)
    for fact in diagnosis.get("evidence") or []:
        unit = fact.get("unit") or ""
        table.add_row(
            fact["name"],
            _figure(fact.get("value"), unit),
            _figure(fact.get("threshold"), unit) if fact.get("threshold") is not None else "",
            fact.get("window") or "",
            fact.get("note") or "",
        )
    title = (
        f"{diagnosis['class']} (confidence {diagnosis.get('confidence', '?')}, since {_time(diagnosis.get('since'))})"
    )
    lines = Table.grid()
    lines.add_row(diagnosis.get("message", ""))
    for part in diagnosis.get("contributing") or []:
        lines.add_row(f"also {part['class']}: {part.get('message', '')}")
    lines.add_row("")
    lines.add_row(table)
    return Panel(lines, title=title, title_align="left")


def _advice(console: Console, status: Mapping[str, Any]) -> None:
    if change := status.get("activeChange"):
        console.print(
            f"Under way: {change['knob']} {change.get('fromValue', 'default')} -> {change['toValue']}, "
            f"{change['state']} since {_time(change.get('stateSince'))}: {change.get('stateReason', '')}"
        )
    elif advice := status.get("recommendation"):
        limit = f", limited by {advice['limitedBy']}" if advice.get("limitedBy") else ""
        console.print(
            f"Recommended: {advice['knob']} {advice.get('current', 'default')} -> {advice['recommended']}{limit} "
            f"(id {advice['id']}, confidence {advice.get('confidence')}). {advice.get('reason', '')}"
        )
        for effect in advice.get("predicted") or []:
            unit = effect.get("unit") or ""
            console.print(
                f"  {effect['name']}: {_figure(effect.get('current'), unit)} -> predicted "
                f"{_figure(effect.get('predicted'), unit)}"
            )
    else:
        console.print("Nothing to recommend.")


def _history(history: list[Mapping[str, Any]]) -> Table:
    table = Table(title="Changes, oldest first", title_justify="left")
    for column in ("finished", "change", "decided on", "foreseen", "outcome", "measured before -> after, or why"):
        table.add_column(column)
    for entry in history:
        table.add_row(
            _time(entry.get("finishedAt")),
            f"{entry['knob']} {entry.get('fromValue', 'default')} -> {entry.get('toValue')}",
            *_grounds(entry.get("grounds") or {}),
            entry["outcome"],
            entry.get("reason", ""),
        )
    return table


def _grounds(grounds: Mapping[str, Any]) -> tuple[str, str]:
    """The diagnosis and the effects that a change was begun with; empty for those of an earlier version."""
    foreseen = (
        f"{each['name']} {_figure(each.get('current'), each.get('unit') or '')} -> "
        f"{_figure(each.get('predicted'), each.get('unit') or '')}"
        for each in grounds.get("predicted") or []
    )
    return grounds.get("diagnosis", ""), ", ".join(foreseen)


def _knobs(effective: Mapping[str, Any]) -> str:
    names = ("maxNumSeqs", "maxModelLen", "kvCacheDtype", "tensorParallelSize")
    return (
        " ".join(f"{name}={effective[name]}" for name in names if effective.get(name) is not None) or "engine defaults"
    )


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    if unit == "s" and value < 1:
        return f"{value * 1000:.3g} ms"
    if unit == "share":
        return f"{value:.0%}"
    return f"{value:.4g} {unit}".strip()


def _time(text: str | None) -> str:
    return "?" if text is None else f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S}Z"
