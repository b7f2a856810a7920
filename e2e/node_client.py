"""What a test does to the process node from outside: find a container's process, kill it, play the OOM killer.

Apart from the bed, which starts and stops the node but does not reach into its pods.
Must not: go through the API server; a test may have stopped it.
"""

import os
import signal
import time
from contextlib import suppress

import httpx

from e2e.errors import BedError
from e2e.processes import PATIENCE


class NodeClient:
    """Talks to the node's own HTTPS port (see `e2e.agent.server`)."""

    def __init__(self, url: str) -> None:
        """`url` without a path, such as `https://10.200.0.1:40123`; a restarted node has another one."""
        self._url = url

    @classmethod
    def of(cls, node: dict[str, object]) -> "NodeClient":
        """Return the client for a Node object as the API server gives it."""
        status = node["status"]
        assert isinstance(status, dict)
        address, port = status["addresses"][0]["address"], status["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        return cls(f"https://{address}:{port}")

    def pid(self, namespace: str, pod: str, container: str | None = None) -> int | None:
        """Return the main process of a container (the first one without a name), None while it does not run."""
        for each in self._ask("GET", "/pods").json():
            if (each["namespace"], each["name"]) == (namespace, pod):
                for candidate in each["containers"]:
                    if container in {None, candidate["name"]}:
                        pid: int | None = candidate["pid"]
                        return pid
        return None

    def running_pid(self, namespace: str, pod: str, container: str | None = None) -> int:
        """Wait until the container runs. Raises BedError after two minutes."""
        deadline = time.monotonic() + PATIENCE
        while (pid := self.pid(namespace, pod, container)) is None:
            if time.monotonic() > deadline:
                raise BedError(f"{namespace}/{pod} did not run within {PATIENCE:.0f} s")
            time.sleep(0.02)
        return pid

    def kill(self, namespace: str, pod: str, container: str | None = None) -> None:
        """SIGKILL the main process; all others of the container follow. It ends with 137, reason Error."""
        os.kill(self.running_pid(namespace, pod, container), signal.SIGKILL)

    def kill_if_there(self, namespace: str, pod: str) -> None:
        """Do the same to a pod that may go by itself meanwhile: then there is nothing to kill."""
        if (pid := self.pid(namespace, pod)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def run_out_of_memory(self, namespace: str, pod: str, container: str) -> None:
        """Do the same as the kernel's OOM killer: 137, reason OOMKilled."""
        self._ask("POST", f"/debug/oom/{namespace}/{pod}/{container}")

    def _ask(self, method: str, path: str) -> httpx.Response:
        # The certificate is self-signed and made at each start, as a kubelet's own; nobody can know it.
        answer = httpx.request(method, self._url + path, verify=False, trust_env=False, timeout=PATIENCE)
        return answer.raise_for_status()
