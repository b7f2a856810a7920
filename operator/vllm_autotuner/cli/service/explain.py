"""`vllm-autotuner explain`: what the operator sees in one service, what it would change and did change, and why.

Reads, never writes. With a name alone everything comes from the object's status. With a source of metrics the decision
is made again, by the operator's own functions, and every candidate is shown with what it would do.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.change.effective import serving_knobs
from vllm_autotuner.change.failure_memory import failed_values
from vllm_autotuner.cli.diagnosis.answer import Answer, answer
from vllm_autotuner.cli.diagnosis.as_json import as_json
from vllm_autotuner.cli.diagnosis.request import Request, prometheus_of, subject_of
from vllm_autotuner.cli.diagnosis.text import panel
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.evaluation import Subject
from vllm_autotuner.cli.evaluate.metrics_source import NoEngine, source_of
from vllm_autotuner.cli.options.access import BearerTokenFile, CAFile
from vllm_autotuner.cli.options.objectives import ProfileName, Quantile, TpotTarget, TtftTarget
from vllm_autotuner.cli.options.platform import CatalogueFile, GpuName, ModelName, load_catalogue, platforms
from vllm_autotuner.cli.report.file import refuse_unwritable
from vllm_autotuner.cli.report.plots import require_plots
from vllm_autotuner.cli.service.curve_plot import FORMATS, plot_curve
from vllm_autotuner.cli.service.plan_text import plan_json, print_plan
from vllm_autotuner.cli.service.service_object import read_service
from vllm_autotuner.cli.service.status_text import print_status
from vllm_autotuner.cli.terminal import answers, printable
from vllm_autotuner.control.decide.inputs import wanted_replicas
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.engine.flags import FlagError
from vllm_autotuner.observation.access import Access
from vllm_autotuner.observation.errors import SourceError
from vllm_autotuner.planning.platform import platform_of

__all__ = ["EXAMPLES", "explain"]

EXAMPLES = """
Examples:

  What the operator sees and did, from the object:

    vllm-autotuner explain chat -n prod

  The same decision made again, with every candidate:

    vllm-autotuner explain chat -n prod --prometheus http://localhost:9090

  A recording, without Kubernetes, and the fitted curve as a picture:

    vllm-autotuner explain --recording incident.om.gz --engine-args "--max-num-seqs 64" --gpu H100 --plot curve.png

Exit codes: 0 explained, 1 error, 2 no data.
"""
NO_DATA: Final = 2


class Output(StrEnum):
    """How to print."""

    HUMAN = "human"
    JSON = "json"


def explain(
    name: Annotated[str | None, typer.Argument(help="Name of the VLLMService.")] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    output: Annotated[Output, typer.Option("--output", "-o", help="For people or for programs.")] = Output.HUMAN,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Default: the pod's service account, else $KUBECONFIG.")
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Decide again on its metrics.", rich_help_panel="Source")
    ] = None,
    recording: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Decide on a recording.", rich_help_panel="Source")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="The moment; +90s counts from a recording's start.")
    ] = None,
    engine_args: Annotated[
        str | None, typer.Option(metavar="ARGS", help='The flags of a recorded engine: "--max-num-seqs 64".')
    ] = None,
    profile: ProfileName = "latency",
    ttft: TtftTarget = None,
    tpot: TpotTarget = None,
    quantile: Quantile = "0.95",
    model: ModelName = None,
    gpu: GpuName = None,
    catalogue: CatalogueFile = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the fitted curve: .png, .svg or .pdf. Extra `report`.")
    ] = None,
    bearer_token_file: BearerTokenFile = None,
    ca_file: CAFile = None,
) -> None:
    """Tell what the operator sees in a service, what it would change or did change, and why.

    A NAME alone is answered from the object's status. With --prometheus or --recording the decision is made again:
    diagnosis, candidates with their predicted effects, the choice, and why the others lost.
    """
    try:
        _refuse_plot(plot, decided=prometheus is not None or recording is not None)
        if name is not None and recording is not None:
            raise CommandError("give a NAME or --recording FILE, not both: a recording is about one service")
        known = load_catalogue(catalogue)
        body = None if name is None else asyncio.run(read_service(namespace, name, kubeconfig=kubeconfig))
        if body is not None and prometheus is None:
            _status(body, output=output)
            return
        if body is None:
            subject = replace(
                subject_of(profile, ttft=ttft, tpot=tpot, quantile=quantile, engine_args=engine_args),
                platform_of=platforms(model=model, gpu=gpu, catalogue=known, engine_args=engine_args),
            )
        else:
            subject = _subject(body, catalogue=known)
        access = Access(bearer_token_file=bearer_token_file, ca_file=ca_file)
        request = Request(
            source=source_of(prometheus=prometheus_of(prometheus, access=access), recording=recording, metrics=None),
            subject=subject,
            at=at,
            namespace=None if recording is not None else namespace,
            service=name,
        )
        found = asyncio.run(answer(request))
        _decided(found, output=output)
        if plot is not None:
            _plot(plot, found)
    except NoEngine as error:
        typer.echo(f"no data: {printable(str(error))}", err=True)
        raise typer.Exit(NO_DATA) from None
    except (CommandError, SourceError, FlagError) as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        raise typer.Exit(1) from None


def _refuse_plot(path: Path | None, *, decided: bool) -> None:
    if path is None:
        return
    if not decided:
        raise CommandError("--plot needs metrics: add --prometheus URL or --recording FILE")
    if path.suffix.lower() not in FORMATS:
        raise CommandError(f"--plot {path}: write a file that ends in {', '.join(FORMATS)}")
    require_plots("--plot")
    refuse_unwritable(path, option="--plot")


def _subject(body: Mapping[str, Any], *, catalogue: Catalogue) -> Subject:
    """What the object says of itself: objectives, bounds, what runs, and on what."""
    service = parse_service(body)
    if not isinstance(service, VLLMService):
        raise CommandError(f"{service.key} cannot be read: {service.message}")
    spec, status = service.spec, service.status
    return Subject(
        targets=targets_of(spec.objectives),
        knobs=serving_knobs(spec, status),
        tuning=spec.tuning,
        scaling=spec.scaling,
        replicas=wanted_replicas(service, status) or (status.effective.replicas if status.effective else None),
        failed=failed_values(spec, status, now=datetime.now(tz=UTC)),
        platform_of=lambda seen: platform_of(spec, catalogue=catalogue),
    )


def _status(body: Mapping[str, Any], *, output: Output) -> None:
    status = body.get("status") or {}
    if output is Output.JSON:
        metadata = body["metadata"]
        found = {"namespace": metadata["namespace"], "name": metadata["name"], "status": status}
        typer.echo(json.dumps(found, indent=2))
        return
    print_status(answers(), body, status)


def _decided(found: Answer, *, output: Output) -> None:
    if output is Output.JSON:
        body = as_json(found.reports, at=found.at, span=found.span, notes=found.notes)
        for entry, report in zip(body["services"], found.reports, strict=True):
            entry["plan"] = plan_json(report.plan, named=report.diagnosis.primary)
        typer.echo(json.dumps(body, indent=2, allow_nan=False))
        return
    console = answers()
    for report in found.reports:
        console.print(panel(report, at=found.at, span=found.span))
        print_plan(console, report.plan, named=report.diagnosis.primary)
    for note in found.notes:
        console.print(Text(f"Note: {printable(note)}"))


def _plot(path: Path, found: Answer) -> None:
    if len(found.reports) != 1:
        raise CommandError("--plot draws one service: name it")
    report = found.reports[0]
    plot_curve(path, report, case=Case(observation=report.observation, targets=report.targets, knobs=EngineKnobs()))
