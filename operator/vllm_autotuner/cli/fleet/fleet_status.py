"""`vllm-autotuner status`: all services of a cluster or namespace, the worst first. Reads objects, never metrics."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, TypeAlias

import typer
import yaml
from rich import box
from rich.table import Table
from rich.text import Text

from vllm_autotuner.api.service import parse_service
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.fleet.stored_services import none_there, stored_services
from vllm_autotuner.cli.options.cost_options import CostOptions
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.kubernetes import ClusterOptions
from vllm_autotuner.cli.options.values import one_of
from vllm_autotuner.cli.terminal import answers, failed, printable
from vllm_autotuner.overview.gpu_hours import Prices, Savings, fleet_savings, savings_of
from vllm_autotuner.overview.savings_text import savings_json, short_savings, told_fleet
from vllm_autotuner.overview.service_row import NO_DIAGNOSIS, ServiceRow, as_dict, row_of, worst_first

__all__ = ["EXAMPLES", "status"]

EXAMPLES: Final = """
Examples:

  The services of a namespace, the worst first:

    vllm-autotuner status -n prod

  Of all namespaces, with engine settings and what the operator says of each:

    vllm-autotuner status -A -o wide

  Those that need a person, for a script:

    vllm-autotuner status -A -o json | jq -r '.services[] | select(.conditions != []) | .name'

Exit codes: 0 shown (also when there are none), 1 error, 2 wrong options.
"""
FORMATS: Final = ("table", "wide", "json", "yaml")
MONTH: Final = timedelta(days=30)
"""Over which savings are summed up here; `report --since` takes any time."""

Name: TypeAlias = tuple[str, str]
"""Namespace and name."""


@with_groups
def status(
    *,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")] = False,
    cluster: ClusterOptions,
    cost: CostOptions,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORMAT", help="table, wide, json or yaml.")
    ] = "table",
) -> None:
    """Show all services with their diagnosis, latencies and changes, the worst first."""
    try:
        form = one_of("--output", output, FORMATS)
        if all_namespaces and cluster.namespace is not None:
            raise CommandError("give --all-namespaces or --namespace, not both")
        prices = cost.prices()
    except CommandError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        objects, namespace = asyncio.run(stored_services(cluster, everywhere=all_namespaces))
    except CommandError as error:
        raise failed(error, code=1) from None
    rows, saved = worst_first(map(row_of, objects)), _savings(objects, prices=prices)
    if form in ("json", "yaml"):
        found = {"services": [_as_dict(row, saved) for row in rows]}
        typer.echo(json.dumps(found, indent=2) if form == "json" else yaml.safe_dump(found, sort_keys=False), nl=False)
        return
    if not rows:
        answers().print(Text(none_there(namespace)))
        return
    console, wide = answers(), form == "wide"
    console.print(_table(rows, saved=saved if wide else {}, wide=wide, everywhere=all_namespaces))
    if wide:
        console.print(Text(f"GPUs, last 30 days: {told_fleet(fleet_savings(saved.values()))}"))


def _savings(objects: Sequence[Mapping[str, Any]], *, prices: Prices) -> dict[Name, Savings]:
    now = datetime.now(tz=UTC)
    return {
        (each["metadata"]["namespace"], each["metadata"]["name"]): savings_of(
            parse_service(each), since=now - MONTH, until=now, prices=prices
        )
        for each in objects
    }


def _as_dict(row: ServiceRow, saved: Mapping[Name, Savings]) -> dict[str, Any]:
    savings = savings_json(saved[row.namespace, row.name])
    return as_dict(row) | {"conditions": list(row.conditions), "savings": savings}


def _table(rows: Sequence[ServiceRow], *, saved: Mapping[Name, Savings], wide: bool, everywhere: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    titles = [*(["namespace"] if everywhere else []), "name", "diagnosis", "mode", "ready", "TTFT", "TPOT", "KV"]
    for title in (*titles, *(["engine", "GPUs, 30 d"] if wide else []), "change"):
        table.add_column(title, overflow="fold")
    for row in rows:
        cells: list[str | Text] = [row.namespace] if everywhere else []
        cells += [row.name, _diagnosis(row), row.mode, row.ready, row.ttft or "", row.tpot or "", row.kv_usage or ""]
        cells += [row.effective or "", short_savings(saved[row.namespace, row.name])] if wide else []
        said = [*row.conditions, *([row.next] if row.next else []), *([row.message] if wide and row.message else [])]
        cells.append("; ".join(said))
        table.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells))
    return table


def _diagnosis(row: ServiceRow) -> Text:
    style = "" if row.look is None else row.look.terminal
    return Text(printable(row.diagnosis if row.diagnosis != NO_DIAGNOSIS else "not yet"), style)
