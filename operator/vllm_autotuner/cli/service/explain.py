"""`vllm-autotuner explain`: what the operator sees in one service, what it would change or has changed, and why.

Reads, never writes. With a name alone everything comes from the object's status. With a source of metrics the decision
is recomputed by the operator's own functions, and every candidate is shown with its predicted effect.
"""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.text import Text

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.change.effective import serving_knobs
from vllm_autotuner.change.failure_memory import failed_values, infeasible_knobs, left_values
from vllm_autotuner.cli.diagnosis.answer import Answer, answer
from vllm_autotuner.cli.diagnosis.as_json import as_json
from vllm_autotuner.cli.diagnosis.request import Request, prometheus_of, typed_subject
from vllm_autotuner.cli.diagnosis.text import panel
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.evaluation import Subject
from vllm_autotuner.cli.evaluate.metrics_source import NoEngine, source_of
from vllm_autotuner.cli.options.access_options import AccessOptions
from vllm_autotuner.cli.options.cost_options import GpuPrice, checked_price
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.kubernetes import NAME_HELP, ClusterOptions
from vllm_autotuner.cli.options.moment import Moment
from vllm_autotuner.cli.options.objective_options import ObjectiveOptions
from vllm_autotuner.cli.options.output import OutputFormat, is_text
from vllm_autotuner.cli.options.platform_options import PlatformOptions, load_catalogue
from vllm_autotuner.cli.options.source import ServiceFilter, StoredSource
from vllm_autotuner.cli.report.file import refuse_unwritable
from vllm_autotuner.cli.report.plots import NO_PLOT, can_plot
from vllm_autotuner.cli.service.curve_plot import FORMATS, plot_curve
from vllm_autotuner.cli.service.gpu_text import gpu_lines, recorded_savings
from vllm_autotuner.cli.service.plan_text import plan_json, print_plan
from vllm_autotuner.cli.service.service_object import read_service
from vllm_autotuner.cli.service.status_text import print_status
from vllm_autotuner.cli.terminal import answers, failed, hint, printable
from vllm_autotuner.control.decide.inputs import wanted_replicas
from vllm_autotuner.control.decide.scaling_history import replicas_too_few
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.engine.flags import FlagError
from vllm_autotuner.observation.access import Access
from vllm_autotuner.observation.errors import SourceError
from vllm_autotuner.overview.gpu_hours import Prices
from vllm_autotuner.overview.savings_text import savings_json
from vllm_autotuner.planning.platform import platform_of

__all__ = ["EXAMPLES", "explain"]

EXAMPLES = """
Examples:

  From the status of the object:

    vllm-autotuner explain chat -n prod

  The decision recomputed from metrics, with every candidate:

    vllm-autotuner explain chat -n prod --prometheus http://localhost:9090

  A recording, without Kubernetes, with a plot of the fitted step time:

    vllm-autotuner explain --recording incident.om.gz --engine-args "--max-num-seqs 64" --gpu H100 --plot curve.png

Exit codes: 0 shown, 1 error, 2 no data.
"""
NO_DATA: Final = 2

CurvePlot: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Plot the fitted step time to a .png, .svg or .pdf file. Needs the extra `report`.",
        rich_help_panel="Output",
    ),
]


@with_groups
def explain(
    name: Annotated[str | None, typer.Argument(help=NAME_HELP)] = None,
    *,
    cluster: ClusterOptions,
    source: StoredSource,
    at: Moment = None,
    platform: PlatformOptions,
    objectives: ObjectiveOptions,
    output: OutputFormat = "human",
    plot: CurvePlot = None,
    gpu_price: GpuPrice = None,
    access: AccessOptions,
) -> None:
    """Show what the operator sees in a service, what it would change or has changed, and why.

    With NAME alone, everything comes from the object's status. With --prometheus or --recording the decision is
    recomputed: diagnosis, candidates with predicted effects, the choice, and why the others were rejected.
    """
    try:
        as_text = is_text(output)
        _refuse_plot(plot, decided=source.prometheus is not None or source.recording is not None)
        if name is not None and source.recording is not None:
            raise CommandError("give a NAME or --recording FILE, not both: a recording contains one service")
        if source.recording is not None and (cluster.namespace, cluster.context, cluster.kubeconfig) != (None,) * 3:
            raise CommandError("--namespace, --context and --kubeconfig are not for --recording FILE: leave them out")
        catalogue = load_catalogue(platform.catalogue)
        prices = Prices(catalogue=catalogue, flat=checked_price(gpu_price))
        body = None if name is None else asyncio.run(read_service(name, where=cluster))
        if body is not None and source.prometheus is None:
            _status(body, as_text=as_text, prices=prices)
            return
        subject = typed_subject(objectives, platform) if body is None else _subject(body, catalogue=catalogue)
        namespace = cluster.namespace if body is None else body["metadata"]["namespace"]
        services = ServiceFilter(namespace=None if source.recording is not None else namespace, service=name)
        found = asyncio.run(answer(_request(source, services, subject, at=at, access=access.access())))
        _decided(found, as_text=as_text)
        if plot is not None:
            _plot(plot, found)
    except NoEngine as error:
        raise failed(error, code=NO_DATA, kind="no data") from None
    except (CommandError, SourceError, FlagError) as error:
        raise failed(error, code=1) from None


def _request(
    source: StoredSource, services: ServiceFilter, subject: Subject, *, at: str | None, access: Access
) -> Request:
    return Request(
        source=source_of(
            prometheus=prometheus_of(source.prometheus, match=source.match, access=access),
            recording=source.recording,
            metrics=None,
            give="NAME, or exactly one of --prometheus URL and --recording FILE",
        ),
        subject=subject,
        at=at,
        services=services,
    )


def _refuse_plot(path: Path | None, *, decided: bool) -> None:
    if path is None:
        return
    if not decided:
        raise CommandError("--plot needs metrics: add --prometheus URL or --recording FILE")
    if path.suffix.lower() not in FORMATS:
        raise CommandError(f"--plot {path}: write a file that ends in {', '.join(FORMATS)}")
    refuse_unwritable(path, option="--plot")


def _subject(body: Mapping[str, Any], *, catalogue: Catalogue) -> Subject:
    """Objectives, bounds, running values and platform, from the object."""
    service = parse_service(body)
    if not isinstance(service, VLLMService):
        raise CommandError(f"{service.key} cannot be read: {service.message}")
    spec, status, now = service.spec, service.status, datetime.now(tz=UTC)
    return Subject(
        targets=targets_of(spec.objectives),
        knobs=serving_knobs(spec, status),
        tuning=spec.tuning,
        scaling=spec.scaling,
        replicas=wanted_replicas(service, status) or (status.effective.replicas if status.effective else None),
        failed=failed_values(spec, status, now=now),
        left=left_values(status, now=now),
        infeasible=infeasible_knobs(spec, status),
        too_few=lambda seen: replicas_too_few(
            status, seen, scaling=spec.scaling, now=datetime.fromtimestamp(seen.at, tz=UTC)
        ),
        platform_of=lambda seen: platform_of(spec, catalogue=catalogue),
    )


def _status(body: Mapping[str, Any], *, as_text: bool, prices: Prices) -> None:
    status, now = body.get("status") or {}, datetime.now(tz=UTC)
    if not as_text:
        metadata = body["metadata"]
        savings = savings_json(recorded_savings(body, now=now, prices=prices))
        found = {"namespace": metadata["namespace"], "name": metadata["name"], "status": status, "savings": savings}
        typer.echo(json.dumps(found, indent=2))
        return
    console = answers()
    print_status(console, body, status)
    for line in gpu_lines(body, now=now, prices=prices) if status else ():
        console.print(line)


def _decided(found: Answer, *, as_text: bool) -> None:
    if not as_text:
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
        raise CommandError("--plot draws one service: give its NAME")
    if not can_plot():
        hint(NO_PLOT)
        return
    report = found.reports[0]
    plot_curve(path, report, case=Case(observation=report.observation, targets=report.targets, knobs=EngineKnobs()))
