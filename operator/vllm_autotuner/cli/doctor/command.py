"""`vllm-autotuner doctor`: whether the metrics at hand are what a diagnosis needs, and what to repair.

This module reads options, prints, and chooses an exit code: 0 all is well, 1 warnings, 2 something failed.
Must not: check anything itself.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.text import Text

from vllm_autotuner.cli.diagnosis.request import one_of, prometheus_of, subject_of
from vllm_autotuner.cli.doctor.checks import Finding, Status, examined
from vllm_autotuner.cli.doctor.facts import Facts, facts_of_engines, facts_of_prometheus
from vllm_autotuner.cli.errors import CommandError
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
from vllm_autotuner.cli.terminal import answers, printable, remarks
from vllm_autotuner.observation.access import Access, shown_url
from vllm_autotuner.observation.errors import Denied, SourceError
from vllm_autotuner.observation.scrape import scrape_targets

__all__ = ["EXAMPLES", "doctor"]

EXAMPLES = """
Examples:

  A Prometheus, and whether its buckets can tell these objectives:

    vllm-autotuner doctor --prometheus http://localhost:9090 --ttft 2s --tpot 50ms

  One engine's own page:

    vllm-autotuner doctor --metrics http://localhost:8000

  For a program; the exit code says the worst:

    vllm-autotuner doctor --prometheus http://localhost:9090 --output json

Exit codes: 0 all is well, 1 warnings, 2 something failed (or could not be asked).
"""

_EXIT: Final = {Status.OK: 0, Status.WARNING: 1, Status.FAILED: 2}
_STYLE: Final = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "bold red"}


def doctor(
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="A Prometheus (also Thanos, Mimir).", rich_help_panel="Source")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="An engine's own /metrics; repeatable.", rich_help_panel="Source"),
    ] = None,
    profile: ProfileName = "latency",
    ttft: TtftTarget = None,
    tpot: TpotTarget = None,
    quantile: Quantile = "0.95",
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
    """Check that the metrics are what a diagnosis needs: series, labels, scrapes, buckets, clocks, permissions."""
    as_text = True
    try:
        as_text = one_of("--output", output, ("human", "json")) == "human"
        subject = subject_of(profile, ttft=ttft, tpot=tpot, quantile=quantile, engine_args=None)
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
        findings = examined(_facts(prometheus, metrics or (), access=access), subject.targets)
    except Denied as error:
        findings = [Finding(check="permission", status=Status.FAILED, what=str(error), remedy=_grant(access))]
    except SourceError as error:
        findings = [Finding(check="reachable", status=Status.FAILED, what=str(error), remedy=_REACH)]
    except CommandError as error:
        remarks().print(Text(printable(f"error: {error}")), soft_wrap=True)
        raise typer.Exit(_EXIT[Status.FAILED]) from None
    _print(findings, as_text=as_text)
    raise typer.Exit(max(_EXIT[finding.status] for finding in findings))


_REACH: Final = (
    "Check the URL from here: curl URL/api/v1/query?query=up (a Prometheus) or curl URL/metrics (an engine)."
)


def _grant(access: Access) -> str:
    """What to grant, by how the request was let in so far."""
    if access.bearer_token_file is not None:
        return (
            "The token is known but may not read metrics: bind its ServiceAccount to a role that may (on OpenShift "
            "cluster-monitoring-view; behind kube-rbac-proxy a ClusterRole with get on the resource it guards)."
        )
    if access.username is not None:
        return "Check user and password, and that this user may query (on Grafana Cloud: scope metrics:read)."
    if access.client_cert is not None:
        return "The client certificate is accepted but its subject may not read metrics: grant it, or add a token."
    return "The server wants credentials: --bearer-token-file, --basic-auth-user or --client-cert."


def _facts(prometheus: str | None, metrics: Sequence[str], *, access: Access) -> Facts:
    if (prometheus is None) == (not metrics):
        raise CommandError("give exactly one of --prometheus URL and --metrics URL")
    remote = prometheus_of(prometheus, access=access)
    if remote is not None:
        return facts_of_prometheus(remote.address, place=shown_url(remote.address.url), now=time.time)
    return asyncio.run(facts_of_engines(scrape_targets(metrics), access=access))


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
