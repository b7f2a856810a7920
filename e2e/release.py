"""The Helm chart on the bed: what `helm install` would create, rendered by the real Helm, with the chart's own rights.

Apart from the stage, because the rights are the chart's and nobody may add to them here.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.bed import REPOSITORY, Bed
from e2e.errors import CommandError

RELEASE: Final = "vllm-autotuner"
CHART: Final = REPOSITORY / "charts" / "vllm-autotuner"


def render(bed: Bed, *, namespace: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of the chart for this namespace. Raises CommandError with Helm's words."""
    output = helm(bed, "template", namespace=namespace, values=values)
    return [document for document in yaml.safe_load_all(output) if document]


def helm(bed: Bed, command: str, *arguments: str, namespace: str, values: dict[str, Any]) -> str:
    """Run `helm template` or `helm install` with these values, as the admin; return its stdout.

    The URL of Prometheus is the bed's where `values` name none. Raises CommandError with Helm's words.
    """
    result = subprocess.run(
        [
            *(str(bed.bin["helm"]), command, RELEASE, str(CHART), *arguments),
            *("--kubeconfig", str(bed.admin_kubeconfig), "--namespace", namespace, "--values", "-"),
        ],
        input=json.dumps({"prometheus": {"url": bed.prometheus_url}} | values),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise CommandError(f"helm {command}: {result.stderr.strip()}")
    return result.stdout


def install_account(
    bed: Bed, *, namespace: str, served: Sequence[str] = (), everywhere: bool = False, shards: int = 1
) -> Path:
    """Create everything of the chart but its Deployment; return the kubeconfig of its ServiceAccount.

    For a run outside of a pod: the process is then another one, the rights are the same. `served`: further namespaces;
    `everywhere`: all of the cluster instead, as the chart does by default. `shards`: operators that share it.
    """
    watched = [] if everywhere else [namespace, *served]
    objects = render(bed, namespace=namespace, values={"watchNamespaces": watched, "shards": shards})
    bed.apply([each for each in objects if each["kind"] != "Deployment"], server_side=True)
    account = next(each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount")
    return bed.service_account_kubeconfig(namespace, account)


def install(bed: Bed, *, namespace: str, values: dict[str, Any]) -> str:
    """Create everything of the chart; return the name of its Deployment."""
    objects = render(bed, namespace=namespace, values={"watchNamespaces": [namespace]} | values)
    bed.apply(objects, server_side=True)
    name: str = next(each["metadata"]["name"] for each in objects if each["kind"] == "Deployment")
    return name
