"""`vllm-autotuner status`: all services of a cluster or namespace, the worst first. Reads objects, never metrics."""

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Final

import typer
import yaml
from rich import box
from rich.table import Table
from rich.text import Text

from vllm_autotuner.cli.api_connection import connected
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.fleet.service_row import NO_DIAGNOSIS, ServiceRow, as_dict, row_of, worst_first
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.kubernetes import ClusterOptions
from vllm_autotuner.cli.options.values import one_of
from vllm_autotuner.cli.terminal import answers, failed, printable

__all__ = ["EXAMPLES", "status"]

EXAMPLES: Final = """
Examples:

  The services of a namespace, the worst first:

    vllm-autotuner status -n prod

  Of all namespaces, with engine settings and what the operator says of each:

    vllm-autotuner status -A -o wide

  Those that need a person, for a script:

    vllm-autotuner status -A -o json | jq -r '.services[] | select(.conditions != []) | .name'

Exit codes: 0 shown (also when there are none), 1 error.
"""
FORMATS: Final = ("table", "wide", "json", "yaml")


@with_groups
def status(
    *,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")] = False,
    cluster: ClusterOptions,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORMAT", help="table, wide, json or yaml.")
    ] = "table",
) -> None:
    """Show all services with their diagnosis, latencies and changes, the worst first."""
    try:
        form = one_of("--output", output, FORMATS)
        if all_namespaces and cluster.namespace is not None:
            raise CommandError("give --all-namespaces or --namespace, not both")
    except CommandError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        rows, namespace = asyncio.run(_rows(cluster, everywhere=all_namespaces))
    except CommandError as error:
        raise failed(error, code=1) from None
    if form in ("json", "yaml"):
        found = {"services": [as_dict(row) | {"conditions": list(row.conditions)} for row in rows]}
        typer.echo(json.dumps(found, indent=2) if form == "json" else yaml.safe_dump(found, sort_keys=False), nl=False)
        return
    if not rows:
        where = "in any namespace" if namespace is None else f"in namespace {namespace} (-A shows all)"
        answers().print(Text(f"no VLLMService {where}"))
        return
    answers().print(_table(rows, wide=form == "wide", everywhere=all_namespaces))


async def _rows(where: ClusterOptions, *, everywhere: bool) -> tuple[list[ServiceRow], str | None]:
    """The rows, and the namespace that they are of; None for all."""
    from vllm_autotuner.cluster.kinds import VLLM_SERVICE

    missing = "this cluster does not know VLLMService: install the chart, or apply crds/vllmservices.yaml"
    async with connected(where, missing=missing) as (cluster, current):
        namespace = None if everywhere else current
        objects = [each async for page in cluster.pages(VLLM_SERVICE, namespace=namespace) for each in page.objects]
    return worst_first(map(row_of, objects)), namespace


def _table(rows: Sequence[ServiceRow], *, wide: bool, everywhere: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    titles = [*(["namespace"] if everywhere else []), "name", "diagnosis", "mode", "ready", "TTFT", "TPOT", "KV"]
    for title in (*titles, *(["engine"] if wide else []), "change"):
        table.add_column(title, overflow="fold")
    for row in rows:
        cells: list[str | Text] = [row.namespace] if everywhere else []
        cells += [row.name, _diagnosis(row), row.mode, row.ready, row.ttft or "", row.tpot or "", row.kv_usage or ""]
        cells += [row.effective or ""] if wide else []
        said = [*row.conditions, *([row.next] if row.next else []), *([row.message] if wide and row.message else [])]
        cells.append("; ".join(said))
        table.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells))
    return table


def _diagnosis(row: ServiceRow) -> Text:
    style = "" if row.look is None else row.look.terminal
    return Text(printable(row.diagnosis if row.diagnosis != NO_DIAGNOSIS else "not yet"), style)
