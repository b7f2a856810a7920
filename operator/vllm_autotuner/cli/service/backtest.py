"""`vllm-autotuner backtest`: replay history through the operator's own functions, without changing anything.

What would have been recommended when, how steady it was, and how its predictions stood the test of what came.
"""

import asyncio
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from vllm_autotuner.cli.diagnosis.request import duration_of, one_of, prometheus_of, subject_of
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.evaluation import Evaluation, Subject
from vllm_autotuner.cli.evaluate.metrics_source import RecordingFile, RemotePrometheus, open_recording, source_of
from vllm_autotuner.cli.evaluate.moments import Schedule, recorded, rfc3339
from vllm_autotuner.cli.evaluate.service_groups import ServiceName, by_labels, one_service
from vllm_autotuner.cli.options.access import BearerTokenFile, CAFile
from vllm_autotuner.cli.options.objectives import ProfileName, Quantile, TpotTarget, TtftTarget
from vllm_autotuner.cli.options.platform import CatalogueFile, GpuName, ModelName, load_catalogue, platforms
from vllm_autotuner.cli.service.replayed_history import History, replay
from vllm_autotuner.cli.terminal import answers, printable
from vllm_autotuner.engine.flags import FlagError
from vllm_autotuner.observation.access import Access
from vllm_autotuner.observation.errors import SourceError
from vllm_autotuner.observation.prometheus import PrometheusSource
from vllm_autotuner.observation.snapshot import WindowSettings

__all__ = ["EXAMPLES", "backtest", "sparse"]

EXAMPLES = """
Examples:

  The last week of a fleet:

    vllm-autotuner backtest --prometheus http://localhost:9090 --namespace prod --since 7d

  A recording, every minute:

    vllm-autotuner backtest --recording incident.om.gz --engine-args "--max-num-seqs 64" --every 1m

  For a program:

    vllm-autotuner backtest --recording incident.om.gz --output json

Exit codes: 0 replayed, 1 error, 2 no data.
"""
NO_DATA: Final = 2
MOST_LOOKS: Final = 500
"""Looks at a Prometheus where --every does not say: each is a round of queries over the whole fleet. A week then is
looked at every 20 minutes."""
CLOSEST: Final = 15.0
"""Seconds: the pace of the operator, and the closest that looks at a Prometheus are worth."""
CONFIRM: Final = 15.0
"""Seconds before each look of a sparse replay at which one more look confirms what it sees: a class must be seen twice
in a row, and twenty minutes apart it would not be the same thing."""


def backtest(
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="A Prometheus with history.", rich_help_panel="Source")
    ] = None,
    recording: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A recording, whole.", rich_help_panel="Source")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="How far back a Prometheus is replayed. Default: 7d.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Between two looks. Default: 30s, or --since in 500 looks.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Only this namespace of a Prometheus.")
    ] = None,
    service: Annotated[str | None, typer.Option(metavar="NAME", help="Only this service of a Prometheus.")] = None,
    service_label: Annotated[
        str | None, typer.Option(metavar="LABEL", help="The label that names the service.")
    ] = None,
    engine_args: Annotated[
        str | None, typer.Option(metavar="ARGS", help='The flags that vLLM ran with: "--max-num-seqs 64".')
    ] = None,
    profile: ProfileName = "latency",
    ttft: TtftTarget = None,
    tpot: TpotTarget = None,
    quantile: Quantile = "0.95",
    model: ModelName = None,
    gpu: GpuName = None,
    catalogue: CatalogueFile = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FORMAT", help="human or json.")] = "human",
    bearer_token_file: BearerTokenFile = None,
    ca_file: CAFile = None,
) -> None:
    """Replay history: what would have been recommended when, how steady it was, and how it stood the test.

    Nothing is changed. The history is that of the configuration that ran: what a recommendation would have done is
    known only as far as the load itself came near it later.
    """
    try:
        as_text = one_of("--output", output, ("human", "json")) == "human"
        if recording is not None and (since, namespace, service, service_label) != (None, None, None, None):
            raise CommandError("--since, --namespace, --service and --service-label belong to --prometheus")
        subject = replace(
            subject_of(profile, ttft=ttft, tpot=tpot, quantile=quantile, engine_args=engine_args),
            platform_of=platforms(model=model, gpu=gpu, catalogue=load_catalogue(catalogue), engine_args=engine_args),
        )
        access = Access(bearer_token_file=bearer_token_file, ca_file=ca_file)
        source = source_of(prometheus=prometheus_of(prometheus, access=access), recording=recording, metrics=None)
        pace = None if every is None else duration_of("--every", every).total_seconds()
        if isinstance(source, RemotePrometheus):
            back = duration_of("--since", since or "7d").total_seconds()
            grouping = by_labels(service_label)

            def wanted(found: ServiceName) -> bool:
                return namespace in (None, found.namespace) and service in (None, found.name)

            histories = asyncio.run(
                _remote(source, subject=subject, back=back, pace=pace, grouping=grouping, wanted=wanted)
            )
        else:
            assert isinstance(source, RecordingFile)
            histories = asyncio.run(_recorded(source, subject=subject, pace=pace or 30.0))
    except (CommandError, SourceError, FlagError) as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        raise typer.Exit(1) from None
    if not histories:
        typer.echo("no data: no vLLM engine reports in that time", err=True)
    if as_text:
        for history in histories:
            _print(history)
    else:
        typer.echo(json.dumps({"services": [_json(each) for each in histories]}, indent=2, allow_nan=False))
    if not histories:
        raise typer.Exit(NO_DATA)


async def _recorded(source: RecordingFile, *, subject: Subject, pace: float) -> list[History]:
    opened = open_recording(source.path)
    schedule = recorded(opened.span, every=pace)
    evaluation = Evaluation(opened.recording, grouping=one_service, subject=subject, settings=WindowSettings())
    return list((await replay(evaluation, ticks=schedule.ticks, shown=schedule.shown)).values())


async def _remote(
    source: RemotePrometheus, *, subject: Subject, back: float, pace: float | None, grouping: Any, wanted: Any
) -> list[History]:
    schedule = sparse(time.time(), back=back, pace=pace)
    client = PrometheusSource(source.address)
    try:
        evaluation = Evaluation(client, grouping=grouping, subject=subject, settings=WindowSettings(), wanted=wanted)
        return list((await replay(evaluation, ticks=schedule.ticks, shown=schedule.shown)).values())
    finally:
        await client.close()


def sparse(now: float, *, back: float, pace: float | None) -> Schedule:
    """Looks from `back` seconds ago until now; far apart, each has one just before it."""
    step = max(CLOSEST, back / MOST_LOOKS if pace is None else pace)
    count = max(1, math.floor(back / step))
    shown = [now - step * index for index in range(count - 1, -1, -1)]
    before = [at - CONFIRM for at in shown] if step >= 2 * CONFIRM else []
    return Schedule(ticks=tuple(sorted([*before, *shown])), shown=frozenset(shown))


def _print(history: History) -> None:
    console = answers()
    shares = sorted(history.classes.items(), key=lambda item: -item[1])
    named = ", ".join(f"{each.value} {count / history.looks:.0%}" for each, count in shares)
    console.print(Text(printable(f"{history.service.name}: {history.looks} looks; {named}")))
    if not history.standing:
        console.print("No change would have been recommended.")
        return
    table = Table(title="Recommendations, oldest first", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("from", "until", "looks", "class", "change", "limited by", "prediction tested later"):
        table.add_column(column)
    for each in history.standing:
        proposal = each.proposal
        now = "default" if proposal.current is None else proposal.current
        tested = "no load came near" if each.error is None else f"{each.error:.1%} off, {len(each.misses)} windows"
        cells = (f"{proposal.knob.value} {now} -> {proposal.value}", proposal.limited_by or "", tested)
        table.add_row(rfc3339(each.since), rfc3339(each.until), str(each.looks), each.named.value,
                      *(Text(printable(cell)) for cell in cells))  # fmt: skip
    console.print(table)
    console.print(
        f"{history.changes} change(s) of mind; the longest recommendation held {history.steadiness or 0:.0%} of the "
        f"looks with one; {history.silent / history.looks:.0%} of all looks had none."
    )


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
                "limitedBy": each.proposal.limited_by,
                "confidence": each.proposal.confidence.value,
                "shadow": {"windows": len(each.misses), "medianError": each.error},
            }
            for each in history.standing
        ],
    }
