"""The option group of `record`, and the checked plan that it makes."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Final

import typer

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.values import duration_of
from vllm_autotuner.cli.report.file import refuse_unwritable
from vllm_autotuner.observation.scrape import ScrapeTarget, scrape_targets

__all__ = ["Plan", "RecordOptions"]

SHORTEST_INTERVAL: Final = timedelta(milliseconds=100)
"""Between two scrapes of an engine: scraping more often disturbs it and shows nothing new; a step takes as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be recorded, checked."""

    targets: tuple[ScrapeTarget, ...]
    out: Path
    duration: timedelta
    interval: timedelta
    everything: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """What is to be recorded, as typed."""

    PANEL: ClassVar = "Recording"

    metrics: Annotated[
        list[str],
        typer.Option(
            metavar="URL",
            help="Engine to scrape, or its /metrics. Repeat for several engines of one service.",
            show_default=False,
        ),
    ]
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write: .om.gz, or .om for plain text.")]
    record_for: Annotated[str, typer.Option("--for", metavar="TIME", help="How long to record, such as 10m.")] = "10m"
    every: Annotated[str, typer.Option(metavar="TIME", help="Time between scrapes of an engine.")] = "2s"
    everything: Annotated[
        bool,
        typer.Option("--all", help="Record all metrics, not only those of vLLM and the start time of the process."),
    ] = False
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False

    def plan(self) -> Plan:
        """Check the options. Raises CommandError, and Rejected for a bad URL."""
        refuse_unwritable(self.out, option="--out")
        if self.out.exists() and not self.force:
            raise CommandError(f"{self.out} exists: name another file, or add --force to overwrite it")
        plan = Plan(
            targets=scrape_targets(self.metrics),
            out=self.out,
            duration=duration_of("--for", self.record_for),
            interval=duration_of("--every", self.every),
            everything=self.everything,
        )
        if plan.interval < SHORTEST_INTERVAL:
            raise CommandError("--every must be at least 100ms")
        return plan
