"""A real Kubernetes control plane as four local processes: etcd, API server, controller manager, scheduler.

Apart from the bed, because a test of the API alone (CRD, RBAC, leases) needs no node and no Prometheus.
Must not: need root, listen outside loopback (or the bed's own network namespace), or keep data beyond its folder.
Assumes that its processes are tied to this one, so that a crashed test leaves no control plane.
"""

import base64
import secrets
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from e2e.network import GATEWAY, SERVICE_RANGE, Mode
from e2e.ports import free_ports
from e2e.processes import Processes

ETCD: Final = "etcd"
API_SERVER: Final = "kube-apiserver"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
SCHEDULER: Final = "kube-scheduler"

START_SECONDS: Final = 90.0
"""Usually 3 s; a machine that compiles meanwhile takes far longer."""
FAST_CLIENT: Final = ("--kube-api-qps=500", "--kube-api-burst=1000")
"""With the default of 20/s every controller first waits for its ServiceAccount token: 5 s more."""
FAST_NODE_MONITOR: Final = ("--node-monitor-period=1s", "--node-monitor-grace-period=8s")
"""A dead node is Unknown after about 7 s instead of 50 s. The node must report every 2 s, or it flaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the servers listen."""

    etcd: int
    etcd_peer: int
    api: int

    @classmethod
    def free(cls) -> "Ports":
        """Choose ports that nobody uses now."""
        etcd, etcd_peer, api = free_ports(3)
        return cls(etcd=etcd, etcd_peer=etcd_peer, api=api)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneSettings:
    """What a test may want different."""

    fast_node_monitor: bool = False
    """For tests of node failure."""
    extra_flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Component -> flags added at the end, such as {"kube-apiserver": ["--v=4"]}."""


class ControlPlane:
    """Starts and stops the four processes and knows how to reach the API."""

    def __init__(
        self,
        *,
        binaries: Mapping[str, Path],
        processes: Processes,
        data: Path,
        mode: Mode,
        settings: ControlPlaneSettings | None = None,
        ports: Ports | None = None,
    ) -> None:
        self._binaries = binaries
        self._processes = processes
        self._data = data
        self._mode = mode
        self._settings = settings or ControlPlaneSettings()
        self._ports = ports or Ports.free()
        self._token = secrets.token_urlsafe(32)
        self._address = "127.0.0.1" if mode == "loopback" else GATEWAY
        self.api_url = f"https://{self._address}:{self._ports.api}"
        self.ca_file = data / "pki" / "apiserver.crt"
        """Made by the API server: its certificate and the CA that signed it. For all clients."""
        self.admin_kubeconfig = data / "admin.kubeconfig"
        self.admin_token_file = data / "admin.token"

    async def start(self) -> None:
        """Start everything and wait until pods could be created in namespace `default`.

        Raises StartError with the telling line of a log when a process dies or stays silent.
        """
        self._write_keys()
        self._processes.start(ETCD, self._etcd_command())
        await self._processes.wait_ready(ETCD, self._etcd_healthy, seconds=START_SECONDS)
        self._processes.start(API_SERVER, self._api_server_command())
        await self.wait_api_ready()
        write_kubeconfig(self.admin_kubeconfig, server=self.api_url, ca_file=self.ca_file, token=self._token)
        self._processes.start(CONTROLLER_MANAGER, self._controller_manager_command())
        self._processes.start(SCHEDULER, self._scheduler_command())
        # Until the controller manager has made it, pods are refused.
        await self._processes.wait_ready(CONTROLLER_MANAGER, self._default_service_account, seconds=START_SECONDS)
        # It has no port to ask; one that could not start has ended by now.
        await self._processes.wait_ready(SCHEDULER, self._api_ready, seconds=START_SECONDS)

    async def wait_api_ready(self) -> None:
        """Wait until the API server serves; also after its process was killed and restarted."""
        await self._processes.wait_ready(API_SERVER, self._api_ready, seconds=START_SECONDS)

    def stop(self) -> None:
        """End all four at once. The data folder stays, and another start on it goes on with its content."""
        # SIGKILL, API server before etcd: in any other order the API server waits 10 s to delete its own lease.
        for component in (SCHEDULER, CONTROLLER_MANAGER, API_SERVER, ETCD):
            self._processes.stop(component)

    def _write_keys(self) -> None:
        pki = self._data / "pki"
        pki.mkdir(parents=True, exist_ok=True)
        key_file = pki / "sa.key"
        if not key_file.exists():
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            write_private(
                key_file,
                key.private_bytes(
                    encoding=serialization.Encoding.PEM,
                    format=serialization.PrivateFormat.TraditionalOpenSSL,
                    encryption_algorithm=serialization.NoEncryption(),
                ),
            )
        write_private(self._data / "tokens.csv", f"{self._token},admin,admin,system:masters\n".encode())
        write_private(self.admin_token_file, self._token.encode())

    def _command(self, component: str, *flags: str) -> list[str]:
        return [str(self._binaries[component]), *flags, *self._settings.extra_flags.get(component, ())]

    def _etcd_command(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._ports.etcd, self._ports.etcd_peer))
        return self._command(
            ETCD,
            f"--data-dir={self._data / 'etcd'}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )

    def _api_server_command(self) -> list[str]:
        # Without a default route the API server finds no address of its own to advertise, and exits.
        bind = (
            ["--bind-address=127.0.0.1"]
            if self._mode == "loopback"
            else ["--bind-address=0.0.0.0", f"--advertise-address={GATEWAY}"]
        )
        key = self._data / "pki" / "sa.key"
        return self._command(
            API_SERVER,
            *bind,
            f"--etcd-servers=http://127.0.0.1:{self._ports.etcd}",
            f"--secure-port={self._ports.api}",
            f"--cert-dir={self._data / 'pki'}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self._data / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--allow-privileged",
            # Otherwise the machine's own address becomes the endpoint of Service `kubernetes`.
            "--endpoint-reconciler-type=none",
            # Otherwise it looks the node's name up in DNS when it fetches logs.
            "--kubelet-preferred-address-types=InternalIP",
        )

    def _controller_manager_command(self) -> list[str]:
        return self._command(
            CONTROLLER_MANAGER,
            f"--kubeconfig={self.admin_kubeconfig}",
            f"--service-account-private-key-file={self._data / 'pki' / 'sa.key'}",
            f"--root-ca-file={self.ca_file}",
            # Each controller with its own identity and rights, as in a real cluster.
            "--use-service-account-credentials",
            "--secure-port=0",
            "--leader-elect=false",
            *FAST_CLIENT,
            *(FAST_NODE_MONITOR if self._settings.fast_node_monitor else ()),
        )

    def _scheduler_command(self) -> list[str]:
        return self._command(
            SCHEDULER,
            f"--kubeconfig={self.admin_kubeconfig}",
            "--secure-port=0",
            "--leader-elect=false",
            *FAST_CLIENT,
        )

    async def _etcd_healthy(self) -> bool:
        if not self._processes.listens(ETCD, port=self._ports.etcd):
            return False
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            return await answers(client, f"http://127.0.0.1:{self._ports.etcd}/health")

    async def _api_ready(self) -> bool:
        return await self._api_answers("/readyz")

    async def _default_service_account(self) -> bool:
        return await self._api_answers("/api/v1/namespaces/default/serviceaccounts/default")

    async def _api_answers(self, path: str) -> bool:
        if not self.ca_file.exists():
            return False
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except ssl.SSLError:  # half-written at this moment
            return False
        headers = {"Authorization": f"Bearer {self._token}"}
        async with httpx.AsyncClient(verify=context, headers=headers, trust_env=False, timeout=10) as client:
            return await answers(client, f"{self.api_url}{path}")


async def answers(client: httpx.AsyncClient, url: str) -> bool:
    """Whether a GET gives 200 now; every failure to connect is a no."""
    try:
        return (await client.get(url)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def write_private(path: Path, content: bytes) -> None:
    """Write a secret that only its owner can read. At once: scenes that are played side by side read it meanwhile."""
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


def write_kubeconfig(path: Path, *, server: str, ca_file: Path, token: str, namespace: str = "default") -> None:
    """Write a kubeconfig that stands on its own: the CA is inside."""
    ca = base64.b64encode(ca_file.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bed",
        "clusters": [{"name": "bed", "cluster": {"server": server, "certificate-authority-data": ca}}],
        "users": [{"name": "bed", "user": {"token": token}}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": "bed", "namespace": namespace}}],
    }
    write_private(path, yaml.safe_dump(config).encode())
