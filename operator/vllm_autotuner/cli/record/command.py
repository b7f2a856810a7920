"""`vllm-autotuner record`: scrape engines into a file that can be attached to a bug report.

Reads options and chooses an exit code: 0 recorded, 1 an error in one line, 2 nothing to record.
Must not: judge what it records.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import typer
from rich.text import Text

from vllm_autotuner.api.wording import counted
from vllm_autotuner.cli.diagnosis.text import seconds
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.interruption import interrupted
from vllm_autotuner.cli.options.access_options import AccessOptions
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.record.options import Plan, RecordOptions
from vllm_autotuner.cli.terminal import failed, printable, progress, remarks
from vllm_autotuner.observation.access import Access
from vllm_autotuner.observation.errors import Rejected, SourceError, Unreadable
from vllm_autotuner.observation.families import Families
from vllm_autotuner.observation.metrics_text import read_samples
from vllm_autotuner.observation.prometheus import PageReader
from vllm_autotuner.observation.scrape import (
    ENGINE_PREFIX,
    SCRAPE_TIMEOUT,
    Clock,
    Received,
    Sampler,
    ScrapeTarget,
)
from vllm_autotuner.observation.spool import RecordingFull, Spool

__all__ = ["EXAMPLES", "record", "recorded"]

EXAMPLES = """
Examples:

  Ten minutes of one engine, to attach to a bug report:

    vllm-autotuner record --metrics http://localhost:8000 --out incident.om.gz --for 10m

  Two engines of one service, every second; Ctrl-C stops and keeps what was recorded:

    vllm-autotuner record --metrics http://a:8000 --metrics http://b:8000 --out both.om.gz --for 1h --every 1s

  Diagnose the recording, or load it into a Prometheus:

    vllm-autotuner diagnose --recording incident.om.gz --html report.html

    gunzip -k incident.om.gz && promtool tsdb create-blocks-from openmetrics incident.om ./data

A recording contains metric names, labels, values and times, including the model's name.
It contains no prompts and no outputs.

Exit codes: 0 recorded, 1 error, 2 nothing to record (no engine answered, or none is vLLM).
"""

FAILED: Final = 1
NOTHING: Final = 2
PROCESS_START: Final = "process_start_time_seconds"
"""Kept beside the engine's own families: it shows a restart."""


class _NoEngine(Unreadable):
    """A page of metrics, and not of vLLM."""


@with_groups
def record(*, wanted: RecordOptions, access: AccessOptions) -> None:
    """Record the metrics of running engines into a file for `diagnose --recording` and `promtool`.

    An engine that does not answer is retried at each scrape and leaves a gap. Ctrl-C stops early and keeps the data.
    """
    try:
        found = asyncio.run(_run(wanted.plan(), access=access.access()))
    except _NoEngine as error:
        raise failed(error, code=NOTHING, kind="no data") from None
    except (CommandError, SourceError) as error:
        raise failed(error, code=FAILED) from None
    if not found:
        raise typer.Exit(NOTHING)


async def _run(plan: Plan, *, access: Access) -> bool:
    clock = Clock(started=time.time(), monotonic=time.monotonic, sleep=asyncio.sleep)
    reader = PageReader(timeout=SCRAPE_TIMEOUT, access=access)
    try:
        return await recorded(plan, clock=clock, reader=reader)
    finally:
        await reader.close()


async def recorded(plan: Plan, *, clock: Clock, reader: PageReader) -> bool:
    """Record until the time is over or the user stops it, and write the file; False when there was nothing."""
    try:
        with TemporaryDirectory(prefix="vllm-autotuner-record-") as folder:
            spool = Spool(Path(folder))
            sampler, why = await _sample(plan, spool=spool, clock=clock, reader=reader)
            failed = {place: found for place, found in sampler.failures.items() if found.count}
            for place, found in failed.items():
                _say(f"{counted(found.count, 'scrape')} of {place} failed; last error: {found.last}")
            if not spool.samples:
                _say("no data: nothing was recorded, no file was written")
                return False
            spool.write(plan.out)
            size = plan.out.stat().st_size
    except OSError as error:
        raise CommandError(f"cannot write the recording: {error.strerror or error}") from error
    lasted = seconds(clock.monotonic() - sampler.zero)
    _say(f"{why}wrote {plan.out}: {lasted}, {spool.series:,} series, {spool.samples:,} samples, {size:,} bytes")
    return True


async def _sample(plan: Plan, *, spool: Spool, clock: Clock, reader: PageReader) -> tuple[Sampler, str]:
    """Sample into the spool; the text says why it ended before its time, empty when it did not."""
    step, until = plan.interval.total_seconds(), plan.duration.total_seconds()
    with progress(remarks()) as bar, interrupted() as stop:
        task = bar.add_task("recording", total=(int(until / step) + 1) * len(plan.targets))
        sampler = Sampler(
            clock=clock,
            reader=reader,
            receive=_into(spool, everything=plan.everything),
            scraped=lambda target: bar.advance(task),
        )
        try:
            errors = await sampler.first(plan.targets)
            if len(errors) == len(plan.targets) and all(isinstance(one, Rejected | Unreadable) for one in errors):
                # It answers, and it is not an engine's page: trying again would not change that.
                raise errors[0]
            for error in errors:
                _say(f"trying again at each scrape: {error}")
            sampling = asyncio.create_task(sampler.repeat(plan.targets, step=step, until=until))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((sampling, stopping), return_when=asyncio.FIRST_COMPLETED)
            for one in (sampling, stopping):
                one.cancel()
            await asyncio.gather(sampling, stopping, return_exceptions=True)
            if not sampling.cancelled() and (error_found := sampling.exception()) is not None:
                raise error_found
        except RecordingFull as full:
            return sampler, f"stopped early ({full}); "
        return sampler, "stopped early; " if stop.is_set() else ""


def _into(spool: Spool, *, everything: bool) -> Received:
    def receive(target: ScrapeTarget, page: str, at: float) -> None:
        try:
            # All of it first: half a page must not become half a scrape.
            samples = [
                sample
                for sample in read_samples(page.splitlines())
                if everything or sample.name.startswith(ENGINE_PREFIX) or sample.name == PROCESS_START
            ]
        except Unreadable as error:
            raise Unreadable(f"{target.place} does not return metrics ({error})") from error
        if not any(sample.name.startswith(ENGINE_PREFIX) for sample in samples):
            raise _NoEngine(f"{target.place} returns metrics, but none of vLLM")
        labels = (("instance", target.pod),) if target.pod else ()
        spool.add(samples, families=Families(page), time=at, labels=labels)

    return receive


def _say(line: str) -> None:
    remarks().print(Text(printable(line)), soft_wrap=True)
