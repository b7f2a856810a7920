"""The report of a fleet as one HTML file: what was saved, the services worst first, and each of them.

Must not: decide, or have a wording of its own for what the web page shows too (`overview` has it).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.cli.report.page import POLICY
from vllm_autotuner.overview.fleet_table import fleet_table
from vllm_autotuner.overview.gpu_hours import Fleet, Savings, fleet_savings
from vllm_autotuner.overview.html_page import definitions, document, listed, safe
from vllm_autotuner.overview.number_format import moment
from vllm_autotuner.overview.savings_text import fleet_lines, told_fleet
from vllm_autotuner.overview.service_row import NO_DIAGNOSIS, ServiceRow
from vllm_autotuner.overview.service_section import service_section

__all__ = ["FleetReport", "Reported", "report_page", "summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """One service of the report."""

    row: ServiceRow
    service: VLLMService | InvalidService
    savings: Savings
    figure: str = ""
    """Its plot as HTML; empty without metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """All of it."""

    services: Sequence[Reported]
    """The worst first."""
    since: datetime
    until: datetime
    source: str
    """As it may be shown: no credentials."""
    version: str
    notes: Sequence[str] = ()

    @property
    def fleet(self) -> Fleet:
        """The sum over the services."""
        return fleet_savings(each.savings for each in self.services)


def summary(report: FleetReport) -> Iterable[tuple[str, str]]:
    """The head of the report: the same on the terminal and in the file."""
    classes = Counter(each.row.diagnosis for each in report.services)
    named = ", ".join(f"{count} {'not diagnosed' if name == NO_DIAGNOSIS else name}" for name, count in classes.items())
    fleet = report.fleet
    yield "Period", f"{moment(report.since.isoformat())} to {moment(report.until.isoformat())}"
    yield "Services", f"{len(report.services)}: {named}"
    yield "Changes", f"{fleet.kept} kept, {fleet.rolled_back} rolled back"
    yield "GPUs", told_fleet(fleet)
    for line in fleet_lines(fleet):
        yield "", line


def report_page(report: FleetReport) -> str:
    """Return the whole document."""
    identities: Mapping[str, str] = {
        f"{each.row.namespace}/{each.row.name}": f"service-{index}" for index, each in enumerate(report.services)
    }
    head = [("Source", report.source), *summary(report)]
    table = fleet_table(
        [(each.row, each.savings) for each in report.services],
        link=lambda row: f"#{identities[f'{row.namespace}/{row.name}']}",
        caption="All services, the worst first",
    )
    body = [
        f"<header><h1>vLLM services</h1>{definitions(head)}</header><main>",
        f"<section><h2>Services</h2>{table}</section>",
        *(
            service_section(
                each.service,
                savings=each.savings,
                now=report.until,
                identity=identities[f"{each.row.namespace}/{each.row.name}"],
                beside=each.figure,
            )
            for each in report.services
        ),
        listed("Notes", report.notes),
        "</main>",
        f"<footer>Written by vllm-autotuner {safe(report.version)}. This file loads nothing from the network.</footer>",
    ]
    return document("vLLM services", body, policy=POLICY)
