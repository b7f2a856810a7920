"""`vllm-autotuner diagnose`: the operator's judgement without Kubernetes, over a Prometheus, engines or a recording.

This module reads options and chooses an exit code: 0 evaluated, 1 an error in one line, 2 no data.
Must not: decide anything about an engine.
"""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text
from typer.core import TyperCommand
from typing_extensions import override

from vllm_autotuner.cli.diagnose.watch import watch as watching
from vllm_autotuner.cli.diagnose.watch_view import view
from vllm_autotuner.cli.diagnosis.answer import Answer, answer
from vllm_autotuner.cli.diagnosis.as_json import as_json
from vllm_autotuner.cli.diagnosis.request import Request, duration_of, one_of, prometheus_of, subject_of
from vllm_autotuner.cli.diagnosis.text import panel
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.metrics_source import NoEngine, direct_scrape, source_name, source_of
from vllm_autotuner.cli.options.access import (
    BasicAuthPasswordFile,
    BasicAuthUser,
    BearerTokenFile,
    CAFile,
    ClientCert,
    ClientKey,
    Header,
    Insecure,
    OrgID,
    access_of,
)
from vllm_autotuner.cli.options.objectives import ProfileName, Quantile, TpotTarget, TtftTarget
from vllm_autotuner.cli.report.file import refuse_unwritable, write_report
from vllm_autotuner.cli.report.plots import require_plots
from vllm_autotuner.cli.terminal import answers, printable, remarks
from vllm_autotuner.engine.flags import FlagError
from vllm_autotuner.observation.errors import SourceError

__all__ = ["EXAMPLES", "DiagnoseCommand", "diagnose"]

EXAMPLES = """
Examples:

  A fleet that a Prometheus scrapes:

    vllm-autotuner diagnose --prometheus http://localhost:9090 --namespace chat

  One engine, sampled for a minute:

    vllm-autotuner diagnose --metrics http://localhost:8000 --for 60s --engine-args "--max-num-seqs 64"

  Live, all services of a Prometheus:

    vllm-autotuner diagnose --prometheus http://localhost:9090 --watch

  A recording, with a timeline and a report to share:

    vllm-autotuner diagnose --recording incident.om.gz --every 30s --ttft 2s --html report.html

  What held 90 seconds after its start, for a program:

    vllm-autotuner diagnose --recording incident.om.gz --at +90s --output json

  A Prometheus that asks for a token and a tenant:

    vllm-autotuner diagnose --prometheus https://mimir/prometheus --bearer-token-file token --org-id team-a

Exit codes: 0 evaluated (or a watch was ended), 1 error, 2 no data (nothing reports, or there is no vLLM engine).
"""

FAILED: Final = 1
NO_DATA: Final = 2
REPORTED: Final = "15m"
"""How far back a report on a Prometheus looks: long enough to see a queue build up. Each minute is four looks."""


class DiagnoseCommand(TyperCommand):
    """A command whose usage errors are errors like any other: 2 is taken by "no data"."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; an unknown option or a missing value leaves with exit code 1."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "exit_code", FAILED) == NO_DATA:
                error.exit_code = FAILED  # type: ignore[attr-defined]  # the class is private to typer
            raise


def diagnose(
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask a Prometheus (also Thanos, Mimir).", rich_help_panel="Source")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Sample an engine's own /metrics; repeat for the engines of one service.",
            rich_help_panel="Source",
        ),
    ] = None,
    recording: Annotated[
        Path | None,
        typer.Option(
            "--recording",
            "--offline",
            metavar="FILE",
            help="Read a recording (see `record`): OpenMetrics, .om or .om.gz.",
            rich_help_panel="Source",
        ),
    ] = None,
    sample_for: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long to sample --metrics. Default: 60s.")
    ] = None,
    scrape_interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time between samples of --metrics. Default: 1s.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", rich_help_panel="Prometheus", help="Only this namespace.")
    ] = None,
    service: Annotated[
        str | None, typer.Option(metavar="NAME", rich_help_panel="Prometheus", help="Only this service.")
    ] = None,
    service_label: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            rich_help_panel="Prometheus",
            help="The label that names the service. Default: the pod's workload, else the model.",
        ),
    ] = None,
    profile: ProfileName = "latency",
    ttft: TtftTarget = None,
    tpot: TpotTarget = None,
    quantile: Quantile = "0.95",
    engine_args: Annotated[
        str | None,
        typer.Option(
            metavar="ARGS",
            help='The flags that vLLM runs with: "--max-num-seqs 64". They are in no metric and make answers surer.',
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="One moment: Unix seconds, RFC 3339, or +90s after a recording's start."),
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Add a timeline over the whole recording, such as 30s.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Evaluate a Prometheus from this long ago on. With --html: 15m, else 45s."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a report with plots: one file, no network. Needs the extra `report`."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again and again at --prometheus or --metrics; Ctrl-C ends.")
    ] = False,
    refresh: Annotated[
        str | None, typer.Option(metavar="TIME", help="Between two looks of --watch. Default: 10s.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FORMAT", help="human or json.")] = "human",
    bearer_token_file: BearerTokenFile = None,
    basic_auth_user: BasicAuthUser = None,
    basic_auth_password_file: BasicAuthPasswordFile = None,
    ca_file: CAFile = None,
    client_cert: ClientCert = None,
    client_key: ClientKey = None,
    insecure_skip_tls_verify: Insecure = False,
    header: Header = None,
    org_id: OrgID = None,
) -> None:
    """Name the bottleneck of running or recorded vLLM engines. Needs no Kubernetes and changes nothing.

    Name exactly one source: --prometheus, --metrics or --recording.
    """
    try:
        as_text = one_of("--output", output, ("human", "json")) == "human"
        ways_in = (bearer_token_file, basic_auth_user, basic_auth_password_file, ca_file, client_cert, client_key)
        if prometheus is None and not metrics and (any(ways_in) or insecure_skip_tls_verify or header or org_id):
            raise CommandError("credentials, certificates and headers need --prometheus URL or --metrics URL")
        access = access_of(
            bearer_token_file=bearer_token_file,
            basic_auth_user=basic_auth_user,
            basic_auth_password_file=basic_auth_password_file,
            ca_file=ca_file,
            client_cert=client_cert,
            client_key=client_key,
            insecure=insecure_skip_tls_verify,
            headers=header or (),
            org_id=org_id,
        )
        if html is not None:
            require_plots()
            refuse_unwritable(html, option="--html")
        if since is not None and prometheus is None:
            raise CommandError("--since belongs to --prometheus: a recording is evaluated from its start")
        if not metrics and (sample_for or scrape_interval):
            raise CommandError("--for and --scrape-interval belong to --metrics")
        if recording is None and every is not None:
            raise CommandError("--every belongs to --recording")
        if metrics and at is not None:
            raise CommandError("--at belongs to --recording and --prometheus: --metrics looks at now")
        if at is not None and every is not None:
            raise CommandError("--at asks about one moment and --every about all: give one of them")
        if prometheus is None and (namespace, service, service_label) != (None, None, None):
            raise CommandError("--namespace, --service and --service-label belong to --prometheus")
        request = Request(
            source=source_of(
                prometheus=prometheus_of(prometheus, access=access),
                recording=recording,
                metrics=direct_scrape(
                    metrics,
                    duration=duration_of("--for", sample_for or "60s"),
                    interval=duration_of("--scrape-interval", scrape_interval or "1s"),
                    access=access,
                )
                if metrics
                else None,
            ),
            subject=subject_of(profile, ttft=ttft, tpot=tpot, quantile=quantile, engine_args=engine_args),
            at=at,
            every=None if every is None else duration_of("--every", every).total_seconds(),
            back=_back(since, reported=html is not None),
            everything=html is not None,
            namespace=namespace,
            service=service,
            service_label=service_label,
        )
        if watch:
            if html is not None or since is not None or at is not None or sample_for is not None:
                raise CommandError("--watch goes on from now: leave out --html, --since, --at and --for")
            with view(answers(), as_text=as_text) as show:
                asyncio.run(watching(request, refresh=_refresh(refresh), show=show))
            return
        if refresh is not None:
            raise CommandError("--refresh belongs to --watch")
        found = asyncio.run(answer(request))
        if html is not None:
            write_report(html, answer=found, source=source_name(request.source), knobs=request.subject.knobs)
    except NoEngine as error:
        _print_nothing(str(error), as_text=as_text)
        raise typer.Exit(NO_DATA) from None
    except (CommandError, SourceError, FlagError) as error:
        remarks().print(Text(printable(f"error: {error}")), soft_wrap=True)
        raise typer.Exit(FAILED) from None
    _print(found, as_text=as_text)
    if all(report.blind for report in found.reports):
        raise typer.Exit(NO_DATA)


def _refresh(text: str | None) -> float:
    return duration_of("--refresh", text or "10s").total_seconds()


def _back(since: str | None, *, reported: bool) -> float | None:
    text = since or (REPORTED if reported else None)
    return None if text is None else duration_of("--since", text).total_seconds()


def _print(found: Answer, *, as_text: bool) -> None:
    console = answers()
    if not as_text:
        body = as_json(found.reports, at=found.at, span=found.span, notes=found.notes)
        typer.echo(json.dumps(body, indent=2, allow_nan=False))
        return
    for report in found.reports:
        console.print(panel(report, at=found.at, span=found.span))
    for note in found.notes:
        console.print(Text(f"Note: {printable(note)}"))


def _print_nothing(why: str, *, as_text: bool) -> None:
    remarks().print(Text(printable(f"no data: {why}")), soft_wrap=True)
    if not as_text:
        typer.echo(json.dumps({"services": [], "notes": [why]}, indent=2))
