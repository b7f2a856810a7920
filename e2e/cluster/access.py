"""A cluster behind a kubeconfig: kubectl and helm, as anyone types them.

Apart from the acts, because what a failing command means to the person is decided in one place.
Must not: read anything but through the API server; the address of a pod may be out of reach from here.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.cluster.errors import ClusterError

FIELD_MANAGER: Final = "vllm-autotuner-e2e"
COMMANDS: Final[Mapping[str, str]] = {
    "kubectl": "install it (https://kubernetes.io/docs/tasks/tools/)",
    "helm": "install it (https://helm.sh/docs/intro/install/)",
}
"""What has to be in the PATH, and what to do where it is not."""
COMMAND_SECONDS: Final = 180.0
"""One command; the deletion of a namespace takes the longest."""
REACH_SECONDS: Final = 15
"""To the first answer of the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster, and the one namespace in which everything happens."""

    kubeconfig: Path
    namespace: str

    def check(self) -> str:
        """Return the address of the API server. Raises ClusterError where the acts cannot even begin."""
        if not self.kubeconfig.is_file():
            raise ClusterError(f"no kubeconfig at {self.kubeconfig}: name a file, as in --kubeconfig ~/.kube/config")
        for command, remedy in COMMANDS.items():
            if shutil.which(command) is None:
                raise ClusterError(f"{command} is not in the PATH: {remedy}")
        server = self.kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}").strip()
        try:
            self.kubectl("get", "--raw", "/version", f"--request-timeout={REACH_SECONDS}s")
        except ClusterError as error:
            check = f"kubectl --kubeconfig {self.kubeconfig} get nodes"
            raise ClusterError(f"the API server {server} gives no answer; `{check}` has to work. {error}") from None
        for resource in ("customresourcedefinitions", "clusterroles", "clusterrolebindings", "namespaces"):
            if not self.may("create", resource):
                raise ClusterError(
                    f"this kubeconfig may not create {resource}, which installing the chart takes: use one with the "
                    "rights of cluster-admin"
                )
        return server

    def may(self, verb: str, resource: str) -> bool:
        """Whether the owner of the kubeconfig has this right in all of the cluster."""
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), "auth", "can-i", verb, resource, "--quiet"]
        return subprocess.run(command, capture_output=True, check=False, timeout=COMMAND_SECONDS).returncode == 0

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """Run kubectl and return its stdout. Raises ClusterError with its stderr."""
        return _run("kubectl", "--kubeconfig", str(self.kubeconfig), *arguments, given=given)

    def helm(self, *arguments: str, values: Mapping[str, object] | None = None) -> str:
        """Run helm in the namespace and return its stdout. Raises ClusterError with its stderr."""
        place = ("--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace)
        more = () if values is None else ("--values", "-")
        return _run("helm", *arguments, *place, *more, given=None if values is None else json.dumps(values))

    def apply(self, *objects: Mapping[str, object]) -> None:
        """Apply objects; doing it twice changes nothing."""
        manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        manager = f"--field-manager={FIELD_MANAGER}"
        self.kubectl("apply", "-n", self.namespace, "--server-side", manager, "-f", "-", given=manifest)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Read one object; empty when it does not exist."""
        found = self.kubectl("get", kind, name, "-n", self.namespace, "--ignore-not-found", "-o", "json")
        return json.loads(found) if found.strip() else {}

    def list(self, kind: str, *, selector: str = "", everywhere: bool = False) -> Sequence[dict[str, Any]]:
        """Read the objects of one kind, in the namespace or in all of them."""
        where = ("--all-namespaces",) if everywhere else ("-n", self.namespace)
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, *where, "-l", selector, "-o", "json"))
        items: list[dict[str, Any]] = found["items"]
        return items

    def delete(self, kind: str, name: str, *, wait: bool = False) -> None:
        """Delete an object; it may be gone already."""
        how = ("--ignore-not-found", f"--wait={str(wait).lower()}", f"--timeout={COMMAND_SECONDS:.0f}s")
        self.kubectl("delete", kind, name, "-n", self.namespace, *how)

    def ask(self, service: str, port: int, path: str, *, body: Mapping[str, object] | None = None) -> Any:
        """Send a request to a pod of a Service by way of the API server; return the JSON of the answer."""
        url = f"/api/v1/namespaces/{self.namespace}/services/{service}:{port}/proxy{path}"
        if body is None:
            return json.loads(self.kubectl("get", "--raw", url))
        return json.loads(self.kubectl("create", "--raw", url, "-f", "-", given=json.dumps(body)))


def _run(*command: str, given: str | None) -> str:
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{_short(command)}: no end in {COMMAND_SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise ClusterError(f"{_short(command)}: {done.stderr.strip()}")
    return done.stdout


def _short(command: Sequence[str]) -> str:
    """The command without its kubeconfig, as a person would read it."""
    words = list(command)
    at = words.index("--kubeconfig")
    return " ".join(words[:at] + words[at + 2 :])
