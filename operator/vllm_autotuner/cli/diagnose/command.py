"""`vllm-autotuner diagnose`: the operator's diagnosis without Kubernetes, from a Prometheus, engines or a recording.

Reads options and chooses an exit code: 0 evaluated, 1 an error in one line, 2 no data.
Must not: judge an engine.
"""

import asyncio
import json
from typing import Final

import typer
from rich.text import Text

from vllm_autotuner.cli.diagnose.options import PresentationOptions, SamplingOptions, TimeOptions, refuse_contradictions
from vllm_autotuner.cli.diagnose.watch import watch as watching
from vllm_autotuner.cli.diagnose.watch_view import view
from vllm_autotuner.cli.diagnosis.answer import Answer, answer
from vllm_autotuner.cli.diagnosis.as_json import as_json
from vllm_autotuner.cli.diagnosis.request import Request, prometheus_of, typed_subject
from vllm_autotuner.cli.diagnosis.text import panel
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.metrics_source import NoEngine, source_name, source_of
from vllm_autotuner.cli.options.access_options import AccessOptions
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.objective_options import ObjectiveOptions
from vllm_autotuner.cli.options.output import is_text
from vllm_autotuner.cli.options.platform_options import PlatformOptions
from vllm_autotuner.cli.options.source import AnySource, ServiceFilter
from vllm_autotuner.cli.report.file import write_report
from vllm_autotuner.cli.report.plots import NO_PLOT, can_plot
from vllm_autotuner.cli.terminal import answers, failed, hint, printable
from vllm_autotuner.engine.flags import FlagError
from vllm_autotuner.observation.errors import SourceError

__all__ = ["EXAMPLES", "diagnose"]

EXAMPLES = """
Examples:

  All services of one namespace, from a Prometheus:

    vllm-autotuner diagnose --prometheus http://localhost:9090 --namespace chat

  One engine, scraped for a minute:

    vllm-autotuner diagnose --metrics http://localhost:8000 --for 60s --engine-args "--max-num-seqs 64"

  The same with what metrics do not tell, for advice on fp8 KV cache and tensor parallelism:

    vllm-autotuner diagnose --metrics http://localhost:8000 --model Qwen/Qwen3-32B --gpu NVIDIA-H100-80GB-HBM3

  All services of a Prometheus, refreshed continuously:

    vllm-autotuner diagnose --prometheus http://localhost:9090 --watch

  A recording, with a timeline and a report to share:

    vllm-autotuner diagnose --recording incident.om.gz --every 30s --ttft 2s --html report.html

  The diagnosis 90 seconds after the start of a recording, as JSON:

    vllm-autotuner diagnose --recording incident.om.gz --at +90s --output json

  A Prometheus that needs a token and a tenant:

    vllm-autotuner diagnose --prometheus https://mimir/prometheus --bearer-token-file token --org-id team-a

Exit codes: 0 evaluated (or --watch ended), 1 error, 2 no data (no vLLM engine reports).
"""

FAILED: Final = 1
NO_DATA: Final = 2


@with_groups
def diagnose(
    *,
    source: AnySource,
    sampling: SamplingOptions,
    services: ServiceFilter,
    objectives: ObjectiveOptions,
    platform: PlatformOptions,
    time: TimeOptions,
    shown: PresentationOptions,
    access: AccessOptions,
) -> None:
    """Name the bottleneck of running or recorded vLLM engines. Needs no Kubernetes and changes nothing.

    Name exactly one source: --prometheus, --metrics or --recording.
    """
    as_text = True
    try:
        as_text = is_text(shown.output)
        shown.refuse_unusable(recording=source.recording)
        refuse_contradictions(source, sampling=sampling, services=services, time=time, access=access, shown=shown)
        let_in = access.access()
        request = Request(
            source=source_of(
                prometheus=prometheus_of(source.prometheus, match=source.match, access=let_in),
                recording=source.recording,
                metrics=sampling.scrape(source.metrics, access=let_in),
                give="exactly one of --prometheus URL, --metrics URL and --recording FILE",
            ),
            subject=typed_subject(objectives, platform),
            at=time.at,
            every=time.every_seconds(),
            back=time.back_seconds(reported=shown.html is not None),
            everything=shown.html is not None,
            services=services,
        )
        data_found = _watch(request, shown, as_text=as_text) if shown.watch else _once(request, shown, as_text=as_text)
    except NoEngine as error:
        if not as_text:
            typer.echo(json.dumps({"services": [], "notes": [str(error)]}, indent=2))
        raise failed(error, code=NO_DATA, kind="no data") from None
    except (CommandError, SourceError, FlagError) as error:
        raise failed(error, code=FAILED) from None
    if not data_found:
        raise typer.Exit(NO_DATA)


def _watch(request: Request, shown: PresentationOptions, *, as_text: bool) -> bool:
    refresh = shown.refresh_seconds()
    with view(answers(), as_text=as_text) as show:
        asyncio.run(watching(request, refresh=refresh, show=show))
    return True


def _once(request: Request, shown: PresentationOptions, *, as_text: bool) -> bool:
    """Print the answer and write the report; False when no service had the metrics that a diagnosis needs."""
    found = asyncio.run(answer(request))
    if shown.html is not None:
        write_report(shown.html, answer=found, source=source_name(request.source), knobs=request.subject.knobs)
    _print(found, as_text=as_text)
    if shown.html is not None and not can_plot():
        hint(NO_PLOT)
    return not all(report.blind for report in found.reports)


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
