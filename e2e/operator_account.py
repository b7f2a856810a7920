"""The product's place in a bed: its CRD, and a ServiceAccount with the rights of the Helm chart and no others.

Apart from the fixtures, because the demo and several test files put the product into a bed.
Must not: use the admin's token for anything that the product does.
"""

import time
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.bed import REPOSITORY, Bed
from e2e.errors import CommandError
from e2e.processes import PATIENCE

NAMESPACE: Final = "vllm-autotuner-system"
ACCOUNT: Final = "vllm-autotuner"

_FILES: Final = REPOSITORY / "charts" / "vllm-autotuner" / "files"
RULES: Final = "".join((_FILES / name).read_text(encoding="utf-8") for name in ("rules.yaml", "rules-gpus.yaml"))
"""The chart's own rules, so that a test cannot pass with a right that users do not grant."""

LEASES: Final = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
"""The chart grants one Lease by name; tests of the election hold one each."""


def install(bed: Bed) -> Path:
    """Install CRD, account and rights; return the account's kubeconfig. Doing it twice changes nothing."""
    install_crd(bed)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT}
    bed.apply(
        [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": NAMESPACE}},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": ACCOUNT},
                "rules": [*yaml.safe_load(RULES), LEASES],
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": ACCOUNT},
                "roleRef": role,
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
            },
        ],
        server_side=True,
    )
    return bed.service_account_kubeconfig(NAMESPACE, ACCOUNT)


def install_crd(bed: Bed) -> None:
    """Install the CRD as a user does, and wait until the API server knows it."""
    bed.kubectl("apply", "--server-side", "-f", str(REPOSITORY / "crds"))
    _wait_until_served(bed)


def _wait_until_served(bed: Bed) -> None:
    # `kubectl wait` fails on a CRD so young that it has no conditions yet.
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            bed.kubectl("get", "vllmservices", "--all-namespaces")
        except CommandError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def vllm_service(namespace: str, name: str = "chat", **spec: Any) -> dict[str, Any]:
    """A small valid VLLMService; `spec` adds fields or replaces them."""
    return {
        "apiVersion": "vllm-autotuner.dev/v1alpha1",
        "kind": "VLLMService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"name": "example/tiny"},
            "engine": {"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 8},
            "replicas": 1,
        }
        | spec,
    }
