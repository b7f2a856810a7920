"""The product on the bed: CRD, rights, the operator as a process of its own, services with engines, and load on them.

Apart from the bed, which knows nothing of the product; the demo and the tests of the main job stand on this.
Must not: give the operator any right that its chart does not grant, or read anything of it but what users can see.
"""

import asyncio
import json
import os
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import httpx
from typing_extensions import override

from e2e import release
from e2e.bed import Bed, import_path
from e2e.operator_account import install_crd
from e2e.ports import free_ports
from e2e.shielded_client import ShieldedClient
from vllm_autotuner.simulation.load import Load, Traffic

ENGINE_IMAGE: Final = "vllm/vllm-openai:v0.32.0"
OPERATOR: Final = "operator"
SIMULATED_ENGINE: Final[Mapping[str, object]] = {
    "match": r"^(docker\.io/)?vllm/vllm-openai(:|@|$)",
    "command": [sys.executable, "-m", "vllm_autotuner.simulation.server", "serve"],
    "env": {"PYTHONPATH": import_path()},
    "append": ["--host", "$(POD_IP)"],
}
"""The image row under which a pod that names the real image runs the simulated engine."""

OPERATOR_IMAGE: Final[Mapping[str, object]] = {
    "match": r"^vllm-autotuner(:|@|$)",
    "command": [sys.executable, "-m", "vllm_autotuner"],
    "env": {"PYTHONPATH": import_path()},
}
"""The image row under which the chart's pod runs this checkout."""

MODEL: Final = "example/tiny"


class NotSeen(AssertionError):
    """A condition did not come true in time; the message says what was seen instead."""


async def until(what: str, probe: Callable[[], Any | Awaitable[Any]], *, seconds: float, every: float = 0.25) -> Any:
    """Wait until `probe` returns something true and return it. Raises NotSeen with what it returned last."""
    deadline, seen = time.monotonic() + seconds, None
    while True:
        found = probe()
        seen = await found if isinstance(found, Awaitable) else found
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise NotSeen(f"{what}: not within {seconds:.0f} s; last seen: {seen!r}")
        await asyncio.sleep(every)


@dataclass(slots=True)
class Stage:
    """A bed with the product on it. `async with Stage(bed) as stage`: CRD and rights are there, the operator runs."""

    bed: Bed
    namespace: str
    interval: str = "2s"
    window: str = "10s"
    operator: str = OPERATOR
    """Name of the operator's process: two stages on one bed need two."""
    everywhere: bool = False
    """The operator serves every namespace, not only this one."""
    loads: dict[str, Load] = field(default_factory=dict)
    selectors: dict[str, str] = field(default_factory=dict)
    """Label selectors of pods that do not carry the name of their service (spec.targetRef)."""
    address: str = ""
    """Where the operator's own pages are, once it runs: metrics, probes, and what it shows of its services."""
    _kubeconfig: Path | None = None
    _followers: list["asyncio.Task[None]"] = field(default_factory=list)
    _api: ShieldedClient | None = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(install_crd, self.bed)
        self._kubeconfig = await asyncio.to_thread(release.install_account, self.bed, namespace=self.namespace)
        self._api = admin_client(self.bed)
        return self

    async def __aexit__(self, *_: object) -> None:
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        for load in self.loads.values():
            await load.__aexit__(None, None, None)
        self.loads.clear()
        self.stop_operator()
        if self._api is not None:
            await self._api.aclose()

    @property
    def api(self) -> ShieldedClient:
        """The API server, as the admin."""
        assert self._api is not None
        return self._api

    @property
    def kubeconfig(self) -> Path:
        """The operator's own, with the rights of its chart."""
        assert self._kubeconfig is not None
        return self._kubeconfig

    @property
    def standby(self) -> str:
        """Name of the standby's process."""
        return f"{self.operator}-standby"

    def start_operator(self, *arguments: str, standby: bool = False) -> None:
        """Start the operator under its own ServiceAccount; again after `kill_operator`; a second one as standby."""
        address = f"127.0.0.1:{free_ports(1)[0]}"
        self.address = self.address if standby else address
        self.bed.processes.start(
            self.standby if standby else self.operator,
            [
                *(sys.executable, "-m", "vllm_autotuner", "run"),
                *("--kubeconfig", str(self.kubeconfig)),
                *("--prometheus-url", self.bed.prometheus_url),
                *("--interval", self.interval, "--window", self.window),
                *(() if self.everywhere else ("--namespace", self.namespace)),
                *("--lease-namespace", self.namespace, "--lease-name", release.RELEASE),
                *("--listen-address", address, "--web"),
                *("--log-format", "json"),
                # The services of a stage are tests of their own: none waits for another one's change.
                *("--max-concurrent-changes", "100%", "--max-extra-gpus", "100%"),
                *arguments,
            ],
            environment=os.environ | {"PYTHONPATH": import_path()},
        )

    def beside(self, namespace: str) -> "Stage":
        """The same stage for another namespace. What is started there ends with this one."""
        return replace(self, namespace=namespace)

    async def install_operator(self, **more: Any) -> None:
        """Run the operator as its chart does: a pod under its ServiceAccount, with the chart's probes.

        `more`: further values of the chart.
        """
        values = {
            "interval": self.interval,
            "window": self.window,
            "log": {"format": "text"},
            "concurrency": {"changes": "100%", "extraGPUs": "100%"},
        } | more
        name = await asyncio.to_thread(release.install, self.bed, namespace=self.namespace, values=values)

        async def available() -> bool:
            found = await self.deployment(name)
            return bool(found.get("status", {}).get("availableReplicas"))

        await until(f"the operator's Deployment {name} is available", available, seconds=300)

    def stop_operator(self) -> None:
        """End the operator in order, and its standby."""
        for name in (self.standby, self.operator):
            if name in self.bed.processes.names():
                # Not longer: behind a proxy of this process, which waits here, it cannot say farewell at all.
                self.bed.processes.stop(name, grace=10)

    def kill_operator(self) -> None:
        """End the operator as a crash does: SIGKILL, no farewell, the Lease left behind."""
        self.bed.processes.stop(self.operator, grace=0)

    async def get(self, path: str) -> dict[str, Any]:
        """Read one object or list as the admin; empty when it does not exist."""
        answer = await self._asked(path)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return {}
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    async def _asked(self, path: str) -> httpx.Response:
        try:
            return await self.api.get(path)
        except httpx.TransportError:
            # After a stall of the machine the server has closed connections that were idle; only their use tells.
            return await self.api.get(path)

    async def service(self, name: str) -> dict[str, Any]:
        """The VLLMService as the API server has it."""
        return await self.get(f"/apis/vllm-autotuner.dev/v1alpha1/namespaces/{self.namespace}/vllmservices/{name}")

    async def status(self, name: str) -> dict[str, Any]:
        """Its status, empty while there is none."""
        found: dict[str, Any] = (await self.service(name)).get("status") or {}
        return found

    async def deployment(self, name: str) -> dict[str, Any]:
        """Its Deployment, empty while there is none."""
        return await self.get(f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{name}")

    async def pods(self, name: str) -> list[dict[str, Any]]:
        """Its pods that are not going away."""
        selector = self.selectors.get(name, f"vllm-autotuner.dev/service={name}")
        found = await self.get(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={selector}")
        return [pod for pod in found.get("items", []) if "deletionTimestamp" not in pod["metadata"]]

    async def ready_pods(self, name: str) -> list[dict[str, Any]]:
        """Its pods that serve."""
        return [pod for pod in await self.pods(name) if condition(pod["status"], "Ready") == "True"]

    async def events(self, name: str) -> list[dict[str, Any]]:
        """Events about it."""
        found = await self.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        return [each for each in found.get("items", []) if each.get("regarding", {}).get("name") == name]

    def apply(self, *objects: Mapping[str, object]) -> None:
        """Apply as a user does."""
        self.bed.apply(list(objects))

    def patch(self, name: str, spec: Mapping[str, object]) -> None:
        """Change a VLLMService's spec as a user does."""
        body = json.dumps({"spec": spec})
        self.bed.kubectl("-n", self.namespace, "patch", "vllm", name, "--type", "merge", "-p", body)

    async def load_on(self, name: str, *, clients: int = 0, rate: float = 0.0, traffic: Traffic | None = None) -> Load:
        """Put load on a service: clients, and requests per second beside them. Its endpoints follow the ready pods."""
        endpoints: list[str] = []

        async def follow() -> None:
            while True:
                # One read that a busy machine fails to answer must not end this: the load would stay on pods that are
                # gone, and a good change would be taken back for want of requests.
                with suppress(httpx.HTTPError):
                    pods = await self.ready_pods(name)
                    endpoints[:] = [f"http://{pod['status']['podIP']}:8000" for pod in pods]
                await asyncio.sleep(0.5)

        follower = asyncio.create_task(follow())
        load = Load(lambda: tuple(endpoints), traffic or Traffic(model=MODEL), clients=clients, rate=rate)
        await load.__aenter__()
        self.loads[name] = load
        self._followers.append(follower)
        return load

    async def prometheus(self, expression: str) -> list[dict[str, Any]]:
        """Ask the bed's Prometheus as anybody can."""
        async with plain_client() as client:
            answer = await client.get(f"{self.bed.prometheus_url}/api/v1/query", params={"query": expression})
            found: list[dict[str, Any]] = answer.json()["data"]["result"]
            return found


class Empty(Stage):
    """A stage on which nothing is installed: who tests the installation does it himself."""

    @override
    async def __aenter__(self) -> Self:
        self._api = admin_client(self.bed)
        return self


def plain_client(base_url: str = "") -> httpx.AsyncClient:
    """A client of anything that asks for no credentials: a page, an engine, Prometheus.

    A machine on which many scenes are played may take longer to connect than the five seconds that httpx waits.
    """
    return httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=60)


def admin_client(bed: Bed) -> ShieldedClient:
    """A client of the API server as the admin."""
    token = bed.control_plane.admin_token_file.read_text(encoding="utf-8")
    return ShieldedClient(
        base_url=bed.api_url,
        headers={"Authorization": f"Bearer {token}"},
        verify=ssl.create_default_context(cafile=bed.ca_file),
        trust_env=False,
        timeout=60,
    )


def condition(status: Mapping[str, Any], kind: str) -> str:
    """The status of one condition: True, False, Unknown, or empty when it is absent."""
    return next((str(each["status"]) for each in status.get("conditions", []) if each["type"] == kind), "")


def recovered(status: Mapping[str, Any]) -> bool:
    """Both at once: it may have been Ready all the time, and is told so before the operator has looked again."""
    return condition(status, "Ready") == "True" and condition(status, "Stalled") == ""


def engine_env(**settings: float) -> dict[str, Any]:
    """A pod template that sets the simulated engine's SIM_ variables, and nothing the real engine would mind."""
    env = [{"name": f"SIM_{name.upper()}", "value": str(value)} for name, value in settings.items()]
    return {"spec": {"containers": [{"name": "vllm", "env": env}], "terminationGracePeriodSeconds": 5}}


def names_of(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    """Their names."""
    return [each["metadata"]["name"] for each in objects]
