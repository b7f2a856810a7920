"""`vllm-autotuner doctor`: whether the metrics are complete enough for a diagnosis, and what to repair.

Reads options, prints, and chooses an exit code: 0 all checks passed, 1 warnings, 2 a check failed.
Must not: check anything itself.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Final

import typer
from rich.text import Text

from vllm_autotuner.cli.diagnosis.request import prometheus_of, subject_from
from vllm_autotuner.cli.doctor.checks import Finding, Status, examined
from vllm_autotuner.cli.doctor.facts import Facts, facts_of_engines, facts_of_prometheus
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.access_options import AccessOptions
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.objective_options import ObjectiveOptions
from vllm_autotuner.cli.options.output import OutputFormat, is_text
from vllm_autotuner.cli.options.source import LiveSource
from vllm_autotuner.cli.terminal import answers, failed, printable
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.observation.access import Access, shown_url
from vllm_autotuner.observation.errors import Denied, NotAccepted, SourceError, UnusableFile
from vllm_autotuner.observation.scrape import scrape_targets

__all__ = ["EXAMPLES", "doctor"]

EXAMPLES = """
Examples:

  A Prometheus, and whether its histogram buckets can resolve these objectives:

    vllm-autotuner doctor --prometheus http://localhost:9090 --ttft 2s --tpot 50ms

  The /metrics page of one engine:

    vllm-autotuner doctor --metrics http://localhost:8000

  As JSON; the exit code is that of the worst check:

    vllm-autotuner doctor --prometheus http://localhost:9090 --output json

Exit codes: 0 all checks passed, 1 warnings, 2 a check failed or could not run.
"""

_EXIT: Final = {Status.OK: 0, Status.WARNING: 1, Status.FAILED: 2}
_STYLE: Final = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "bold red"}


@with_groups
def doctor(
    *, source: LiveSource, objectives: ObjectiveOptions, output: OutputFormat = "human", access: AccessOptions
) -> None:
    """Check whether the metrics are complete enough for a diagnosis, and say what to repair.

    Covers series, labels, scrapes, buckets, clocks and permissions. Changes nothing.
    """
    try:
        as_text = is_text(output)
        subject = subject_from(objectives, engine_args=None)
        let_in = access.access()
        findings = _findings(source, subject.targets, access=let_in)
    except CommandError as error:
        raise failed(error, code=_EXIT[Status.FAILED]) from None
    _print(findings, as_text=as_text)
    raise typer.Exit(max(_EXIT[finding.status] for finding in findings))


def _findings(source: LiveSource, targets: Targets, *, access: Access) -> Sequence[Finding]:
    try:
        return examined(_facts(source, access=access), targets)
    except Denied as error:
        return [Finding(check="permission", status=Status.FAILED, what=str(error), remedy=_grant(error, access))]
    except UnusableFile as error:
        return [Finding(check="reachable", status=Status.FAILED, what=str(error), remedy=_REPAIR)]
    except SourceError as error:
        return [Finding(check="reachable", status=Status.FAILED, what=str(error), remedy=_REACH)]


_REACH: Final = (
    "Check the URL from here: curl URL/api/v1/query?query=up (a Prometheus) or curl URL/metrics (an engine)."
)

_REPAIR: Final = "Repair that file, which is on this machine: nothing was asked yet."


def _grant(error: Denied, access: Access) -> str:
    """What to grant or to give, by the credentials that were given."""
    if isinstance(error, NotAccepted):
        return _renew(access)
    if access.bearer_token_file is not None:
        return (
            "The token is valid but may not read metrics: bind its ServiceAccount to a role that may (on OpenShift "
            "cluster-monitoring-view; behind kube-rbac-proxy a ClusterRole with get on the resource it guards)."
        )
    if access.username is not None:
        return "The user is known but may not query: grant it that (on Grafana Cloud: scope metrics:read)."
    if access.client_cert is not None:
        return (
            "The client certificate is accepted but its subject may not read metrics: grant it access, or add a token."
        )
    return _ASKS


_ASKS: Final = "The server requires credentials: add --bearer-token-file, --basic-auth-user or --client-cert."


def _renew(access: Access) -> str:
    if access.bearer_token_file is not None:
        return (
            "The token is not accepted: it expired, or is for another audience or cluster. Write a fresh one to the "
            "file (kubectl create token SERVICEACCOUNT; on OpenShift oc whoami -t)."
        )
    if access.username is not None:
        return "User or password is wrong: check both (on Grafana Cloud the token also needs scope metrics:read)."
    if access.client_cert is not None:
        return "The client certificate is not enough: add --bearer-token-file or --basic-auth-user."
    return _ASKS


def _facts(source: LiveSource, *, access: Access) -> Facts:
    if (source.prometheus is None) == (not source.metrics):
        raise CommandError("give exactly one of --prometheus URL and --metrics URL")
    remote = prometheus_of(source.prometheus, match=source.match, access=access)
    if remote is not None:
        return facts_of_prometheus(remote.address, place=shown_url(remote.address.url), now=time.time)
    return asyncio.run(facts_of_engines(scrape_targets(source.metrics or ()), access=access))


def _print(findings: Sequence[Finding], *, as_text: bool) -> None:
    if not as_text:
        worst = max(findings, key=lambda finding: _EXIT[finding.status]).status
        checks = [
            {"check": one.check, "status": one.status.value, "what": one.what, "remedy": one.remedy} for one in findings
        ]
        typer.echo(json.dumps({"worst": worst.value, "checks": checks}, indent=2))
        return
    console = answers()
    for one in findings:
        line = Text.assemble((f"{one.status.value:<8}", _STYLE[one.status]), f"{one.check:<13}{printable(one.what)}")
        console.print(line, soft_wrap=True)
        if one.remedy:
            console.print(Text(f"{'':<21}{printable(one.remedy)}", "dim"), soft_wrap=True)
