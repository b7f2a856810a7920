"""`vllm-autotuner run`: the operator. Turns flags into settings; everything else lives in `control`.

Apart from the other commands, because it imports kopf and the Kubernetes client, for which the offline commands must
not pay: that is why those imports stand inside the function.
"""

import asyncio
import os
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vllm_autotuner.api.durations import parse_duration
from vllm_autotuner.api.spec import Mode
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.platform import CatalogueFile, load_catalogue
from vllm_autotuner.cli.run.log_format import LogFormat, LogLevel, configure_logging
from vllm_autotuner.guardrails.concurrency import CHANGES_AT_ONCE, EXTRA_GPUS, Share, parse_share

EXAMPLES = """
Examples:

  In a cluster (what the Helm chart runs):

    vllm-autotuner run --prometheus-url http://prometheus.monitoring:9090

  On a laptop, against the current kubeconfig, two namespaces only:

    export PROMETHEUS_URL=http://localhost:9090

    vllm-autotuner run -n chat -n search --listen-address 127.0.0.1:8080

  With a Mimir that asks for a password and a tenant:

    vllm-autotuner run --prometheus-header X-Scope-OrgID=gpu

      --prometheus-username me --prometheus-password-file pw.txt
"""

_PROMETHEUS = "Prometheus"
_CLUSTER = "Cluster"
_LIMITS = "Limits above every service"
_LOGGING = "Logging"


def run(
    prometheus_url: Annotated[
        str, typer.Option(envvar="PROMETHEUS_URL", help="Base URL of Prometheus.", rich_help_panel=_PROMETHEUS)
    ],
    prometheus_bearer_token_file: Annotated[
        Path | None,
        typer.Option(help="File with a bearer token; read again on each query.", rich_help_panel=_PROMETHEUS),
    ] = None,
    prometheus_username: Annotated[
        str | None, typer.Option(help="User for basic authentication.", rich_help_panel=_PROMETHEUS)
    ] = None,
    prometheus_password_file: Annotated[
        Path | None, typer.Option(help="File with the password of that user.", rich_help_panel=_PROMETHEUS)
    ] = None,
    prometheus_ca_file: Annotated[
        Path | None, typer.Option(help="CA that signed Prometheus' certificate.", rich_help_panel=_PROMETHEUS)
    ] = None,
    prometheus_header: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Extra header, e.g. a tenant. Repeatable.", rich_help_panel=_PROMETHEUS),
    ] = None,
    catalogue: CatalogueFile = None,
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Between two looks at the fleet.")] = "15s",
    window: Annotated[str, typer.Option(metavar="DURATION", help="Over which rates are taken.")] = "30s",
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Serve only this namespace. Repeatable.", rich_help_panel=_CLUSTER),
    ] = None,
    nodes_on_demand: Annotated[
        bool,
        typer.Option(
            "--nodes-on-demand",
            help="Nodes are added for pods that find none: do not look for free GPUs first.",
            rich_help_panel=_CLUSTER,
        ),
    ] = False,
    lease_namespace: Annotated[
        str | None,
        typer.Option(
            help="Where the Lease is. Default: the pod's namespace, else `default`.", rich_help_panel=_CLUSTER
        ),
    ] = None,
    lease_name: Annotated[
        str, typer.Option(help="Name of the Lease that replicas share.", rich_help_panel=_CLUSTER)
    ] = "vllm-autotuner",
    mode_ceiling: Annotated[
        Mode, typer.Option(help="No service goes further, whatever its spec says.", rich_help_panel=_LIMITS)
    ] = Mode.AUTOMATIC,
    kill_switch: Annotated[
        bool, typer.Option("--kill-switch", help="Start no change; take running ones back.", rich_help_panel=_LIMITS)
    ] = False,
    limits_configmap: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="ConfigMap beside the Lease, read each tick: `modeCeiling` and `killSwitch` without a restart.",
            rich_help_panel=_LIMITS,
        ),
    ] = "",
    max_concurrent_changes: Annotated[
        str,
        typer.Option(
            metavar="N|N%", help="Changes under way at once, of all services; at least 1.", rich_help_panel=_LIMITS
        ),
    ] = CHANGES_AT_ONCE.text,
    max_extra_gpus: Annotated[
        str,
        typer.Option(
            metavar="N|N%",
            help="GPUs that changes add while they run, of all services'; one change may always run.",
            rich_help_panel=_LIMITS,
        ),
    ] = EXTRA_GPUS.text,
    listen_address: Annotated[
        str, typer.Option(help="Where /healthz, /readyz and /metrics answer.", rich_help_panel=_CLUSTER)
    ] = "0.0.0.0:8080",
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Default: the pod's service account, else $KUBECONFIG.", rich_help_panel=_CLUSTER),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="text for people, json for a log store.", rich_help_panel=_LOGGING)
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel, typer.Option(help="Least severity that is written.", rich_help_panel=_LOGGING)
    ] = LogLevel.INFO,
) -> None:
    """Run the operator: watch VLLMServices, diagnose them, and tune them within their bounds.

    Several replicas may run; one leads, the others keep watching and take over. SIGTERM ends it within seconds and
    hands the lead over at once.
    """
    from vllm_autotuner.cluster.client import own_namespace
    from vllm_autotuner.control.operator_settings import OperatorSettings
    from vllm_autotuner.control.run.app import OperatorFailed
    from vllm_autotuner.control.run.app import run as run_operator
    from vllm_autotuner.control.run.probes import split_address
    from vllm_autotuner.observation.prometheus import PrometheusAddress

    configure_logging(log_format=log_format, level=log_level)
    try:
        split_address(listen_address)
        settings = OperatorSettings(
            prometheus=PrometheusAddress(
                url=prometheus_url,
                bearer_token_file=prometheus_bearer_token_file,
                username=prometheus_username,
                password_file=prometheus_password_file,
                ca_file=prometheus_ca_file,
                headers=_headers(prometheus_header or ()),
            ),
            catalogue=load_catalogue(catalogue),
            interval=parse_duration(interval),
            window=parse_duration(window),
            nodes_on_demand=nodes_on_demand,
            namespaces=tuple(dict.fromkeys(namespace or ())),
            lease_namespace=lease_namespace or own_namespace() or "default",
            lease_name=lease_name,
            mode_ceiling=mode_ceiling,
            kill_switch=kill_switch,
            limits_configmap=limits_configmap,
            changes_at_once=_share("--max-concurrent-changes", max_concurrent_changes),
            extra_gpus=_share("--max-extra-gpus", max_extra_gpus),
            listen_address=listen_address,
            kubeconfig=kubeconfig,
            identity=new_identity(),
        )
    except (ValueError, CommandError) as error:
        raise typer.BadParameter(str(error)) from error
    try:
        asyncio.run(run_operator(settings))
    except OperatorFailed as error:
        typer.secho(f"vllm-autotuner: {error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from error


def new_identity() -> str:
    """Return a name for this process: the pod's (or host's), and something that a restart in the same pod changes."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"


def _share(flag: str, text: str) -> Share:
    try:
        return parse_share(text)
    except ValueError as error:
        raise ValueError(f"{flag} {text!r}: {error}") from error


def _headers(pairs: Sequence[str]) -> dict[str, str]:
    headers = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not key or not separator:
            raise ValueError(f"--prometheus-header {pair!r}: write KEY=VALUE")
        headers[key.strip()] = value.strip()
    return headers
