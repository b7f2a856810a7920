"""What the API server asks a kubelet: container logs over HTTPS; and `/pods` and `/debug` for tests.

    GET  /containerLogs/NAMESPACE/POD/CONTAINER     as `kubectl logs` wants it
    GET  /pods                                      every container with its process id, for `kill -9`
    POST /debug/oom/NAMESPACE/POD/CONTAINER         end it as the kernel's OOM killer does: 137, reason OOMKilled
    GET  /healthz

Must not: change a pod but by /debug. Nobody is authenticated: the port is on loopback or inside the bed's namespace.
"""

import asyncio
import ssl
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from e2e.agent.container import Container
from e2e.agent.logs import LogQuery, shown, tail
from e2e.agent.objects import uid_of, utc_now
from e2e.agent.pods import Pods
from e2e.agent.status import Running

_POLL_SECONDS: Final = 0.05
_CERTIFICATE_DAYS: Final = 365


class NodeServer:
    """The HTTPS server of the node. Use as a context manager; `port` is known inside."""

    def __init__(self, pods: Pods, *, ip: str, folder: Path) -> None:
        self._pods = pods
        self._ip = ip
        self._folder = folder
        self.port = 0
        application = web.Application()
        application.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/pods", self._list),
                web.get("/containerLogs/{namespace}/{pod}/{container}", self._logs),
                web.post("/debug/oom/{namespace}/{pod}/{container}", self._out_of_memory),
            ]
        )
        # A reader that follows a log would otherwise hold up the end for a minute.
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)

    async def __aenter__(self) -> "NodeServer":
        await self._runner.setup()
        certificate = write_certificate(self._folder, ip=self._ip)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        site = web.TCPSite(self._runner, self._ip, 0, ssl_context=context)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response(
            [
                {
                    "namespace": worker.pod["metadata"]["namespace"],
                    "name": worker.pod["metadata"]["name"],
                    "uid": uid_of(worker.pod),
                    "containers": [
                        {
                            "name": container.name,
                            "pid": container.pid,
                            "running": isinstance(container.state, Running),
                            "restartCount": container.view.restart_count,
                        }
                        for container in worker.containers
                    ],
                }
                for worker in self._pods.workers()
            ]
        )

    async def _out_of_memory(self, request: web.Request) -> web.Response:
        self._container(request).kill_as_out_of_memory()
        return web.Response(text="killed")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        container = self._container(request)
        try:
            query = LogQuery.parse(request.query, now=utc_now())
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        path = container.log_path(previous=query.previous)
        words = f'container "{container.name}" in pod "{request.match_info["pod"]}"'
        if path is None and query.previous:
            raise web.HTTPBadRequest(text=f"previous terminated {words} not found")
        if path is None:
            raise web.HTTPBadRequest(text=f"{words} is waiting to start: {container.view.state}")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await _send(response, path, query=query, container=container)
        await response.write_eof()
        return response

    def _container(self, request: web.Request) -> Container:
        info = request.match_info
        worker = self._pods.find(info["namespace"], info["pod"])
        found = next((each for each in worker.containers if each.name == info["container"]), None) if worker else None
        if found is None:
            raise web.HTTPNotFound(text=f"no container {info['container']} in pod {info['namespace']}/{info['pod']}")
        return found


async def _send(response: web.StreamResponse, path: Path, *, query: LogQuery, container: Container) -> None:
    """Send what is there, then what comes, until the instance has ended and everything is sent."""
    left = query.limit_bytes
    with path.open("rb") as file:
        lines = tail(file.readlines(), query.tail_lines)
        while True:
            text = b"".join(shown(lines, query))[:left]
            await response.write(text)
            left = None if left is None else left - len(text)
            if not query.follow or left == 0:
                return
            # Asked before reading: lines written in between are then read in this round.
            running = container.pid is not None and path == container.log_path(previous=False)
            lines = file.readlines()
            if not lines:
                if not running:
                    return
                await asyncio.sleep(_POLL_SECONDS)


def write_certificate(folder: Path, *, ip: str) -> Path:
    """Write key and self-signed certificate into one file; nobody verifies it, as with a kubelet's own. Its path."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "process-node")])
    now = utc_now()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_CERTIFICATE_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(ip))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path
