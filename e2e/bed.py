"""The whole test bed: control plane, process node and Prometheus, as one thing to start, use and stop.

Apart from its parts, because only here the order matters: node and Prometheus need an API that answers.
Must not: know the product, or run it with the admin's token (`service_account_kubeconfig` gives it one of its own).
Assumes that the caller is already where the bed shall live (see `enter`); there `AUTOTUNER_BED_MODE` is set.
"""

import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import httpx
import yaml

from e2e.binaries import ensure_binaries
from e2e.control_plane import ControlPlane, ControlPlaneSettings, write_kubeconfig
from e2e.enter import MODE_VARIABLE
from e2e.errors import BedError, CommandError, StartError
from e2e.network import Mode
from e2e.processes import PATIENCE, Identity, Processes, StateFile
from e2e.progress import Progress
from e2e.prometheus import Prometheus, pod_discovery

REPOSITORY: Final = Path(__file__).resolve().parent.parent
DEFAULT_STATE_DIR: Final = REPOSITORY / ".state" / "bed"
NODE: Final = "bed"
AGENT: Final = "agent"
READY_LINE: Final = "ready"
"""What the process node prints once it is registered."""
START_SECONDS: Final = PATIENCE
DEFAULT_IMAGES: Final[Sequence[Mapping[str, object]]] = (
    {"match": r"^(docker\.io/)?(library/)?python(:|@|$)", "command": [sys.executable]},
)
"""What the node can run when a test names nothing else: this Python, with its packages."""
NOT_SENT: Final = "TLS handshake timeout"
"""What kubectl says where a busy API server did not greet it within ten seconds, which no option makes longer."""
TRIES: Final = 3
"""Of a kubectl that could send nothing."""
AGENT_GRACE_SECONDS: Final = 10.0
"""The process node ends its containers first; whatever is left then dies with it."""


class Bed:
    """One bed. `async with Bed() as bed` starts it, and leaves nothing behind."""

    def __init__(
        self,
        *,
        images: Sequence[Mapping[str, object]] = DEFAULT_IMAGES,
        state_dir: Path = DEFAULT_STATE_DIR,
        mode: Mode | None = None,
        gpus: int = 8,
        settings: ControlPlaneSettings | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`images` are the rows of the process node's image table; `mode` defaults to where the caller is."""
        self.state_dir = state_dir.absolute()
        self.mode: Mode = mode or current_mode()
        self._images = images
        self._gpus = gpus
        self._settings = settings
        self._progress = progress
        self._ours = False
        self._data = self.state_dir / "data"
        self._images_file = self._data / "images.yaml"
        self.state = StateFile(self.state_dir / "bed.json")
        self.processes = Processes(logs=self.state_dir / "logs", state=self.state)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    async def start(self) -> None:
        """Start everything and wait until the node takes pods. Raises BedError in one line."""
        refuse_second_bed(self.state.path)
        self._ours = True
        self.bin: Mapping[str, Path] = ensure_binaries(progress=self._progress)
        # Of a former bed; its certificates and tokens fit no server any more.
        shutil.rmtree(self._data, ignore_errors=True)
        self.set_images(self._images)
        self.control_plane = ControlPlane(
            binaries=self.bin, processes=self.processes, data=self._data, mode=self.mode, settings=self._settings
        )
        await self.control_plane.start()
        self.api_url = self.control_plane.api_url
        self.ca_file = self.control_plane.ca_file
        self.admin_kubeconfig = self.control_plane.admin_kubeconfig
        self._api = api_client(self.control_plane)
        self.prometheus = Prometheus(
            binaries=self.bin,
            processes=self.processes,
            data=self._data / "prometheus",
            mode=self.mode,
            config=pod_discovery(
                api_url=self.api_url, ca_file=self.ca_file, token_file=self.control_plane.admin_token_file
            ),
        )
        self.prometheus_url = self.prometheus.url
        # At the same time, for either waits a second for the API.
        self._launch_agent()
        await self.prometheus.start()
        await self._agent_ready()
        self.state.write(
            ready=True,
            mode=self.mode,
            api_url=self.api_url,
            kubeconfig=str(self.admin_kubeconfig),
            prometheus_url=self.prometheus_url,
        )

    async def start_agent(self) -> None:
        """Start the process node again after `stop_agent`, and wait until the scheduler may use it."""
        self._launch_agent()
        await self._agent_ready()

    def _launch_agent(self) -> None:
        command = [
            *(sys.executable, "-m", "e2e.agent"),
            *("--kubeconfig", str(self.admin_kubeconfig)),
            *("--node-name", NODE),
            *("--data-dir", str(self._data / "node")),
            *("--mode", self.mode),
            *("--images", str(self._images_file)),
            *("--gpus", str(self._gpus)),
        ]
        self.processes.start(AGENT, command, environment=os.environ | {"PYTHONPATH": import_path()})

    async def _agent_ready(self) -> None:
        await self.processes.wait_ready(AGENT, self._node_usable, seconds=START_SECONDS)

    def set_images(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Replace the table of images; containers that start from now on see it."""
        self._data.mkdir(parents=True, exist_ok=True)
        # Replaced as a whole: the process node reads it again whenever it changed.
        unfinished = self._images_file.with_suffix(".tmp")
        unfinished.write_text(yaml.safe_dump([dict(row) for row in rows], sort_keys=False), encoding="utf-8")
        unfinished.replace(self._images_file)

    def stop_agent(self, *, crash: bool = False) -> None:
        """End the process node: in order (its containers first), or as a crash of the machine would."""
        self.processes.stop(AGENT, grace=0 if crash else AGENT_GRACE_SECONDS)

    def stop(self) -> None:
        """End every process of the bed; the state folder keeps the logs. Safe to call twice."""
        if not self._ours:  # refused: the state file is that of another bed, which runs
            return
        # The process node first: it ends its containers, which are its children and not ours.
        self.stop_agent()
        for name in reversed(self.processes.names()):
            self.processes.stop(name)
        if hasattr(self, "_api"):
            self._api.close()
        self.state.remove()

    def kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - as subprocess calls it
        """Run kubectl as the admin and return its stdout. Raises CommandError with its stderr."""
        for _ in range(TRIES):
            result = subprocess.run(
                [
                    str(self.bin["kubectl"]),
                    f"--kubeconfig={self.admin_kubeconfig}",
                    # Not in the user's home, which other clusters use.
                    f"--cache-dir={self._data / 'kubectl-cache'}",
                    *arguments,
                ],
                input=input,
                capture_output=True,
                text=True,
                check=False,
            )
            if result.returncode == 0 or NOT_SENT not in result.stderr:
                break
        if result.returncode != 0:
            raise CommandError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def apply(self, objects: Sequence[Mapping[str, object]], *, server_side: bool = False) -> None:
        """Apply objects as a user with kubectl does. Raises CommandError with the server's words."""
        manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", *(["--server-side"] if server_side else []), "-f", "-", input=manifest)

    def create_namespace(self, name: str) -> None:
        """Make a namespace and wait for its ServiceAccount: until then its pods are refused."""
        answer = self._api.post("/api/v1/namespaces", json={"metadata": {"name": name}})
        if answer.status_code != httpx.codes.CREATED:
            raise CommandError(f"namespace {name}: {answer.json()['message']}")
        deadline = time.monotonic() + START_SECONDS
        path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        while (answer := self._api.get(path)).status_code != httpx.codes.OK:
            if time.monotonic() > deadline:
                raise StartError(f"namespace {name} got no default ServiceAccount in {START_SECONDS:.0f} s")
            time.sleep(0.02)

    def delete_namespace(self, name: str) -> None:
        """Begin the deletion; with a Deployment inside it takes 10 s, which nobody needs to wait for."""
        self._api.delete(f"/api/v1/namespaces/{name}")

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Return a kubeconfig of an existing ServiceAccount: a bound token of a day, and no rights but its own."""
        token = self.kubectl("create", "token", name, f"--namespace={namespace}", "--duration=24h").strip()
        path = self._data / "kubeconfigs" / f"{namespace}-{name}"
        path.parent.mkdir(exist_ok=True)
        write_kubeconfig(path, server=self.api_url, ca_file=self.ca_file, token=token, namespace=namespace)
        return path

    async def _node_usable(self) -> bool:
        if READY_LINE not in self.processes.log(AGENT).read_text(encoding="utf-8", errors="replace").splitlines():
            return False
        try:
            node = self._api.get(f"/api/v1/nodes/{NODE}")
        except httpx.HTTPError:  # a busy API server: the next question may be answered
            return False
        if node.status_code != httpx.codes.OK:
            return False
        content = node.json()
        ready = any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in content["status"].get("conditions", [])
        )
        # The controller manager takes the taint away a moment after the node reports Ready.
        return ready and not content["spec"].get("taints")


def current_mode() -> Mode:
    """Return the mode that `enter` set up; loopback outside of it."""
    return "namespace" if os.environ.get(MODE_VARIABLE) == "namespace" else "loopback"


def import_path() -> str:
    """Return the PYTHONPATH under which a child finds the bed and the product."""
    return os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "operator")])


def api_client(control_plane: ControlPlane) -> httpx.Client:
    """Return an HTTP client for the API as the admin."""
    token = control_plane.admin_token_file.read_text(encoding="utf-8")
    return httpx.Client(
        base_url=control_plane.api_url,
        headers={"Authorization": f"Bearer {token}"},
        verify=ssl.create_default_context(cafile=control_plane.ca_file),
        trust_env=False,
        timeout=60,
    )


def recorded_processes(state: Path) -> dict[str, Identity]:
    """Read which processes a state file names; none when there is no file."""
    try:
        content = json.loads(state.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return {
        name: Identity(pid=entry["pid"], started=entry["started"])
        for name, entry in content.get("processes", {}).items()
    }


def refuse_second_bed(state: Path) -> None:
    """Raise BedError when the bed of this state file still runs."""
    if any(identity.alive() for identity in recorded_processes(state).values()):
        raise BedError(f"a bed runs already ({state}): stop it with `make stop` or `python -m e2e.bed_command down`")
