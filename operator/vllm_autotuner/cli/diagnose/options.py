"""The option groups that only `diagnose` has, and which options contradict each other."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final

import typer

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.metrics_source import DirectScrape, direct_scrape
from vllm_autotuner.cli.options.access_options import AccessOptions
from vllm_autotuner.cli.options.moment import Moment
from vllm_autotuner.cli.options.output import OutputFormat
from vllm_autotuner.cli.options.source import AnySource, ServiceFilter
from vllm_autotuner.cli.options.values import duration_of
from vllm_autotuner.cli.report.file import refuse_unwritable
from vllm_autotuner.observation.access import Access

__all__ = ["PresentationOptions", "SamplingOptions", "TimeOptions", "refuse_contradictions"]

REPORTED: Final = "15m"
"""How far back a report on a Prometheus looks: long enough to see a queue build up. One minute is four evaluations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How engines are scraped."""

    PANEL: ClassVar = "Sampling (with --metrics)"

    sample_for: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long to sample. Default: 60s.")
    ] = None
    scrape_interval: Annotated[str | None, typer.Option(metavar="TIME", help="Time between samples. Default: 1s.")] = (
        None
    )

    def scrape(self, urls: list[str] | None, *, access: Access) -> DirectScrape | None:
        """Return what to scrape. Raises CommandError, and Rejected for a bad URL."""
        if not urls:
            return None
        return direct_scrape(
            urls,
            duration=duration_of("--for", self.sample_for or "60s"),
            interval=duration_of("--scrape-interval", self.scrape_interval or "1s"),
            access=access,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOptions:
    """Which moment or range is evaluated."""

    PANEL: ClassVar = "Time"

    at: Moment = None
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Add a timeline over the whole recording, one row every TIME.")
    ] = None
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Evaluate a Prometheus from TIME ago. Default: 45s; with --html: 15m."),
    ] = None

    def every_seconds(self) -> float | None:
        """Seconds between the rows of the timeline. Raises CommandError."""
        return None if self.every is None else duration_of("--every", self.every).total_seconds()

    def back_seconds(self, *, reported: bool) -> float | None:
        """Seconds from which a Prometheus is evaluated; a report needs more of them. Raises CommandError."""
        text = self.since or (REPORTED if reported else None)
        return None if text is None else duration_of("--since", text).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentationOptions:
    """How the answer is shown."""

    PANEL: ClassVar = "Output"

    output: OutputFormat = "human"
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a report into one HTML file; its plots need the extra `report`."),
    ] = None
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Refresh continuously from --prometheus or --metrics; Ctrl-C ends it."),
    ] = False
    refresh: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time between refreshes of --watch. Default: 10s.")
    ] = None

    def refuse_unusable(self, *, recording: Path | None) -> None:
        """Raise CommandError for a report that could never be written."""
        if self.html is not None:
            refuse_unwritable(self.html, option="--html", source=recording)

    def refresh_seconds(self) -> float:
        """Seconds between two refreshes. Raises CommandError."""
        return duration_of("--refresh", self.refresh or "10s").total_seconds()


def refuse_contradictions(
    source: AnySource,
    *,
    sampling: SamplingOptions,
    services: ServiceFilter,
    time: TimeOptions,
    access: AccessOptions,
    shown: PresentationOptions,
) -> None:
    """Raise CommandError for an option that means nothing beside the others."""
    sampled = sampling.sample_for is not None or sampling.scrape_interval is not None
    if source.prometheus is None and not source.metrics and access.given:
        raise CommandError("credentials, certificates and headers need --prometheus URL or --metrics URL")
    if time.since is not None and source.prometheus is None:
        raise CommandError("--since needs --prometheus URL; a recording is evaluated from its start")
    if sampled and not source.metrics:
        raise CommandError("--for and --scrape-interval need --metrics URL")
    if time.every is not None and source.recording is None:
        raise CommandError("--every needs --recording FILE")
    if time.at is not None and source.metrics:
        raise CommandError("--at needs --recording FILE or --prometheus URL; --metrics is sampled now")
    if time.at is not None and time.every is not None:
        raise CommandError("give --at for one moment or --every for a timeline, not both")
    if services.given and source.prometheus is None:
        raise CommandError("--namespace, --service and --service-label need --prometheus URL")
    if shown.watch and (shown.html or time.since or time.at or sampling.sample_for):
        raise CommandError("--watch starts now: leave out --html, --since, --at and --for")
    if not shown.watch and shown.refresh is not None:
        raise CommandError("--refresh needs --watch")
