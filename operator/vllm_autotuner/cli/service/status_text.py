"""The status of one VLLMService as text: what the operator sees, what it changed, and why.

Must not: judge. Everything comes from the object: the same facts that decisions were made from.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vllm_autotuner.api.wording import told_advice
from vllm_autotuner.cli.service.change_text import change_lines
from vllm_autotuner.cli.service.history_text import entry_lines
from vllm_autotuner.cli.service.track_record_text import record_lines
from vllm_autotuner.cli.terminal import printable
from vllm_autotuner.overview.history_rows import predicted_effects
from vllm_autotuner.overview.number_format import figure, moment

__all__ = ["print_status"]

_SOURCES: Final = {"Tuned": "tuned", "Observed": "as in its Deployment"}
_GOOD: Final = ("MetricsAvailable", "Ready")
"""Conditions that are worth a line while they do not hold."""
_BAD: Final = ("Paused", "Stalled", "CircuitOpen", "RollbackFailed", "OwnershipConflict")
"""Conditions that exist only while they hold."""
SHOWN: Final = 3
"""Finished changes that are shown; `history` has the others. Our choice: a screen has 24 lines."""


def print_status(console: Console, body: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """Print the diagnosis, the recommendation or change in progress, and the history."""
    metadata = body["metadata"]
    if not status:
        console.print(Text(f"{metadata['name']}: no status yet. Check that the operator is running."))
        return
    effective = status.get("effective") or {}
    ready = f"{status.get('readyReplicas', 0)} of {effective.get('replicas', '?')} replica(s) ready"
    rest = (
        f"  mode {_mode(body)}, {ready}, runs {_knobs(effective)} "
        f"({_SOURCES.get(effective.get('source', ''), 'as in the spec')})"
    )
    console.print(Text.assemble((f"{metadata['namespace']}/{metadata['name']}", "bold"), printable(rest)))
    if diagnosis := status.get("diagnosis"):
        console.print(_diagnosis(diagnosis))
    for line in _told(body, status):
        console.print(line)


def _told(body: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Text | Table]:
    """Changes, rejected values and conditions."""
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    effective = status.get("effective") or {}
    if reason := effective.get("replicasReason"):
        yield Text(printable(f"Replicas: {effective.get('replicas', '?')} requested, because {reason}"))
    if change := status.get("activeChange"):
        yield from change_lines(change, namespace=namespace, name=name)
    else:
        yield from _advice(status.get("recommendation"), mode=_mode(body), namespace=namespace, name=name)
    if history := status.get("history"):
        older = len(history) - SHOWN
        more = f" ({older} older: vllm-autotuner history {name} -n {namespace})" if older > 0 else ""
        yield Text(f"Changes, newest first{more}:", style="bold")
        for entry in history[: -SHOWN - 1 : -1]:
            yield from entry_lines(entry)
    for request in status.get("handledRequests") or []:
        if answer := request.get("answer"):
            yield Text(printable(f"Requested {request['kind']} at {moment(request.get('at'))}: {answer}"))
    for entry in status.get("failureMemory") or []:
        yield from _remembered(entry, namespace=namespace, name=name)
    yield from record_lines(status.get("trackRecord") or [])
    yield from _conditions(status.get("conditions") or [])


def _remembered(entry: Mapping[str, Any], *, namespace: str, name: str) -> Iterator[Text]:
    """What failed or was declined, and when it may be retried."""
    candidate, retry, declined = entry["candidate"], entry.get("retryAfter"), entry.get("declinedAt")
    if entry.get("failures", 1) > 0:
        cooldown = f"not retried before {moment(retry)}" if retry else "not retried"
        yield Text(printable(f"Rejected value: {candidate} failed ({entry.get('reason', '')}); {cooldown}"))
    if declined:
        yield Text(
            printable(
                f"Rejected value: {candidate} was declined at {moment(declined)}; to retry it: "
                f"vllm-autotuner retry {name} -n {namespace}"
            )
        )


def _diagnosis(diagnosis: Mapping[str, Any]) -> Panel:
    table = Table(box=None, pad_edge=False)
    for column in ("evidence", "value", "threshold", "window", ""):
        table.add_column(column)
    for fact in diagnosis.get("evidence") or []:
        unit = fact.get("unit") or ""
        table.add_row(
            printable(fact["name"]),
            figure(fact.get("value"), unit),
            figure(fact.get("threshold"), unit) if fact.get("threshold") is not None else "",
            fact.get("window") or "",
            Text(printable(fact.get("note") or "")),
        )
    title = (
        f"{diagnosis['class']} (confidence {diagnosis.get('confidence', '?')}, since {moment(diagnosis.get('since'))})"
    )
    lines = Table.grid()
    lines.add_row(Text(printable(diagnosis.get("message", ""))))
    for part in diagnosis.get("contributing") or []:
        lines.add_row(Text(printable(f"also {part['class']}: {part.get('message', '')}")))
    lines.add_row("")
    lines.add_row(table)
    return Panel(lines, title=title, title_align="left")


def _advice(advice: Mapping[str, Any] | None, *, mode: str, namespace: str, name: str) -> Iterator[Text | Table]:
    """What is recommended, what blocks it, and how to apply it."""
    if not advice:
        yield Text("No recommendation.")
        return
    about = f"(id {advice['id']}, confidence {advice.get('confidence')})"
    yield Text(printable(f"Recommended: {told_advice(advice)} {about}"))
    rows = Table.grid(padding=(0, 2))
    found = (
        ("why", advice.get("reason")),
        ("limited by", advice.get("limitedBy")),
        ("blocked by", advice.get("heldBy")),
        ("predicted", predicted_effects(advice.get("predicted") or [])),
        ("to apply", _ways(mode, advice["id"], namespace=namespace, name=name)),
    )
    for what, text in found:
        if text:
            rows.add_row(f"  {what}", Text(printable(text)))
    yield rows


def _ways(mode: str, advice_id: str, *, namespace: str, name: str) -> str:
    """The command that applies it; empty where the operator applies it."""
    match mode:
        case "Approve":
            return f"vllm-autotuner approve {name} -n {namespace} --id {advice_id}"
        case "Recommend":
            return f"vllm-autotuner export {name} -n {namespace}"
        case _:
            return ""


def _conditions(conditions: Iterable[Mapping[str, Any]]) -> Iterator[Text]:
    for each in conditions:
        kind, state, message = each["type"], each["status"], printable(f": {each.get('message', '')}")
        if kind in _GOOD and state != "True":
            yield Text.assemble((f"{kind}={state}", "red"), message)
        if kind in _BAD:
            yield Text.assemble((kind, "yellow"), message)


def _mode(body: Mapping[str, Any]) -> str:
    return str(((body.get("spec") or {}).get("tuning") or {}).get("mode", "Recommend"))


def _knobs(effective: Mapping[str, Any]) -> str:
    names = ("maxNumSeqs", "maxModelLen", "kvCacheDtype", "tensorParallelSize")
    return (
        " ".join(f"{name}={effective[name]}" for name in names if effective.get(name) is not None) or "engine defaults"
    )
