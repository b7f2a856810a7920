"""The real Argo CD beside the bed, in core mode: controller, repository server and cache, over a repository on disk.

Apart from the test, because a test says what must hold of the product and not how a neighbour is started.
Must not: know a VLLMService, or configure Argo CD beyond what the tests of every user would.
"""

import asyncio
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.agent.api import ApiClient
from e2e.agent.objects import Object
from e2e.errors import CommandError
from e2e.ports import free_ports
from e2e.stage import Stage, until

NAMESPACE: Final = "argocd"
CRDS: Final = ("application-crd.yaml", "appproject-crd.yaml")
APPLICATIONS: Final = f"/apis/argoproj.io/v1alpha1/namespaces/{NAMESPACE}/applications"
RESYNC_SECONDS: Final = 5
"""Between two looks at the repository; Argo CD's own default is three minutes."""
PROCESSES: Final = ("argocd-redis", "argocd-repo-server", "argocd-application-controller")
_READY_SECONDS: Final = 120.0
_PART_OF: Final = {"app.kubernetes.io/part-of": "argocd"}


@dataclass(frozen=True, slots=True)
class Repository:
    """A bare Git repository, and the working copy of a person who pushes to it."""

    bare: Path
    work: Path

    @classmethod
    def create(cls, folder: Path) -> "Repository":
        """Make an empty one."""
        found = cls(folder / "repository.git", folder / "work")
        git("init", "--quiet", "--bare", "--initial-branch=main", str(found.bare))
        git("clone", "--quiet", str(found.bare), str(found.work))
        return found

    @property
    def url(self) -> str:
        """Where Argo CD reads it."""
        return f"file://{self.bare}"

    def push(self, message: str) -> str:
        """Commit whatever the working copy has, push it, and return the revision."""
        git("add", "--all", folder=self.work)
        git("commit", "--quiet", f"--message={message}", folder=self.work)
        git("push", "--quiet", "origin", "HEAD:main", folder=self.work)
        return git("rev-parse", "HEAD", folder=self.work).strip()


def git(*arguments: str, folder: Path | None = None) -> str:
    """Run Git with a person's name, whatever is configured here; return its stdout. Raises CommandError."""
    person = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in _PERSON.items()}
    environment = os.environ | person | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    result = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise CommandError(f"git {arguments[0]}: {result.stderr.strip()}")
    return result.stdout


_PERSON: Final = {"NAME": "admin", "EMAIL": "admin@example.com"}


@dataclass(slots=True)
class Seen:
    """Every version of every Application (a `Follower` of the API server)."""

    latest: dict[str, Object] = field(default_factory=dict)
    drifted: list[str] = field(default_factory=list)
    """Where Argo CD found the cluster to differ from a revision that it had found equal before."""
    healed: list[str] = field(default_factory=list)
    """What it synced again at a revision that the cluster had: a fight."""
    _synced: set[tuple[str, str]] = field(default_factory=set)
    _operations: set[tuple[str, str]] = field(default_factory=set)

    def replace(self, items: list[Object]) -> None:
        """See `Follower`."""
        for item in items:
            self.apply("MODIFIED", item)

    def apply(self, kind: str, item: Object) -> None:
        """See `Follower`."""
        name, status = item["metadata"]["name"], item.get("status") or {}
        self.latest[name] = item
        sync = status.get("sync") or {}
        key = (name, sync.get("revision", ""))
        if sync.get("status") == "Synced":
            self._synced.add(key)
        elif sync.get("status") == "OutOfSync" and key in self._synced:
            resources = status.get("resources") or []
            objects = [f"{each['kind']}/{each['name']}" for each in resources if each.get("status") == "OutOfSync"]
            self.drifted.append(f"{name} at {key[1]}: {', '.join(objects)}")
        operation = status.get("operationState") or {}
        if operation and (name, operation["startedAt"]) not in self._operations:
            self._operations.add((name, operation["startedAt"]))
            # One that begins while the cluster is not known to be equal yet is no healing, only haste.
            if sync.get("status") == "Synced" and key in self._synced:
                self.healed.append(f"{name} at {key[1]}")

    def synced(self, name: str, revision: str) -> bool:
        """Whether an Application has this revision, and no operation is under way."""
        return (name, revision) in self._synced and self.operation(name).get("phase") == "Succeeded"

    def operation(self, name: str) -> Mapping[str, Any]:
        """Its last operation."""
        found: Mapping[str, Any] = (self.latest.get(name, {}).get("status") or {}).get("operationState") or {}
        return found

    def health(self, name: str) -> str:
        """Its health, in Argo CD's word."""
        found: str = ((self.latest.get(name, {}).get("status") or {}).get("health") or {}).get("status", "")
        return found

    def healths(self, name: str, kind: str) -> dict[str, str]:
        """The health of each resource of a kind, by name."""
        resources = (self.latest.get(name, {}).get("status") or {}).get("resources") or []
        return {
            each["name"]: (each.get("health") or {}).get("status", "") for each in resources if each["kind"] == kind
        }


@asynccontextmanager
async def running(stage: Stage, binaries: Mapping[str, Path], *, settings: Object, folder: Path) -> AsyncIterator[Seen]:
    """Argo CD with these settings (the data of `argocd-cm`); yields what it says of its Applications."""
    bed = stage.bed
    bed.create_namespace(NAMESPACE)
    for name in CRDS:
        bed.kubectl("apply", "--server-side", "-f", str(binaries["argocd"].with_name(name)))
    stage.apply(
        _named("ConfigMap", "argocd-cm") | {"data": settings},
        _named("ConfigMap", "argocd-rbac-cm"),
        _named("Secret", "argocd-secret") | {"stringData": {"server.secretkey": secrets.token_hex(16)}},
    )

    async def served() -> bool:
        # 404 and 429 while the API server gets to know the kind.
        return (await stage.api.get(APPLICATIONS)).is_success

    await until("Argo CD's kinds are served", served, seconds=_READY_SECONDS)
    _start(stage, binaries, folder=folder)
    every = [{"group": "*", "kind": "*"}]
    project = {"sourceRepos": ["*"], "destinations": [{"namespace": "*", "server": "*"}]}
    stage.apply(
        {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "AppProject",
            "metadata": {"name": "default", "namespace": NAMESPACE},
            "spec": project | {"clusterResourceWhitelist": every},
        }
    )
    seen = Seen()
    async with ApiClient(bed.admin_kubeconfig) as api:
        following = asyncio.create_task(api.follow(APPLICATIONS, seen))
        try:
            yield seen
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            for name in reversed(PROCESSES):
                bed.processes.stop(name, grace=10)


def _start(stage: Stage, binaries: Mapping[str, Path], *, folder: Path) -> None:
    bed = stage.bed
    redis, server, *metrics = (f"127.0.0.1:{port}" for port in free_ports(4))
    (folder / "tls").mkdir(parents=True)
    (folder / "ssh").mkdir()
    (folder / "ssh" / "ssh_known_hosts").touch()
    environment = os.environ | {
        # Destination https://kubernetes.default.svc is the cluster of the kubeconfig.
        "ARGOCD_FAKE_IN_CLUSTER": "true",
        "KUBECONFIG": str(bed.admin_kubeconfig),
        "ARGOCD_GPG_ENABLED": "false",
        "ARGOCD_TLS_DATA_PATH": str(folder / "tls"),
        "ARGOCD_SSH_DATA_PATH": str(folder / "ssh"),
        "ARGOCD_ASK_PASS_SOCK": str(folder / "ask.sock"),
        "ARGOCD_APPLICATION_CONTROLLER_PERSIST_RESOURCE_HEALTH": "true",
        "TMPDIR": str(folder),
        # It runs a `helm` of its PATH.
        "PATH": f"{bed.bin['helm'].parent}{os.pathsep}{os.environ['PATH']}",
    }
    kubeconfig = ("--namespace", NAMESPACE, "--kubeconfig", str(bed.admin_kubeconfig))
    commands = {
        "argocd-redis": [str(binaries["redis"]), redis],
        "argocd-repo-server": [
            *(str(binaries["argocd"]), "--address", "127.0.0.1", "--port", server.rpartition(":")[2]),
            *("--metrics-address", "127.0.0.1", "--metrics-port", metrics[0].rpartition(":")[2]),
            *("--disable-tls", "--redis", redis, "--revision-cache-expiration", "1s"),
        ],
        "argocd-application-controller": [
            *(str(binaries["argocd"]), *kubeconfig, "--redis", redis, "--repo-server", server),
            *("--repo-server-plaintext", "--metrics-port", metrics[1].rpartition(":")[2]),
            *("--app-resync", f"{RESYNC_SECONDS}", "--app-resync-jitter", "0"),
        ],
    }
    for name in PROCESSES:
        bed.processes.start(name, commands[name], environment=environment | {"ARGOCD_BINARY_NAME": name})


def application(
    name: str, repository: Repository, *, path: str, namespace: str, options: Sequence[str] = (), **source: Any
) -> Object:
    """An Application that keeps a folder of the repository in the cluster: automated, pruned, healed."""
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "project": "default",
            "source": {"repoURL": repository.url, "targetRevision": "main", "path": path, **source},
            "destination": {"server": "https://kubernetes.default.svc", "namespace": namespace},
            "syncPolicy": {"automated": {"prune": True, "selfHeal": True}, "syncOptions": list(options)},
        },
    }


async def until_synced(seen: Seen, names: Iterable[str], revision: str, *, seconds: float = _READY_SECONDS) -> None:
    """Wait until Argo CD has brought a revision into the cluster. Raises NotSeen with what it says instead."""
    for name in names:

        def there(name: str = name) -> bool:
            return seen.synced(name, revision)

        try:
            await until(f"{name} is synced", there, seconds=seconds)
        except AssertionError as error:
            status = seen.latest.get(name, {}).get("status") or {}
            told = {key: status.get(key) for key in ("conditions", "operationState", "sync")}
            raise CommandError(f"{error}\n{yaml.safe_dump(told)}") from error


def _named(kind: str, name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": dict(_PART_OF)},
    }
