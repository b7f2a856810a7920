"""From a request to an answer: open the source, evaluate it, and note its limits.

Must not: print an answer, or choose an exit code.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from vllm_autotuner.cli.diagnosis.request import Request
from vllm_autotuner.cli.evaluate.evaluation import ServiceReport, evaluate
from vllm_autotuner.cli.evaluate.metrics_source import (
    DirectScrape,
    NoEngine,
    Opened,
    RecordingFile,
    RemotePrometheus,
    open_recording,
    sampled,
    source_name,
)
from vllm_autotuner.cli.evaluate.moments import Schedule, Span, moment_of, recorded, remote
from vllm_autotuner.cli.evaluate.service_groups import by_labels, one_service
from vllm_autotuner.cli.terminal import printable, progress, remarks
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.engine.foreign_servers import ForeignServer, foreign_server, foreign_sign
from vllm_autotuner.engine.metric_names import NAMES, Meaning
from vllm_autotuner.observation.access import PrometheusAddress, shown_url
from vllm_autotuner.observation.errors import SourceError
from vllm_autotuner.observation.label_matchers import selector
from vllm_autotuner.observation.prometheus import PrometheusSource
from vllm_autotuner.observation.questions import Samples
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.scrape import Clock
from vllm_autotuner.observation.snapshot import WindowSettings
from vllm_autotuner.observation.state_windows import Windows, windows_of

__all__ = ["Answer", "answer"]

QUIET: Final = (
    DiagnosisClass.HEALTHY,
    DiagnosisClass.UNDERUTILIZED,
    DiagnosisClass.IDLE,
    DiagnosisClass.COLD_START,
    DiagnosisClass.UNCLEAR,
)
"""Classes that need no mention once they are over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was found at the moment `at` (Unix seconds). `span`: what a recording covers; `notes`: its limits."""

    reports: Sequence[ServiceReport]
    at: float
    span: Span | None = None
    notes: tuple[str, ...] = ()


async def answer(request: Request) -> Answer:
    """Answer the request. Raises SourceError, CommandError, or NoEngine when there is nothing to judge."""
    match request.source:
        case RemotePrometheus(address):
            return await _from_prometheus(request, address=address)
        case RecordingFile(path):
            with remarks().status(f"reading {printable(path.name)}") if remarks().is_terminal else nullcontext():
                opened = open_recording(path)
            return await _from_samples(request, opened=opened, place=path.name)
        case DirectScrape() as source:
            opened = await _sampled(source)
            return await _from_samples(request, opened=opened, place=source_name(source))


async def _from_prometheus(request: Request, *, address: PrometheusAddress) -> Answer:
    at = time.time() if request.at is None else moment_of(request.at, start=None)
    source = PrometheusSource(address)
    schedule = remote(at, back=request.back)
    try:
        with progress(remarks()) as bar:
            task = bar.add_task("querying Prometheus", total=len(schedule.ticks))
            look = partial(
                evaluate,
                source,
                grouping=by_labels(request.services.service_label),
                subject=request.subject,
                settings=WindowSettings(),
                wanted=request.wanted,
            )
            reports: Sequence[ServiceReport] = ()
            # Only who is there at the last moment is reported: where nobody is, a long time need not be asked about.
            if request.back is None or await look(schedule=Schedule(ticks=schedule.ticks[-1:])):
                reports = await look(schedule=schedule, evaluated=lambda: bar.advance(task))
        stranger = None if reports else await _stranger(source, match=address.match, at=at)
    finally:
        await source.close()
    if not reports:
        filters = {"namespace": request.services.namespace, "service": request.services.service}
        chosen = "".join(f", {name} {value}" for name, value in filters.items() if value is not None)
        beside = f"; {stranger.message}" if stranger is not None else ""
        raise NoEngine(f"no vLLM engine reports to {shown_url(address.url)}{chosen}{beside}")
    odd = tuple(note for report in reports for note in _unreadable(report))
    if request.back is None:
        return Answer(reports=reports, at=at, notes=odd)
    span = Span(schedule.ticks[0], at)
    notes = odd + tuple(f"{report.service.name} {note}" for report in reports for note in _earlier(report, span=span))
    return Answer(reports=reports, at=at, span=span, notes=notes)


async def _stranger(source: PrometheusSource, *, match: Sequence[str], at: float) -> ForeignServer | None:
    """What reports instead of a vLLM; None where nothing known does, or the source does not say."""
    try:
        found = await source.query(f"group by (__name__) ({selector(foreign_sign(), match=match)})", at=at)
    except SourceError:
        return None
    return foreign_server(one.labels.get("__name__", "") for one in found)


async def _from_samples(request: Request, *, opened: Opened, place: str) -> Answer:
    span = opened.span
    at = None if request.at is None else moment_of(request.at, start=span.first)
    schedule = recorded(span, at=at, every=request.every, everything=request.everything)
    usual = WindowSettings()
    length = span.last - span.first
    notes = opened.notes
    windows = await _windows(opened.recording, at=span.last, settings=usual)
    doubtful = length < windows.usual
    if doubtful:
        pace = "" if windows.interval is None else f" at this scrape interval of {windows.interval:.3g} s"
        notes += (f"only {length:.0f} s of samples; a full window needs {windows.usual} s{pace}",)
    with progress(remarks()) as bar:
        task = bar.add_task("evaluating", total=len(schedule.ticks))
        reports = await evaluate(
            opened.recording,
            schedule=schedule,
            grouping=one_service,
            subject=replace(request.subject, doubtful=doubtful),
            settings=replace(usual, state=max(1, min(usual.state, int(length)))),
            evaluated=lambda: bar.advance(task),
        )
    if not reports:
        known = any(name.startswith("vllm:") for name in opened.recording.names)
        raise NoEngine(
            f"no vLLM engine reports in {place} at that moment" if known else f"{place} contains no vLLM metrics"
        )
    notes += tuple(note for report in reports for note in _unreadable(report))
    if not schedule.shown:
        notes += tuple(note for report in reports for note in _earlier(report, span=span))
    return Answer(reports=reports, at=schedule.ticks[-1], span=span, notes=notes)


async def _windows(recording: Recording, *, at: float, settings: WindowSettings) -> Windows:
    """Over how many seconds a state is judged: longer than usual where scrapes are far apart."""
    gauges = await recording.ask(Samples(names=NAMES[Meaning.RUNNING].names, window=settings.gauges), at=at)
    return windows_of(gauges, at=at, settings=settings)


def _unreadable(report: ServiceReport) -> Iterable[str]:
    """The engines that were left out although they answer."""
    for pod, why in report.observation.unreadable.items():
        yield f"{pod or report.service.name} is left out: {why}"


def _earlier(report: ServiceReport, *, span: Span) -> Iterable[str]:
    """What a reader of the last moment would miss: limits that came and went before it."""
    unremarkable = (report.diagnosis.primary, *QUIET)
    before = [turn for turn in report.turns if turn.diagnosis.primary not in unremarkable]
    if before:
        seen = ", ".join(f"{turn.diagnosis.primary} from +{turn.time - span.first:.0f} s" for turn in before[:5])
        yield f"earlier: {seen}"


async def _sampled(source: DirectScrape) -> Opened:
    clock = Clock(started=time.time(), monotonic=time.monotonic, sleep=asyncio.sleep)
    scrapes = int(source.duration / source.interval) + 1
    with progress(remarks()) as bar:
        task = bar.add_task("sampling", total=scrapes * len(source.targets))
        return await sampled(source, clock=clock, scraped=lambda target: bar.advance(task))
