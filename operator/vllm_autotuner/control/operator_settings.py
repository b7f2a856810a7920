"""The operator's own settings, set by the administrator. Settings of a service are in its VLLMService.

Apart from the command line, because tests and other entry points build it without parsing text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from vllm_autotuner.api.spec import Mode
from vllm_autotuner.cluster.lease import LeaseSettings
from vllm_autotuner.cluster.throttle import ThrottleSettings
from vllm_autotuner.control.shard import WHOLE, Shard
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.guardrails.concurrency import CHANGES_AT_ONCE, EXTRA_GPUS, Share
from vllm_autotuner.observation.prometheus import PrometheusAddress

_SHORTEST_INTERVAL: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """The operator's own settings. Raises ValueError for values with which it could not work."""

    prometheus: PrometheusAddress
    """Where the metrics of all services are, unless a service names one of `sources`."""

    sources: Mapping[str, PrometheusAddress] = field(default_factory=dict)
    """Further Prometheus servers by the name that `spec.prometheus.source` refers to. Services never name addresses."""

    catalogue: Catalogue = field(default_factory=Catalogue)
    """GPUs and models that the built-in tables lack. What is in neither is recommended only where it decides."""

    interval: timedelta = timedelta(seconds=15)
    """Between two ticks of the fleet loop. Shorter than the scrape interval sees nothing new; longer reacts later."""

    window: timedelta = timedelta(seconds=30)
    """Over which rates are taken, at least: it widens to four scrapes of an engine."""

    nodes_on_demand: bool = False
    """Nodes are added for pods that find none: then free GPUs limit nothing, and are not looked up. Those of Karpenter
    are recognised without it."""

    namespaces: tuple[str, ...] = ()
    """The namespaces served; empty means all. Each one costs a watch per kind."""

    pod_permissions: frozenset[str] = frozenset()
    """What pod templates may ask for beyond their own pod (`workload.pod_permissions`). Empty: a right to create
    VLLMServices is no right to hosts, privileges or other ServiceAccounts."""

    shard: Shard = WHOLE
    """The part of all namespaces that this process looks after. Limits in numbers are divided among the shards."""

    lease_namespace: str = "default"
    """Where the election's Lease is. In a cluster: the operator's own namespace."""

    lease_name: str = "vllm-autotuner"
    """Name of the Lease. Two operators that share a fleet must share it; two with disjoint namespaces must not. Each
    shard has one of its own, with its number behind the name."""

    lease: LeaseSettings = field(default_factory=LeaseSettings)
    """The times of the election."""

    mode_ceiling: Mode = Mode.AUTOMATIC
    """The highest effective mode of any service, whatever its spec.tuning.mode. Automatic limits nothing."""

    kill_switch: bool = False
    """No change starts in any service, and changes in progress are rolled back."""

    changes_at_once: Share = CHANGES_AT_ONCE
    """Limit of concurrent changes, as a share of all services."""

    extra_gpus: Share = EXTRA_GPUS
    """Limit of extra GPUs for changes, as a share of the GPUs of all services."""

    limits_configmap: str = ""
    """Name of a ConfigMap in `lease_namespace` that sets mode ceiling and kill switch at run time. Empty: none."""

    read_only: bool = False
    """Send no write to the cluster: no status, Event, workload or Lease. What is decided is in log and metrics."""

    throttle: ThrottleSettings = field(default_factory=ThrottleSettings)
    """The pace of writes."""

    sweep_interval: timedelta = timedelta(minutes=10)
    """Between two lists that look for deletions a watch has lost. Each lists the metadata of everything we watch."""

    listen_address: str = "0.0.0.0:8080"
    """Host and port of /healthz, /readyz and /metrics: the kubelet and Prometheus come from outside the pod."""

    web: bool = False
    """Serve the read-only web page there, too. It has no login, so that an administrator decides who reaches it."""

    kubeconfig: Path | None = None
    """None: the pod's service account, else the default kubeconfig."""

    identity: str
    """Name of this process in the Lease and in Events. Unique per process: a restarted container has another one."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.interval < _SHORTEST_INTERVAL:
            raise ValueError("the interval must be at least 1s")
        if self.window < self.interval:
            raise ValueError("the window must not be shorter than the interval")
        if not self.identity:
            raise ValueError("the identity must not be empty")
        for name, share in (("changes", self.changes_at_once), ("extra GPUs", self.extra_gpus)):
            try:
                share.among(self.shard.of)
            except ValueError as error:
                raise ValueError(f"the limit of {name} has to be divided among the shards: {error}") from error

    @property
    def heartbeat_limit(self) -> timedelta:
        """Age of the last sign of life of the fleet loop at which the process counts as hung and is restarted.

        Generous: a restart costs the whole fleet a window without changes; slow answers of Prometheus are no reason.
        """
        return max(4 * self.interval, timedelta(minutes=2))
