"""The three sources of metrics as values: a Prometheus, a recording, or engines that are scraped.

Must not: print, or evaluate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.moments import Span
from vllm_autotuner.observation.access import Access, PrometheusAddress, shown_url
from vllm_autotuner.observation.recording import Recording, load_recording
from vllm_autotuner.observation.scrape import Clock, ScrapeTarget, sample_engines, scrape_targets

__all__ = [
    "DirectScrape",
    "NoEngine",
    "Opened",
    "RecordingFile",
    "RemotePrometheus",
    "Source",
    "direct_scrape",
    "open_recording",
    "sampled",
    "source_name",
    "source_of",
]


class NoEngine(Exception):
    """The source answers, and there is no vLLM engine in it: the exit code is 2."""


@dataclass(frozen=True, slots=True)
class RemotePrometheus:
    """A Prometheus that scrapes a fleet."""

    address: PrometheusAddress


@dataclass(frozen=True, slots=True)
class RecordingFile:
    """A recording of one service."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectScrape:
    """The engines of one service, to be sampled now."""

    targets: Sequence[ScrapeTarget]
    duration: timedelta
    interval: timedelta
    access: Access = field(default_factory=Access)


Source: TypeAlias = RemotePrometheus | RecordingFile | DirectScrape


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Samples in memory, with what a person should know about them."""

    recording: Recording
    span: Span
    notes: tuple[str, ...] = field(default=())


def source_name(source: Source) -> str:
    """Name a source for display, without credentials and folders."""
    match source:
        case RemotePrometheus(address):
            return f"Prometheus {shown_url(address.url)}"
        case RecordingFile(path):
            return f"recording {path.name}"
        case DirectScrape(targets=targets):
            return " ".join(target.place for target in targets)


def source_of(
    *, prometheus: RemotePrometheus | None, recording: Path | None, metrics: DirectScrape | None, give: str
) -> Source:
    """Take the one source that was named. Raises CommandError for none or several, with what the command takes."""
    named: list[Source] = [one for one in (prometheus, metrics) if one is not None]
    if recording is not None:
        named.append(RecordingFile(recording))
    if len(named) != 1:
        how = "two sources were named" if named else "no source was named"
        raise CommandError(f"{how}: give {give}")
    return named[0]


def direct_scrape(urls: Sequence[str], *, duration: timedelta, interval: timedelta, access: Access) -> DirectScrape:
    """Check what is to be sampled. Raises Rejected for a bad URL, CommandError when nothing could grow."""
    if interval <= timedelta():
        raise CommandError("--scrape-interval must be longer than 0s")
    if duration < interval:
        raise CommandError("--for must be at least --scrape-interval: one scrape shows no rates")
    return DirectScrape(targets=scrape_targets(urls), duration=duration, interval=interval, access=access)


def open_recording(path: Path) -> Opened:
    """Read a recording. Raises SourceError."""
    recording = load_recording(path)
    return Opened(recording=recording, span=Span(recording.first, recording.last))


async def sampled(source: DirectScrape, *, clock: Clock, scraped: Callable[[ScrapeTarget], None]) -> Opened:
    """Sample the engines. Raises SourceError when none answers."""
    found = await sample_engines(
        source.targets,
        duration=source.duration,
        interval=source.interval,
        clock=clock,
        access=source.access,
        scraped=scraped,
    )
    recording = found.recording
    strangers = [f"{place}: {server.message}" for place, server in found.foreign.items()]
    if not recording.names:
        places = " ".join(target.place for target in source.targets)
        raise NoEngine("; ".join(strangers) or f"{places} returns metrics, but none of vLLM")
    return Opened(
        recording=recording,
        span=Span(recording.first, recording.last),
        notes=(*strangers, *(f"some scrapes failed: {error}" for error in found.failures.values())),
    )
