"""`vllm-autotuner run`: the operator. Turns options into settings; everything else is in `control`.

Apart from the other commands, because it imports kopf and the Kubernetes client, which take a second to load: those
imports are inside the functions, so that the other commands start fast.
"""

import asyncio
import os
import socket
import uuid
from typing import TYPE_CHECKING

import typer

from vllm_autotuner.api.durations import parse_duration
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.platform_options import load_catalogue
from vllm_autotuner.cli.run.log_format import configure_logging
from vllm_autotuner.cli.run.options import (
    ClusterOptions,
    LimitOptions,
    LoggingOptions,
    ObservationOptions,
    PrometheusOptions,
)

if TYPE_CHECKING:
    from vllm_autotuner.control.operator_settings import OperatorSettings

__all__ = ["EXAMPLES", "new_identity", "run"]

EXAMPLES = """
Examples:

  In a cluster (as the Helm chart does):

    vllm-autotuner run --prometheus-url http://prometheus.monitoring:9090

  On a laptop with the current kubeconfig, for two namespaces:

    export PROMETHEUS_URL=http://localhost:9090

    vllm-autotuner run -n chat -n search --listen-address 127.0.0.1:8080

  With a Mimir that needs a password and a tenant:

    export PROMETHEUS_URL=https://mimir.example/prometheus

    vllm-autotuner run --prometheus-header X-Scope-OrgID:gpu --prometheus-username me --prometheus-password-file pw

  With a second server, for services with spec.prometheus.source: eu:

    echo "eu: {url: https://prometheus.eu, bearerTokenFile: /etc/eu/token}" > sources.yaml

    vllm-autotuner run --prometheus-sources sources.yaml
"""


@with_groups
def run(
    *,
    prometheus: PrometheusOptions,
    observation: ObservationOptions,
    cluster: ClusterOptions,
    limits: LimitOptions,
    logs: LoggingOptions,
) -> None:
    """Run the operator: watch VLLMServices, diagnose them, and tune them within their bounds.

    Several replicas may run: one leads, and another takes over when it stops. SIGTERM stops it within seconds and
    releases the Lease at once.
    """
    from vllm_autotuner.control.run.app import OperatorFailed
    from vllm_autotuner.control.run.app import run as run_operator

    configure_logging(log_format=logs.log_format, level=logs.log_level)
    try:
        settings = _settings(prometheus, observation, cluster, limits)
    except (ValueError, CommandError) as error:
        raise typer.BadParameter(str(error)) from error
    try:
        asyncio.run(run_operator(settings))
    except OperatorFailed as error:
        typer.secho(f"vllm-autotuner: {error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from error


def _settings(
    prometheus: PrometheusOptions, observation: ObservationOptions, cluster: ClusterOptions, limits: LimitOptions
) -> "OperatorSettings":
    """Return the operator's settings. Raises ValueError and CommandError for a value that cannot work."""
    from vllm_autotuner.cli.run.prometheus_sources import load_sources
    from vllm_autotuner.cluster.client import own_namespace
    from vllm_autotuner.control.operator_settings import OperatorSettings
    from vllm_autotuner.control.run.probes import split_address
    from vllm_autotuner.control.shard import parse_shard

    split_address(cluster.listen_address)
    return OperatorSettings(
        prometheus=prometheus.address(),
        sources=load_sources(prometheus.prometheus_sources),
        catalogue=load_catalogue(observation.catalogue),
        interval=parse_duration(observation.interval),
        window=parse_duration(observation.window),
        nodes_on_demand=cluster.nodes_on_demand,
        namespaces=tuple(dict.fromkeys(cluster.namespace or ())),
        shard=parse_shard(cluster.shard),
        lease_namespace=cluster.lease_namespace or own_namespace() or "default",
        lease_name=cluster.lease_name,
        mode_ceiling=limits.mode_ceiling,
        kill_switch=limits.kill_switch,
        read_only=limits.read_only,
        limits_configmap=limits.limits_configmap,
        changes_at_once=limits.changes_at_once(),
        extra_gpus=limits.extra_gpus(),
        pod_permissions=limits.pod_permissions(),
        listen_address=cluster.listen_address,
        web=cluster.web,
        kubeconfig=cluster.kubeconfig,
        identity=new_identity(),
    )


def new_identity() -> str:
    """Return a name for this process: the pod's (or host's) and a part that is new after each restart."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
