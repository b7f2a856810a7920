"""`vllm-autotuner explain`: what the operator sees in one service, what it did, and why. Reads, never writes."""

import asyncio
import json
import time
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

EXAMPLES = """
Examples:

  vllm-autotuner explain chat -n prod

  vllm-autotuner explain chat -n prod --output json
"""


class Output(StrEnum):
    """How to print."""

    HUMAN = "human"
    JSON = "json"


def explain(
    name: Annotated[str, typer.Argument(help="Name of the VLLMService.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    output: Annotated[Output, typer.Option(help="For people or for programs.")] = Output.HUMAN,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Default: the pod's service account, else $KUBECONFIG.")
    ] = None,
) -> None:
    """Tell what the operator sees in a service, what it changed, and why.

    Everything comes from the object's status: the same facts that decisions were made from.
    """
    from vllm_autotuner.cluster.errors import ClusterError, NotFound

    try:
        body = asyncio.run(_read(namespace, name, kubeconfig=kubeconfig))
    except NotFound:
        typer.echo(f"there is no VLLMService {namespace}/{name}: see `kubectl get vllm --all-namespaces`", err=True)
        raise typer.Exit(1) from None
    except ClusterError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    status = body.get("status") or {}
    if output is Output.JSON:
        typer.echo(json.dumps({"namespace": namespace, "name": name, "status": status}, indent=2))
        return
    _print(Console(highlight=False), body, status)


async def _read(namespace: str, name: str, *, kubeconfig: Path | None) -> Mapping[str, Any]:
    from vllm_autotuner.cluster.adapter import Cluster
    from vllm_autotuner.cluster.client import connect
    from vllm_autotuner.cluster.throttle import Throttle, ThrottleSettings

    async with connect(kubeconfig) as connection:
        throttle = Throttle(ThrottleSettings(), monotonic=time.monotonic)
        cluster = Cluster(connection, throttle=throttle, instance="explain", may_write=lambda: False)
        return await cluster.read_service(namespace, name)


def _print(console: Console, body: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    metadata, spec = body["metadata"], body.get("spec") or {}
    if not status:
        console.print(f"{metadata['name']}: the operator has not looked at it yet. Is it running?")
        return
    mode = (spec.get("tuning") or {}).get("mode", "Recommend")
    effective = status.get("effective") or {}
    console.print(
        f"[bold]{metadata['namespace']}/{metadata['name']}[/bold]  mode {mode}, "
        f"{status.get('readyReplicas', 0)} of {effective.get('replicas', '?')} replica(s) ready, runs "
        f"{_knobs(effective)} ({'tuned' if effective.get('source') == 'Tuned' else 'as in the spec'})"
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
    for column in ("finished", "change", "outcome", "measured before -> after, or why"):
        table.add_column(column)
    for entry in history:
        table.add_row(
            _time(entry.get("finishedAt")),
            f"{entry['knob']} {entry.get('fromValue', 'default')} -> {entry.get('toValue')}",
            entry["outcome"],
            entry.get("reason", ""),
        )
    return table


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
