"""The real Prometheus Operator on the bed, in a pod as its own manifest says, and the Prometheus that it runs.

Nothing of what it generates is touched: its StatefulSet's pod runs on the process node, with the real config reloader
and the real Prometheus in place of their images, and reads its Secrets, ConfigMaps and token as in any cluster.
Apart from the test, because a test says what must hold of the chart and not how a neighbour is installed.
Must not: know the product's chart.
Assumes namespace mode: the generated configuration names paths, so its pods need mounts of their own.
"""

import asyncio
import gzip
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from e2e.errors import CommandError
from e2e.stage import Stage, condition, until
from e2e.tool_catalogue import PROMETHEUS_MODULE, TOOLS

NAMESPACE: Final = "monitoring"
NAME: Final = "k8s"
MANIFEST: Final = "bundle.yaml"
"""Of the module: the CRDs, the rights and the Deployment, all in namespace `default`."""
SELECTED: Final = {"release": "stack"}
"""The labels by which the Prometheus selects monitors and rules, as that of kube-prometheus-stack does by default."""
_READY_SECONDS: Final = 120.0
_CUSTOM: Final = "/apis/monitoring.coreos.com/v1"


def images(binaries: Mapping[str, Path]) -> list[Mapping[str, object]]:
    """The rows of the image table under which its pods and those that it makes run the binaries of the bed."""
    return [
        {"match": rf"^quay\.io/{repository}(:|@|$)", "command": [str(binaries[repository.rpartition("/")[2]])]}
        for repository in (
            "prometheus-operator/prometheus-operator",
            "prometheus-operator/prometheus-config-reloader",
            "prometheus/prometheus",
        )
    ]


async def install(stage: Stage, manifest: Path) -> None:
    """Install it as its documentation says, and wait until it runs."""
    # Server-side: its CRDs are too large for the annotation of kubectl.
    await asyncio.to_thread(stage.bed.kubectl, "apply", "--server-side", "-f", str(manifest))

    async def runs() -> bool:
        found = await stage.get("/apis/apps/v1/namespaces/default/deployments/prometheus-operator")
        return bool(found.get("status", {}).get("availableReplicas"))

    await until("the Prometheus Operator runs", runs, seconds=_READY_SECONDS)


async def make_room(stage: Stage) -> str:
    """Make the namespace, the account and the Service of a Prometheus to come; return the URL that it will have."""
    stage.bed.create_namespace(NAMESPACE)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "prometheus"}
    stage.apply(
        _named("v1", "ServiceAccount", "prometheus"),
        _named("rbac.authorization.k8s.io/v1", "ClusterRole", "prometheus")
        | {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]},
        _named("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "prometheus")
        | {
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": NAMESPACE}],
        },
        # Beside `prometheus-operated`, which has no address of its own: the bed has no DNS.
        _named("v1", "Service", "prometheus")
        | {"spec": {"selector": {"operator.prometheus.io/name": NAME}, "ports": [{"port": 9090}]}},
    )
    service = await stage.get(f"/api/v1/namespaces/{NAMESPACE}/services/prometheus")
    return f"http://{service['spec']['clusterIP']}:9090"


def prometheus(binaries: Mapping[str, Path], **spec: Any) -> dict[str, Any]:
    """A Prometheus that selects monitors and rules of all namespaces by `SELECTED`; `spec` adds fields."""
    [version] = [tool.version() for tool in TOOLS if tool.module == PROMETHEUS_MODULE]
    selectors = {
        f"{kind}{selector}": value
        for kind in ("podMonitor", "serviceMonitor", "rule")
        for selector, value in (("Selector", {"matchLabels": SELECTED}), ("NamespaceSelector", {}))
    }
    # What it generates for these containers names a file of the image, and the process node has none.
    reloader = {"command": [str(binaries["prometheus-config-reloader"])]}
    common = {
        "version": f"v{version}",
        "serviceAccountName": "prometheus",
        "evaluationInterval": "1s",
        "initContainers": [{"name": "init-config-reloader", **reloader}],
        "containers": [{"name": "config-reloader", **reloader}],
    }
    return _named("monitoring.coreos.com/v1", "Prometheus", NAME) | {"spec": common | selectors | spec}


async def until_available(stage: Stage) -> None:
    """Wait until the Prometheus serves, in the words of the operator that runs it."""

    async def available() -> bool:
        found = await stage.get(f"{_CUSTOM}/namespaces/{NAMESPACE}/prometheuses/{NAME}")
        status = found.get("status", {})
        return condition(status, "Available") == condition(status, "Reconciled") == "True"

    await until("the Prometheus is available and reconciled", available, seconds=_READY_SECONDS)


async def generated_jobs(stage: Stage) -> dict[str, dict[str, Any]]:
    """The scrape configurations that were generated for the Prometheus, by job; empty while there are none."""
    secret = await stage.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/prometheus-{NAME}")
    if not secret:
        return {}
    config = yaml.safe_load(gzip.decompress(b64decode(secret["data"]["prometheus.yaml.gz"])))
    return {job["job_name"]: job for job in config["scrape_configs"]}


async def generated_rules(stage: Stage) -> list[dict[str, Any]]:
    """The groups of rules that were generated for the Prometheus; empty while there are none."""
    found = await stage.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/prometheus-{NAME}-rulefiles-0")
    return [group for text in (found.get("data") or {}).values() for group in yaml.safe_load(text)["groups"]]


async def complaints(stage: Stage) -> list[str]:
    """What it says of objects that it does not take."""
    found = await stage.get("/apis/events.k8s.io/v1/events")
    return [
        f"{each['regarding']['kind']} {each['regarding']['name']}: {each['note']}"
        for each in found["items"]
        if each["type"] == "Warning" and each["regarding"].get("apiVersion", "").startswith("monitoring.coreos.com/")
    ]


@dataclass(frozen=True, slots=True)
class Server:
    """A Prometheus that is asked as Grafana asks it."""

    url: str

    async def get(self, path: str, **parameters: Any) -> Any:
        """The data of one answer. Raises CommandError with the server's own words."""
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            answer = (await client.get(f"{self.url}/api/v1/{path}", params=parameters)).json()
        if answer["status"] != "success":
            raise CommandError(f"{path} {json.dumps(parameters)}: {answer['error']}")
        return answer["data"]

    async def query(self, expression: str) -> list[Mapping[str, str]]:
        """The labels of the series that an expression has now."""
        found = await self.get("query", query=expression)
        return [series["metric"] for series in found["result"]]

    async def targets(self) -> list[dict[str, Any]]:
        """What it scrapes."""
        found: list[dict[str, Any]] = (await self.get("targets", state="active"))["activeTargets"]
        return found

    async def rules(self) -> Sequence[Mapping[str, Any]]:
        """What it evaluates."""
        return [rule for group in (await self.get("rules"))["groups"] for rule in group["rules"]]


def _named(version: str, kind: str, name: str) -> dict[str, Any]:
    metadata = {"name": name} if kind.startswith("Cluster") else {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
