"""`vllm-autotuner report`: what tuning did for a fleet in a period, as a summary and one HTML file.

Reads VLLMServices and, with --prometheus, what they went through. Changes nothing.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.cli.diagnosis.request import prometheus_of
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.metrics_source import RemotePrometheus, source_name
from vllm_autotuner.cli.evaluate.service_groups import ServiceName
from vllm_autotuner.cli.fleet.report_page import FleetReport, Reported, report_page, summary
from vllm_autotuner.cli.fleet.stored_services import none_there, stored_services
from vllm_autotuner.cli.fleet.timelines import Timelines, moments, timelines
from vllm_autotuner.cli.options.access_options import AccessOptions
from vllm_autotuner.cli.options.cost_options import CostOptions
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.kubernetes import ClusterOptions
from vllm_autotuner.cli.options.source import OptionalPrometheus
from vllm_autotuner.cli.options.values import duration_of
from vllm_autotuner.cli.report.file import own_version, refuse_unwritable, written
from vllm_autotuner.cli.report.page import over_time
from vllm_autotuner.cli.report.plots import NO_PLOT, can_plot
from vllm_autotuner.cli.terminal import answers, failed, printable, progress, remarks
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.observation.errors import SourceError
from vllm_autotuner.overview.gpu_hours import Prices, savings_of
from vllm_autotuner.overview.service_row import row_of, worst_first

__all__ = ["EXAMPLES", "report"]

EXAMPLES: Final = """
Examples:

  What did it do for me last month?

    vllm-autotuner report -A --since 30d --gpu-price 2.49

  The last week with the course of every service:

    vllm-autotuner report -n prod --prometheus http://localhost:9090 --html fleet.html

Exit codes: 0 written, 1 error, 2 no data (no VLLMService).
"""
NO_DATA: Final = 2
LONGEST: Final = timedelta(days=365)
"""Of a period: no status remembers more."""
MOST_PLOTS: Final = 20
"""Services with a plot: 100 KB each. The worst come first."""


@with_groups
def report(
    *,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")] = False,
    cluster: ClusterOptions,
    source: OptionalPrometheus,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="How long the period is that ends now.", rich_help_panel="Time")
    ] = "7d",
    cost: CostOptions,
    html: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the report is written.", rich_help_panel="Output")
    ] = Path("vllm-report.html"),
    access: AccessOptions,
) -> None:
    """Report what tuning did for a fleet, as one HTML file: services worst first, changes, GPU-hours saved.

    Savings, changes and decisions come from the objects. With --prometheus each service has its classes and latencies
    over the period as well.
    """
    try:
        if all_namespaces and cluster.namespace is not None:
            raise CommandError("give --all-namespaces or --namespace, not both")
        period = duration_of("--since", since)
        if period > LONGEST:
            raise CommandError(f"--since {since}: write at most {LONGEST.days}d")
        refuse_unwritable(html, option="--html")
        prices = cost.prices()
        prometheus = prometheus_of(source.prometheus, match=source.match, access=access.access())
        bodies, namespace = asyncio.run(stored_services(cluster, everywhere=all_namespaces))
        if not bodies:
            raise failed(none_there(namespace), code=NO_DATA, kind="no data")
        found = asyncio.run(_report(bodies, prometheus, period=period, prices=prices))
        written(html, report_page(found))
    except (CommandError, SourceError) as error:
        raise failed(error, code=1) from None
    console = answers()
    for name, line in summary(found):
        console.print(Text(printable(f"{name + ':' if name else '':<10}{line}")), soft_wrap=True)
    for note in found.notes:
        console.print(Text(printable(f"Note: {note}")), soft_wrap=True)
    console.print(Text(printable(f"Wrote {html}")), soft_wrap=True)


async def _report(
    bodies: Sequence[Mapping[str, Any]], prometheus: RemotePrometheus | None, *, period: timedelta, prices: Prices
) -> FleetReport:
    """The report. Raises CommandError."""
    until = datetime.now(tz=UTC)
    seen = (
        Timelines()
        if prometheus is None
        else await _timelines(bodies, prometheus, period=period, catalogue=prices.catalogue)
    )
    figures, notes = _figures(bodies, seen, asked=prometheus is not None)
    by_name = {(each["metadata"]["namespace"], each["metadata"]["name"]): parse_service(each) for each in bodies}
    services = []
    for row in worst_first(map(row_of, bodies)):
        service = by_name[row.namespace, row.name]
        services.append(
            Reported(
                row=row,
                service=service,
                savings=savings_of(service, since=until - period, until=until, prices=prices),
                figure=figures.get(ServiceName(row.namespace, row.name), ""),
            )
        )
    return FleetReport(
        services=services,
        since=until - period,
        until=until,
        source="Kubernetes" if prometheus is None else f"Kubernetes and {source_name(prometheus)}",
        version=own_version(),
        notes=notes,
    )


async def _timelines(
    bodies: Sequence[Mapping[str, Any]], prometheus: RemotePrometheus, *, period: timedelta, catalogue: Catalogue
) -> Timelines:
    services = [each for each in map(parse_service, bodies) if isinstance(each, VLLMService)]
    if not services:
        return Timelines()
    schedule = moments(time.time(), back=period.total_seconds())
    with progress(remarks()) as bar:
        task = bar.add_task("querying Prometheus", total=len(schedule.ticks))
        return await timelines(
            services, prometheus, schedule=schedule, catalogue=catalogue, looked=lambda: bar.advance(task)
        )


def _figures(
    bodies: Sequence[Mapping[str, Any]], seen: Timelines, *, asked: bool
) -> tuple[Mapping[ServiceName, str], list[str]]:
    """The plots of the worst services, and what a reader should know about them."""
    if not asked:
        return {}, ["no --prometheus was given: what the services went through is not shown"]
    notes = []
    if seen.failed:
        notes.append(f"Prometheus did not answer for {seen.failed} of {seen.looks} moments ({seen.why})")
    silent = len(bodies) - len(seen.reports)
    if silent:
        notes.append(f"{silent} of {len(bodies)} services have no vLLM metrics in this Prometheus now")
    if not can_plot():
        notes.append(NO_PLOT)
    worst = [ServiceName(row.namespace, row.name) for row in worst_first(map(row_of, bodies))]
    drawn = [name for name in worst if name in seen.reports]
    if len(drawn) > MOST_PLOTS:
        notes.append(f"the worst {MOST_PLOTS} of {len(drawn)} services are plotted")
    figures = {name: over_time(seen.reports[name], identity=index) for index, name in enumerate(drawn[:MOST_PLOTS])}
    return figures, notes
