"""How a container reaches the API server with its own ServiceAccount.

In namespace mode as in any cluster: the ClusterIP and the projected volume. In loopback mode there are no mounts and no
Services: the address of the server itself, and a kubeconfig that points at the files of the same projected volume.
Must not: hand out any credential but the pod's own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from e2e.agent.context import PodContext
from e2e.agent.objects import SERVICE_ACCOUNT_FOLDER

CLUSTER_ADDRESS: Final = ("10.96.0.1", 443)
"""The first address of the Service range is the API server's."""


def api_variables(context: PodContext) -> Mapping[str, str]:
    """Return the environment variables; in loopback mode they may name a kubeconfig, which this writes."""
    isolated = context.node.network.mode == "namespace"
    host, port = CLUSTER_ADDRESS if isolated else context.node.api.address
    variables = {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
    }
    if not isolated and (folder := _credentials(context)):
        kubeconfig = context.folder / "kubeconfig"
        kubeconfig.write_text(_kubeconfig(context, folder=folder, server=f"https://{host}:{port}"), encoding="utf-8")
        variables["KUBECONFIG"] = str(kubeconfig)
    return variables


def _credentials(context: PodContext) -> Path | None:
    """Return the folder of token and certificate, None when the pod asked for none."""
    for container in context.pod["spec"]["containers"]:
        if found := context.volumes.find(SERVICE_ACCOUNT_FOLDER, container=container, pod=context.pod):
            return found
    return None


def _kubeconfig(context: PodContext, *, folder: Path, server: str) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "bed", "cluster": {"server": server, "certificate-authority": str(folder / "ca.crt")}},
        ],
        "users": [{"name": "pod", "user": {"tokenFile": str(folder / "token")}}],
        "contexts": [
            {
                "name": "pod",
                "context": {"cluster": "bed", "user": "pod", "namespace": context.pod["metadata"]["namespace"]},
            }
        ],
        "current-context": "pod",
    }
    return yaml.safe_dump(config)
