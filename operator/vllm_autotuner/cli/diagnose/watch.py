"""The loop of `diagnose --watch`.

A source that fails at the first evaluation ends the command; later it is a line in the view, and the next one retries.
Must not: draw (`watch_view` does), or read a clock of its own.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from vllm_autotuner.cli.diagnosis.request import Request
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.evaluation import Evaluation, ServiceReport
from vllm_autotuner.cli.evaluate.metrics_source import DirectScrape, RecordingFile, RemotePrometheus, source_name
from vllm_autotuner.cli.evaluate.service_groups import by_labels, one_service
from vllm_autotuner.cli.interruption import interrupted
from vllm_autotuner.observation.prometheus import PageReader, PrometheusSource
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.scrape import SCRAPE_TIMEOUT, Clock, Sampler, may_pass, sampled_into
from vllm_autotuner.observation.snapshot import WindowSettings

__all__ = ["Frame", "watch", "watched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What one look saw. `problem`: why the source gave no answer; then the reports are those of the last look."""

    at: float
    source: str
    reports: Sequence[ServiceReport]
    problem: str = ""


async def watch(request: Request, *, refresh: float, show: Callable[[Frame], None]) -> None:
    """Evaluate every `refresh` seconds until interrupted. Raises CommandError, or SourceError at the first one."""
    with interrupted() as stop:

        async def pause() -> bool:
            try:
                await asyncio.wait_for(stop.wait(), refresh)
            except TimeoutError:
                return True
            return False

        async with _opened(request) as (evaluation, ready):
            await watched(
                evaluation, source=source_name(request.source), now=time.time, pause=pause, show=show, ready=ready
            )


async def watched(
    evaluation: Evaluation,
    *,
    source: str,
    now: Callable[[], float],
    pause: Callable[[], Awaitable[bool]],
    show: Callable[[Frame], None],
    ready: Callable[[float], None] = lambda at: None,
) -> None:
    """Evaluate and show until `pause` returns False. `ready` is called with the time before each evaluation."""
    looked = False
    while True:
        at = now()
        ready(at)
        try:
            await evaluation.look(at)
        except CommandError as error:
            if not looked:
                raise
            show(Frame(at=at, source=source, reports=evaluation.reports(), problem=str(error)))
        else:
            looked = True
            show(Frame(at=at, source=source, reports=evaluation.reports()))
        if not await pause():
            return


@asynccontextmanager
async def _opened(request: Request) -> AsyncIterator[tuple[Evaluation, Callable[[float], None]]]:
    match request.source:
        case RemotePrometheus(address):
            remote = PrometheusSource(address)
            evaluation = Evaluation(
                remote,
                grouping=by_labels(request.services.service_label),
                subject=request.subject,
                settings=WindowSettings(),
                wanted=request.wanted,
            )
            try:
                yield evaluation, lambda at: None
            finally:
                await remote.close()
        case DirectScrape() as scrape:
            async with _sampling(scrape, request=request) as found:
                yield found
        case RecordingFile():
            raise CommandError("--watch needs --prometheus URL or --metrics URL")


@asynccontextmanager
async def _sampling(
    scrape: DirectScrape, *, request: Request
) -> AsyncIterator[tuple[Evaluation, Callable[[float], None]]]:
    """Sample in the background into a recording that forgets, so that a view may stay open for weeks."""
    recording, settings = Recording(), WindowSettings()
    evaluation = Evaluation(recording, grouping=one_service, subject=request.subject, settings=settings)
    started = time.time()

    def ready(at: float) -> None:
        recording.forget(before=at - settings.long - settings.gauges)
        # As long as there are fewer samples than a state is judged over, no answer is a confident one.
        evaluation.subject = replace(request.subject, doubtful=at - started < settings.state)

    clock = Clock(started=started, monotonic=time.monotonic, sleep=asyncio.sleep)
    reader = PageReader(timeout=SCRAPE_TIMEOUT, access=scrape.access)
    sampler = Sampler(clock=clock, reader=reader, receive=sampled_into(recording))
    try:
        errors = await sampler.first(scrape.targets)
        if len(errors) == len(scrape.targets) and not any(map(may_pass, errors)):
            raise errors[0]
        step = scrape.interval.total_seconds()
        sampling = asyncio.create_task(sampler.repeat(scrape.targets, step=step, until=math.inf))
        try:
            yield evaluation, ready
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
    finally:
        await reader.close()
