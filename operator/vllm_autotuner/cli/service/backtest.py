"""`vllm-autotuner backtest`: replay history through the operator's own functions, without changing anything.

Shows what would have been recommended when, how stable it was, and how accurate its predictions were.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import typer
from rich import box
from rich.text import Text

from vllm_autotuner.api.wording import counted
from vllm_autotuner.cli.diagnosis.request import Request, prometheus_of, typed_subject
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.evaluation import Evaluation
from vllm_autotuner.cli.evaluate.metrics_source import (
    DirectScrape,
    RecordingFile,
    RemotePrometheus,
    open_recording,
    source_of,
)
from vllm_autotuner.cli.evaluate.moments import Schedule, recorded, rfc3339, sparse
from vllm_autotuner.cli.evaluate.service_groups import by_labels, one_service
from vllm_autotuner.cli.options.access_options import AccessOptions
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.objective_options import ObjectiveOptions
from vllm_autotuner.cli.options.output import OutputFormat, is_text
from vllm_autotuner.cli.options.platform_options import PlatformOptions
from vllm_autotuner.cli.options.source import ServiceFilter, StoredSource
from vllm_autotuner.cli.options.values import duration_of
from vllm_autotuner.cli.service.replayed_history import History, Standing, replay
from vllm_autotuner.cli.terminal import WholeTable, answers, failed, printable, progress, remarks
from vllm_autotuner.engine.flags import FlagError
from vllm_autotuner.observation.errors import SourceError
from vllm_autotuner.observation.prometheus import PrometheusSource
from vllm_autotuner.observation.snapshot import WindowSettings

__all__ = ["EXAMPLES", "backtest"]

EXAMPLES = """
Examples:

  The last week of a fleet:

    vllm-autotuner backtest --prometheus http://localhost:9090 --namespace prod --since 7d

  A recording, every minute:

    vllm-autotuner backtest --recording incident.om.gz --engine-args "--max-num-seqs 64" --every 1m

  As JSON:

    vllm-autotuner backtest --recording incident.om.gz --output json

Exit codes: 0 replayed, 1 error, 2 no data.
"""
NO_DATA: Final = 2
SOURCES: Final = "exactly one of --prometheus URL and --recording FILE"
RECORDED_PACE: Final = 30.0
"""Seconds between evaluations of a recording without --every."""
COLUMNS: Final = ("from", "until", "evaluations", "class", "change", "limited by", "prediction error")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Which stretch of history is replayed, and how densely."""

    PANEL: ClassVar = "Time"

    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="How far back a Prometheus is replayed. Default: 7d.")
    ] = None
    every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time between evaluations. Default: 30s; of a Prometheus --since / 500."),
    ] = None

    def pace(self) -> float | None:
        """Seconds between evaluations, where given. Raises CommandError."""
        return None if self.every is None else duration_of("--every", self.every).total_seconds()

    def back(self) -> float:
        """Seconds of a Prometheus' history. Raises CommandError."""
        return duration_of("--since", self.since or "7d").total_seconds()


@with_groups
def backtest(
    *,
    source: StoredSource,
    services: ServiceFilter,
    period: ReplayOptions,
    platform: PlatformOptions,
    objectives: ObjectiveOptions,
    output: OutputFormat = "human",
    access: AccessOptions,
) -> None:
    """Replay history: what would have been recommended when, and how accurate its predictions were.

    Changes nothing. The history was measured with the configuration that ran, so a prediction can be tested only
    where the load later reached the predicted batch size.
    """
    try:
        as_text = is_text(output)
        if source.recording is not None and (period.since is not None or services.given):
            raise CommandError("--since, --namespace, --service and --service-label need --prometheus URL")
        subject = typed_subject(objectives, platform)
        address = prometheus_of(source.prometheus, match=source.match, access=access.access())
        request = Request(
            source=source_of(prometheus=address, recording=source.recording, metrics=None, give=SOURCES),
            subject=subject,
            every=period.pace(),
            back=None if address is None else period.back(),
            services=services,
        )
        histories = asyncio.run(_replayed(request))
    except (CommandError, SourceError, FlagError) as error:
        raise failed(error, code=1) from None
    if as_text:
        for history in histories:
            _print(history)
    else:
        typer.echo(json.dumps({"services": [_json(each) for each in histories]}, indent=2, allow_nan=False))
    if not histories:
        raise failed("no vLLM engine reports in that time", code=NO_DATA, kind="no data")


async def _replayed(request: Request) -> list[History]:
    match request.source:
        case RemotePrometheus() as source:
            return await _remote(source, request)
        case RecordingFile(path):
            return await _recorded(path, request)
        case DirectScrape():
            raise CommandError(f"give {SOURCES}: a scrape has no history")


async def _recorded(path: Path, request: Request) -> list[History]:
    opened = open_recording(path)
    schedule = recorded(opened.span, every=request.every or RECORDED_PACE)
    evaluation = Evaluation(opened.recording, grouping=one_service, subject=request.subject, settings=WindowSettings())
    return await _histories(evaluation, schedule, doing="evaluating")


async def _remote(source: RemotePrometheus, request: Request) -> list[History]:
    assert request.back is not None  # set for every Prometheus
    schedule = sparse(time.time(), back=request.back, pace=request.every)
    client = PrometheusSource(source.address)
    try:
        evaluation = Evaluation(
            client,
            grouping=by_labels(request.services.service_label),
            subject=request.subject,
            settings=WindowSettings(),
            wanted=request.wanted,
        )
        return await _histories(evaluation, schedule, doing="querying Prometheus")
    finally:
        await client.close()


async def _histories(evaluation: Evaluation, schedule: Schedule, *, doing: str) -> list[History]:
    ticks = schedule.ticks
    with progress(remarks()) as bar:
        task = bar.add_task(doing, total=len(ticks))
        found = await replay(evaluation, ticks=ticks, shown=schedule.shown, looked=lambda: bar.advance(task))
    return list(found.values())


def _print(history: History) -> None:
    console = answers()
    shares = sorted(history.classes.items(), key=lambda item: -item[1])
    named = ", ".join(f"{each.value} {count / history.looks:.0%}" for each, count in shares)
    console.print(Text(printable(f"{history.service.name}: {counted(history.looks, 'evaluation')}; {named}")))
    if not history.standing:
        console.print("No change would have been recommended.")
        return
    title = "Recommendations, oldest first"
    table = WholeTable(*COLUMNS, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for each in history.standing:
        table.add_row(*(Text(cell) for cell in _row(each)))
    console.print(table, crop=False)
    console.print(
        f"The recommendation changed {counted(history.changes, 'time')}; the longest one covers "
        f"{history.steadiness or 0:.0%} of the evaluations with one; "
        f"{history.silent / history.looks:.0%} of all evaluations had none."
    )


def _row(each: Standing) -> Sequence[str]:
    proposal = each.proposal
    tested = "not tested" if each.error is None else f"{each.error:.1%} off, {len(each.misses)} windows"
    since, until = (rfc3339(time, timespec="minutes") for time in (each.since, each.until))
    limit = proposal.limited_by or ""
    return [since, until, str(each.looks), each.named.value, printable(proposal.told), printable(limit), tested]


def _json(history: History) -> dict[str, Any]:
    return {
        "namespace": history.service.namespace,
        "service": history.service.name,
        "looks": history.looks,
        "looksWithoutRecommendation": history.silent,
        "changesOfMind": history.changes,
        "steadiness": history.steadiness,
        "classes": {named.value: count for named, count in history.classes.items()},
        "recommendations": [
            {
                "from": rfc3339(each.since),
                "until": rfc3339(each.until),
                "looks": each.looks,
                "class": each.named.value,
                "knob": each.proposal.knob.value,
                "current": each.proposal.current,
                "value": each.proposal.value,
                "maxModelLen": each.proposal.max_model_len,
                "maxNumSeqs": each.proposal.max_num_seqs,
                "limitedBy": each.proposal.limited_by,
                "confidence": each.proposal.confidence.value,
                "shadow": {"windows": len(each.misses), "medianError": each.error},
            }
            for each in history.standing
        ],
    }
