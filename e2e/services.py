"""`python -m e2e.services`: ClusterIPs in namespace mode, a small kube-proxy that forwards TCP.

Each connection to a ClusterIP:port goes to the next ready address of its EndpointSlices; without one the port is
closed, so that a client is refused at once, as kube-proxy does, and a program of the bed may listen there itself.
Apart from the process node and in a process of its own, because load on a Service must not delay probes and heartbeats.
Must not: balance by load, keep sessions together, or end connections to a pod that stopped being ready.
Assumes that the Service range is local to the machine's loopback device (`network.set_up_namespace`).
"""

import argparse
import asyncio
import logging
import resource
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.agent.api import ApiClient, ObjectsByUid
from e2e.agent.objects import Object, key_of

Address = tuple[str, int]

_API_SERVICE: Final = "default/kubernetes"
_CHUNK: Final = 1 << 16
_CONNECT_SECONDS: Final = 5.0

logger = logging.getLogger(__name__)


def routes(
    services: Iterable[Object], slices: Iterable[Object], *, api_server: Address
) -> Mapping[Address, Sequence[Address]]:
    """Return the ready addresses behind each ClusterIP and port; a port without any is left out."""
    by_service: dict[str, list[Object]] = {}
    for each in slices:
        owner = (each["metadata"].get("labels") or {}).get("kubernetes.io/service-name", "")
        by_service.setdefault(f"{each['metadata']['namespace']}/{owner}", []).append(each)
    result: dict[Address, Sequence[Address]] = {}
    for service in services:
        cluster_ip = service["spec"].get("clusterIP", "None")
        if cluster_ip in {"", "None"}:
            continue
        for port in service["spec"].get("ports") or []:
            if port.get("protocol", "TCP") != "TCP":
                continue
            if key_of(service) == _API_SERVICE:
                # It has no endpoints: its server listens where the bed put it.
                targets = [api_server]
            else:
                targets = _ready(by_service.get(key_of(service), []), port_name=port.get("name", ""))
            if targets:
                result[(cluster_ip, port["port"])] = targets
    return result


def _ready(slices: Iterable[Object], *, port_name: str) -> list[Address]:
    targets = set()
    for each in slices:
        numbers = [port["port"] for port in each.get("ports") or [] if (port.get("name") or "") == port_name]
        for endpoint in each.get("endpoints") or []:
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                targets |= {(address, number) for address in endpoint["addresses"] for number in numbers}
    return sorted(targets)


@dataclass(slots=True)
class _Listener:
    targets: Sequence[Address]
    server: asyncio.Server | None = None
    turn: int = 0

    def order(self) -> list[Address]:
        """Return all targets, beginning with the next in turn."""
        self.turn += 1
        start = self.turn % len(self.targets)
        return [*self.targets[start:], *self.targets[:start]]


class Forwarder:
    """Keeps one listener for each ClusterIP and port that has ready addresses."""

    def __init__(self) -> None:
        self._listeners: dict[Address, _Listener] = {}

    async def serve(self, wanted: Mapping[Address, Sequence[Address]]) -> None:
        """Open, change and close listeners until they are as wanted."""
        for address in self._listeners.keys() - wanted.keys():
            listener = self._listeners.pop(address)
            if listener.server:
                await _close(listener.server)
        for address, targets in wanted.items():
            listener = self._listeners.setdefault(address, _Listener(targets))
            listener.targets = targets
            if listener.server is None:
                await self._open(address, listener)

    async def _open(self, address: Address, listener: _Listener) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _forward(reader, writer, targets=listener.order())

        try:
            listener.server = await asyncio.start_server(accept, *address)
        except OSError as error:
            # Somebody of the bed listens there by intent, or has not let go yet: the next change tries again.
            logger.warning("no listener on %s:%s: %s", *address, error)


async def _close(server: asyncio.Server) -> None:
    """Stop listening; a connection that asyncio has just accepted is served all the same.

    Its transport is made one turn of the loop later, and fails on a server that was closed meanwhile (CPython
    gh-109564): the connection would stay open, with nobody to answer, until it is collected.
    """
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    await asyncio.sleep(0)
    server.close()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, targets: Sequence[Address]) -> None:
    """Connect to the first target that accepts, and copy both ways until both have ended."""
    try:
        for host, port in targets:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_SECONDS):
                    inner_reader, inner_writer = await asyncio.open_connection(host, port)
                break
        else:
            return
        try:
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
        finally:
            inner_writer.close()
    finally:
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction and pass its end on; the other direction may go on (half-closed)."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        return
    # A reset of one side is passed on as the end of both.
    writer.transport.abort()


async def forward_services(kubeconfig: Path) -> None:
    """Follow Services and EndpointSlices and forward, for ever."""
    changed = asyncio.Event()
    services, slices = ObjectsByUid(changed.set), ObjectsByUid(changed.set)
    forwarder = Forwarder()
    async with ApiClient(kubeconfig) as api:
        following = [
            asyncio.create_task(api.follow("/api/v1/services", services)),
            asyncio.create_task(api.follow("/apis/discovery.k8s.io/v1/endpointslices", slices)),
        ]
        try:
            while True:
                await changed.wait()
                changed.clear()
                await forwarder.serve(routes(services.items.values(), slices.items.values(), api_server=api.address))
        finally:
            for task in following:
                task.cancel()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal ends it."""
    parser = argparse.ArgumentParser(prog="python -m e2e.services", description=__doc__.split("\n")[0])
    parser.add_argument("--kubeconfig", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(forward_services(options.kubeconfig))
    return 0


if __name__ == "__main__":
    sys.exit(main())
