"""The option groups of `run`, and the operator's settings that they make."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from vllm_autotuner.api.spec import Mode
from vllm_autotuner.cli.options.kubernetes import Kubeconfig
from vllm_autotuner.cli.options.platform_options import CatalogueFile
from vllm_autotuner.cli.options.values import header_of
from vllm_autotuner.cli.run.log_format import LogFormat, LogLevel
from vllm_autotuner.guardrails.concurrency import CHANGES_AT_ONCE, EXTRA_GPUS, Share, parse_share

if TYPE_CHECKING:
    from vllm_autotuner.observation.access import PrometheusAddress

__all__ = ["ClusterOptions", "LimitOptions", "LoggingOptions", "ObservationOptions", "PrometheusOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusOptions:
    """The Prometheus that every service without a metrics source of its own is read from."""

    PANEL: ClassVar = "Prometheus"

    prometheus_url: Annotated[str, typer.Option(metavar="URL", envvar="PROMETHEUS_URL", help="Base URL.")]
    prometheus_match: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE",
            help="Only series with this label, such as cluster=eu; also !=, =~ and !~. Repeatable.",
        ),
    ] = None
    prometheus_bearer_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with a bearer token. It is read at each query.")
    ] = None
    prometheus_username: Annotated[str | None, typer.Option(metavar="NAME", help="User for basic authentication.")] = (
        None
    )
    prometheus_password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the password of that user.")
    ] = None
    prometheus_ca_file: Annotated[Path | None, typer.Option(metavar="FILE", help="CA certificate to trust (PEM).")] = (
        None
    )
    prometheus_client_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Client certificate for mTLS (PEM).")
    ] = None
    prometheus_client_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Key of that certificate, if in a separate file (PEM).")
    ] = None
    prometheus_header: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="Additional header, such as a tenant. Repeatable.")
    ] = None
    prometheus_sources: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML file with further servers by the name in spec.prometheus.source."),
    ] = None

    def address(self) -> "PrometheusAddress":
        """Return them as one value. Raises ValueError, and CommandError for a header."""
        from vllm_autotuner.observation.access import PrometheusAddress
        from vllm_autotuner.observation.label_matchers import matcher

        if self.prometheus_client_key is not None and self.prometheus_client_cert is None:
            raise ValueError("--prometheus-client-key needs --prometheus-client-cert FILE")
        return PrometheusAddress(
            url=self.prometheus_url,
            match=tuple(map(matcher, self.prometheus_match or ())),
            bearer_token_file=self.prometheus_bearer_token_file,
            username=self.prometheus_username,
            password_file=self.prometheus_password_file,
            ca_file=self.prometheus_ca_file,
            client_cert=self.prometheus_client_cert,
            client_key=self.prometheus_client_key,
            headers=dict(header_of("--prometheus-header", each) for each in self.prometheus_header or ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationOptions:
    """How the fleet is observed."""

    PANEL: ClassVar = "Observation"

    interval: Annotated[str, typer.Option(metavar="DURATION", help="Time between evaluations of the fleet.")] = "15s"
    window: Annotated[str, typer.Option(metavar="DURATION", help="Window over which rates are computed.")] = "30s"
    catalogue: CatalogueFile = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Which namespaces are served, and where the operator runs."""

    PANEL: ClassVar = "Cluster"

    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", metavar="NAME", help="Serve only this namespace. Repeatable."),
    ] = None
    nodes_on_demand: Annotated[
        bool,
        typer.Option("--nodes-on-demand", help="A cluster autoscaler adds nodes: do not require free GPUs."),
    ] = False
    shard: Annotated[
        str,
        typer.Option(
            metavar="NUMBER/OF",
            help="Serve this part of the namespaces only; run one operator for each number from 0 on.",
        ),
    ] = "0/1"
    lease_namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Namespace of the Lease. Default: the pod's namespace, else `default`."),
    ] = None
    lease_name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the Lease for leader election; with shards, -NUMBER is added.")
    ] = "vllm-autotuner"
    listen_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of /healthz, /readyz and /metrics.")
    ] = "0.0.0.0:8080"
    web: Annotated[
        bool,
        typer.Option("--web", help="Serve a read-only web page of all services there. It has no login."),
    ] = False
    kubeconfig: Kubeconfig = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """Limits that hold for all services together."""

    PANEL: ClassVar = "Limits for all services"

    mode_ceiling: Annotated[Mode, typer.Option(help="Highest mode of any service, whatever its spec says.")] = (
        Mode.AUTOMATIC
    )
    kill_switch: Annotated[
        bool, typer.Option("--kill-switch", help="Start no change, and roll back running changes.")
    ] = False
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only",
            help="Write nothing to the cluster, no status either: only diagnose and recommend, in log and metrics.",
        ),
    ] = False
    limits_configmap: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="ConfigMap in the Lease's namespace with `modeCeiling` and `killSwitch`. Takes effect without a "
            "restart.",
        ),
    ] = ""
    max_concurrent_changes: Annotated[
        str,
        typer.Option(metavar="N|N%", help="Changes in progress at the same time, over all services; at least 1."),
    ] = CHANGES_AT_ONCE.text
    max_extra_gpus: Annotated[
        str,
        typer.Option(
            metavar="N|N%",
            help="GPUs that changes in progress may add, of all GPUs of all services. One change is always allowed.",
        ),
    ] = EXTRA_GPUS.text

    allow_in_pods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PERMISSION",
            help="Allow in spec.podTemplate: HostNetwork, HostPID, HostIPC, HostPath, HostPort, Privileged, "
            "Capabilities, ServiceAccount:NAME. Repeatable. Default: none.",
        ),
    ] = None

    def pod_permissions(self) -> frozenset[str]:
        """Return what pod templates may ask for. Raises ValueError."""
        from vllm_autotuner.workload.pod_permissions import parse_permissions

        try:
            return parse_permissions(self.allow_in_pods or ())
        except ValueError as error:
            raise ValueError(f"--allow-in-pods: {error}") from error

    def changes_at_once(self) -> Share:
        """Return the limit on changes. Raises ValueError."""
        return _share("--max-concurrent-changes", self.max_concurrent_changes)

    def extra_gpus(self) -> Share:
        """Return the limit on GPUs. Raises ValueError."""
        return _share("--max-extra-gpus", self.max_extra_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingOptions:
    """How the log is written."""

    PANEL: ClassVar = "Logging"

    log_format: Annotated[LogFormat, typer.Option(help="text for people, json for log aggregation.")] = LogFormat.TEXT
    log_level: Annotated[LogLevel, typer.Option(help="Lowest severity that is logged.")] = LogLevel.INFO


def _share(flag: str, text: str) -> Share:
    try:
        return parse_share(text)
    except ValueError as error:
        raise ValueError(f"{flag} {text!r}: {error}") from error
