"""How pods get addresses: one loopback address each, or a network namespace each behind a bridge.

Apart from the process node, because `enter` builds the bed's side (`set_up_namespace`) before any process of the bed.
Must not: talk to Kubernetes, or leave anything behind outside the bed's own namespaces.
Assumes of namespace mode that the caller is root in fresh network and mount namespaces (see `enter`).
"""

import asyncio
import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final, Literal, Protocol

from e2e import linux

Mode = Literal["namespace", "loopback"]

SERVICE_RANGE: Final = "10.96.0.0/16"
"""ClusterIPs; the API server gets the same range."""
GATEWAY: Final = "10.200.0.1"
"""Address of the node in namespace mode: the pods' bridge."""
POD_RANGE: Final = IPv4Network("10.200.0.0/16")
LOOPBACK_RANGE: Final = IPv4Network("127.20.0.0/16")

_NAMESPACES: Final = Path("/run/netns")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNetwork:
    """A pod's address, and the words to put before a command so that it runs there."""

    ip: str
    command_prefix: tuple[str, ...]


class Network(Protocol):
    """Gives addresses to pods; `key` is whatever identifies the pod to the caller."""

    mode: Mode
    node_ip: str

    async def add_pod(self, key: str, *, host: bool = False) -> PodNetwork:
        """Give the pod an address (with `host` the node's own); the same key gets the same. Raises NetworkError."""
        ...

    async def remove_pod(self, key: str) -> None:
        """Take the address back; its processes must have ended. An unknown key is fine."""
        ...


class NetworkError(Exception):
    """A command of iproute2 failed; the text is the command and what it said."""


class LoopbackNetwork:
    """Every pod has a 127.20.x.y address of the one loopback device, so its processes must bind to it."""

    def __init__(self) -> None:
        self.mode: Mode = "loopback"
        self.node_ip = "127.0.0.1"
        # Two beds on one machine share the range: different starting points keep their pods apart.
        self._free = _addresses(LOOPBACK_RANGE, start=random.randrange(2, 60_000))
        self._pods: dict[str, PodNetwork] = {}

    async def add_pod(self, key: str, *, host: bool = False) -> PodNetwork:
        """See `Network`."""
        if host:
            return PodNetwork(ip=self.node_ip, command_prefix=())
        if key not in self._pods:
            taken = {pod.ip for pod in self._pods.values()}
            self._pods[key] = PodNetwork(ip=next(ip for ip in self._free if ip not in taken), command_prefix=())
        return self._pods[key]

    async def remove_pod(self, key: str) -> None:
        """See `Network`."""
        self._pods.pop(key, None)


class NamespaceNetwork:
    """Every pod has a network namespace of its own, one veth away from the bridge that is the node."""

    def __init__(self) -> None:
        self.mode: Mode = "namespace"
        self.node_ip = GATEWAY
        self._free = _addresses(POD_RANGE, start=2)
        self._pods: dict[str, tuple[str, PodNetwork]] = {}

    async def add_pod(self, key: str, *, host: bool = False) -> PodNetwork:
        """See `Network`."""
        if host:
            return PodNetwork(ip=self.node_ip, command_prefix=())
        if key in self._pods:
            return self._pods[key][1]
        # A namespace left by a killed process node keeps its address until it is removed here.
        taken = {name for name, _ in self._pods.values()}
        for ip in self._free:
            name = _name(ip)
            if name in taken:
                continue
            await _remove(name)
            break
        network = PodNetwork(ip=ip, command_prefix=("nsenter", f"--net={_NAMESPACES / name}", "--"))
        self._pods[key] = (name, network)
        try:
            await _ip("netns", "add", name)
            await _ip_batch(
                f"link add {name} type veth peer name eth0 netns {name}",
                f"link set {name} master br0 up",
            )
            # No default route: a route that swallows packets makes each reverse DNS lookup hang.
            await _ip_batch(
                "link set lo up",
                f"addr add {ip}/{POD_RANGE.prefixlen} dev eth0",
                "link set eth0 up",
                f"route add {SERVICE_RANGE} via {GATEWAY}",
                namespace=name,
            )
        except BaseException:
            await self.remove_pod(key)
            raise
        return network

    async def remove_pod(self, key: str) -> None:
        """See `Network`."""
        if key in self._pods:
            name, _ = self._pods.pop(key)
            await _remove(name)


def network_for(mode: Mode) -> Network:
    """Return the network of a mode."""
    return NamespaceNetwork() if mode == "namespace" else LoopbackNetwork()


def set_up_namespace() -> None:
    """Build the bed's own side: a private /run, loopback, the bridge, and ClusterIPs that end here.

    Raises OSError or NetworkError with the step that is not allowed on this machine.
    """
    linux.mount("tmpfs", "/run", kind="tmpfs", flags=linux.MS_NOSUID | linux.MS_NODEV, options="mode=755")
    for line in (
        "link set lo up",
        # An address of its own: by default a bridge takes one of a port, and changes it when that pod goes.
        "link add br0 address 02:00:00:00:00:01 type bridge",
        f"addr add {GATEWAY}/{POD_RANGE.prefixlen} dev br0",
        "link set br0 up",
        f"route add local {SERVICE_RANGE} dev lo",
    ):
        done = subprocess.run(["ip", *line.split()], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NetworkError(f"ip {line}: {done.stderr.strip()}")


def _addresses(network: IPv4Network, *, start: int) -> Iterator[str]:
    """Go round the range for ever, so that an address is reused as late as possible."""
    last = network.num_addresses - 2
    index = start
    while True:
        yield str(network[index])
        index = index + 1 if index < last else 2


def _name(ip: str) -> str:
    """Name of the namespace and of its veth; a device name has at most 15 characters."""
    return "pod-" + "-".join(ip.split(".")[2:])


async def _remove(name: str) -> None:
    if (_NAMESPACES / name).exists():
        # Deleting the device is done when the command returns; deleting the namespace alone removes it some time later.
        await _ip("link", "del", name, may_fail=True)
        await _ip("netns", "del", name, may_fail=True)


async def _ip_batch(*lines: str, namespace: str | None = None) -> None:
    prefix = ("-n", namespace) if namespace else ()
    await _ip(*prefix, "-batch", "-", text="\n".join(lines) + "\n")


async def _ip(*arguments: str, text: str = "", may_fail: bool = False) -> None:
    process = await asyncio.create_subprocess_exec(
        "ip", *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ)
    )
    output, _ = await process.communicate(text.encode())
    if process.returncode != 0 and not may_fail:
        raise NetworkError(f"ip {' '.join(arguments)}: {output.decode(errors='replace').strip()}\n{text}".strip())
