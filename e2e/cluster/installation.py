"""The chart in the cluster, and the cluster as it was before.

Apart from the acts, because it also has to hold when an act failed, and in a run that only cleans up.
Must not: delete what another run or another person made.
"""

from pathlib import Path
from typing import Any, Final

import yaml

from e2e.cluster import manifests
from e2e.cluster.access import Cluster
from e2e.cluster.errors import ClusterError

CHART: Final = Path(__file__).resolve().parents[2] / "charts" / "vllm-autotuner"
CHART_NAME: Final = "vllm-autotuner"
RELEASE: Final = "vllm-autotuner"
CRD: Final = "vllmservices.vllm-autotuner.dev"
MADE_CRD: Final = "vllm-autotuner.dev/e2e-made-crd"
"""Annotation of the namespace: the CRD was installed by the run that made the namespace, and goes with it."""


def app_version() -> str:
    """The tag that images of this checkout have by default."""
    chart: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    return str(chart["appVersion"])


def prepare(cluster: Cluster) -> bool:
    """Make the namespace, or take over that of a former run (then return True).

    Raises ClusterError when it belongs to another, or when an operator would serve it beside ours.
    """
    for each in cluster.list("deployments", selector=f"{manifests.NAME}={CHART_NAME}", everywhere=True):
        place, name = each["metadata"]["namespace"], each["metadata"]["name"]
        args = each["spec"]["template"]["spec"]["containers"][0].get("args", [])
        everywhere = not any(word.startswith("--namespace") for word in args)
        if place != cluster.namespace and everywhere:
            raise ClusterError(
                f"the operator {place}/{name} serves every namespace, so it would serve the acts, too: use another "
                "cluster, or limit it by watchNamespaces"
            )
    found = cluster.get("namespace", cluster.namespace)
    if not found:
        made_crd = not cluster.get("crd", CRD)
        cluster.apply(manifests.namespace(cluster.namespace, made_crd=made_crd, annotation=MADE_CRD))
        return False
    if "deletionTimestamp" in found["metadata"]:
        raise ClusterError(f"namespace {cluster.namespace} is being deleted: wait, or name another with --namespace")
    if found["metadata"].get("labels", {}).get(manifests.MANAGED_BY) != manifests.MADE_BY:
        raise ClusterError(f"namespace {cluster.namespace} is not of a former run: name another with --namespace")
    return True


def helm_install(cluster: Cluster, *, image: str, prometheus_url: str) -> None:
    """Install the chart for this one namespace, with times of seconds instead of minutes."""
    values = {
        "image": image_values(image),
        "prometheus": {"url": prometheus_url},
        "watchNamespaces": [cluster.namespace],
        "interval": "2s",
        "window": "10s",
        # Each act is about a service of its own: none waits for another one's change.
        "concurrency": {"changes": "100%", "extraGPUs": "100%"},
        "log": {"format": "text"},
    }
    cluster.helm("upgrade", "--install", RELEASE, str(CHART), values=values)


def helm_uninstall(cluster: Cluster) -> None:
    """Remove the release, if there is one."""
    cluster.helm("uninstall", RELEASE, "--ignore-not-found")


def image_values(image: str) -> dict[str, str]:
    """The chart's values for an image; one without a tag is `latest`, as everywhere."""
    name, _, digest = image.partition("@")
    folder, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return {"repository": f"{folder}{slash}{last}", "tag": tag or "latest", "digest": digest}


def clean_up(cluster: Cluster) -> None:
    """Remove all that the runs in this namespace made: release, namespace, and the CRD if it was not there before."""
    found = cluster.get("namespace", cluster.namespace)
    if not found or found["metadata"].get("labels", {}).get(manifests.MANAGED_BY) != manifests.MADE_BY:
        return
    # The release first: its ClusterRole is in no namespace.
    helm_uninstall(cluster)
    cluster.delete("namespace", cluster.namespace, wait=True)
    made_crd = found["metadata"].get("annotations", {}).get(MADE_CRD) == "true"
    if made_crd and cluster.get("crd", CRD) and not cluster.list("vllmservices", everywhere=True):
        cluster.delete("crd", CRD, wait=True)
