"""What the test bed builds: one row per go.mod under tools/, with the version that the binary must report.

Apart from the build, because a new tool is one folder and one row here.
Must not: start a process or name a version: go.mod is the only place that does.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.errors import BinariesError

TOOLS_FOLDER: Final = Path(__file__).resolve().parent.parent / "tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One go.mod, the binaries it gives, and how long its first build takes."""

    name: str
    packages: Mapping[str, str]
    """Binary name -> Go package."""
    module: str
    """The module whose version the binaries report."""
    usual: str
    """The first build with its downloads, on two cores."""
    tags: str = ""
    """Build tags without which it is another program, separated by commas."""
    version_variable: str | None = None
    """The Go variable that carries the version. Without it `/version` is empty, and clients that parse it fail."""
    folder: Path
    """Where go.mod and go.sum are."""
    files: Sequence[str] = ()
    """Files of the module, by their path in it, to keep beside the binaries: what is deployed with them."""

    def ldflags(self) -> str:
        """Return the linker flags: stripped, and with the version that go.mod names."""
        if self.version_variable is None:
            return "-s -w"
        return f"-s -w -X {self.version_variable}={self.version()}"

    def version(self) -> str:
        """Return the version that go.mod names, as the project's releases spell it."""
        found = required_version((self.folder / "go.mod").read_text(encoding="utf-8"), module=self.module)
        return release_name(self.module, version=found)


PROMETHEUS_MODULE: Final = "github.com/prometheus/prometheus"
PROMETHEUS_OPERATOR_MODULE: Final = "github.com/prometheus-operator/prometheus-operator"
ARGO_CD_MODULE: Final = "github.com/argoproj/argo-cd/v3"
THANOS_MODULE: Final = "github.com/thanos-io/thanos"
TOOLS: Final[tuple[Tool, ...]] = (
    Tool(
        name="etcd",
        folder=TOOLS_FOLDER / "etcd",
        packages={"etcd": "go.etcd.io/etcd/server/v3"},
        module="go.etcd.io/etcd/server/v3",
        usual="45 s",
    ),
    Tool(
        name="kubernetes",
        folder=TOOLS_FOLDER / "kubernetes",
        packages={
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
        },
        module="k8s.io/kubernetes",
        version_variable="k8s.io/component-base/version.gitVersion",
        usual="4 min",
    ),
    Tool(
        name="prometheus",
        folder=TOOLS_FOLDER / "prometheus",
        packages={name: f"{PROMETHEUS_MODULE}/cmd/{name}" for name in ("prometheus", "promtool")},
        module=PROMETHEUS_MODULE,
        version_variable="github.com/prometheus/common/version.Version",
        usual="4 min",
    ),
    Tool(
        name="helm",
        folder=TOOLS_FOLDER / "helm",
        packages={"helm": "helm.sh/helm/v4/cmd/helm"},
        module="helm.sh/helm/v4",
        version_variable="helm.sh/helm/v4/internal/version.version",
        usual="90 s",
    ),
    Tool(
        name="prometheus-operator",
        folder=TOOLS_FOLDER / "prometheus-operator",
        packages={
            name: f"{PROMETHEUS_OPERATOR_MODULE}/cmd/{package}"
            for name, package in (
                ("prometheus-operator", "operator"),
                ("prometheus-config-reloader", "prometheus-config-reloader"),
            )
        },
        module=PROMETHEUS_OPERATOR_MODULE,
        version_variable="github.com/prometheus/common/version.Version",
        files=("bundle.yaml",),
        usual="2 min",
    ),
    Tool(
        name="thanos",
        folder=TOOLS_FOLDER / "thanos",
        packages={"thanos": f"{THANOS_MODULE}/cmd/thanos"},
        module=THANOS_MODULE,
        # As its releases are built: without it, it ends in a panic at the first answer of a store.
        tags="slicelabels",
        version_variable="github.com/prometheus/common/version.Version",
        usual="3 min",
    ),
    Tool(
        name="argocd",
        folder=TOOLS_FOLDER / "argocd",
        packages={"argocd": f"{ARGO_CD_MODULE}/cmd", "redis": "./redis"},
        module=ARGO_CD_MODULE,
        version_variable=f"{ARGO_CD_MODULE}/common.version",
        files=("manifests/crds/application-crd.yaml", "manifests/crds/appproject-crd.yaml"),
        usual="4 min",
    ),
    Tool(
        name="kind",
        folder=TOOLS_FOLDER / "kind",
        packages={"kind": "sigs.k8s.io/kind"},
        module="sigs.k8s.io/kind",
        usual="10 s",
    ),
)


def required_version(go_mod: str, *, module: str) -> str:
    """Read the version of `module` from a go.mod. Raises BinariesError when it is not required there."""
    match = re.search(rf"^(?:require)?\s+{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if match is None:
        raise BinariesError(f"go.mod does not require {module}")
    return match[1]


def release_name(module: str, *, version: str) -> str:
    """Return the version as the project's releases spell it: Prometheus' module v0.315.0 is release 3.15.0."""
    if module != PROMETHEUS_MODULE:
        return version
    _, minor, patch = version.removeprefix("v").split(".")
    return f"{int(minor) // 100}.{int(minor) % 100}.{patch}"


def cache_key(tool: Tool, *, go_version: str) -> str:
    """Return a short hash that changes with anything that changes the binaries."""
    digest = hashlib.sha256()
    for part in (
        (tool.folder / "go.mod").read_bytes(),
        (tool.folder / "go.sum").read_bytes(),
        go_version.encode(),
        tool.ldflags().encode(),
        *([tool.tags.encode()] if tool.tags else []),
        repr(sorted(tool.packages.items())).encode(),
        *(file.encode() for file in tool.files),
        *(source.read_bytes() for source in sorted(tool.folder.rglob("*.go"))),
    ):
        # With its length, so that no two different lists of parts read the same.
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]
