"""The real fleet loop over the model of its world, tick by tick in virtual time; it can be killed and started anew."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from tests.api.cases import changed
from tests.control.cluster_model import ApiServer, Body, Load, seats_of
from tests.control.desk import SPEC, START, TICK

from vllm_autotuner.api.conditions import kstatus_violations
from vllm_autotuner.api.status import ActiveChange, VLLMServiceStatus, parse_status
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.lease import Election
from vllm_autotuner.control.context import ControlContext
from vllm_autotuner.control.fleet_loop import FleetLoop
from vllm_autotuner.control.liveness import Heartbeat
from vllm_autotuner.control.own_metrics import OperatorMetrics
from vllm_autotuner.control.registry import Registry
from vllm_autotuner.control.settings import OperatorSettings
from vllm_autotuner.control.sources import Sources
from vllm_autotuner.observation.prometheus import PrometheusAddress


@dataclass
class Leader:
    """An election whose outcome the test decides."""

    is_leader: bool = True
    epoch: int = 1


class Bed:
    """One operator and its world."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.leader = Leader()
        self.start()

    def start(self) -> None:
        """A process without memory, with a full registry, that has just become the leader."""
        self.registry = Registry()
        self.metrics = OperatorMetrics()
        self.context = ControlContext(
            settings=OperatorSettings(prometheus=PrometheusAddress(url="http://127.0.0.1:9"), identity="test_1"),
            cluster=cast(Cluster, self.api),
            registry=self.registry,
            election=cast(Election, self.leader),
            metrics=self.metrics,
            heartbeat=Heartbeat(self.seconds),
            monotonic=self.seconds,
            wall=lambda: self.api.now,
        )
        self.loop = FleetLoop(self.context, sources=cast(Sources, self.api))
        self.api.tell(self.registry)

    def restart(self) -> None:
        self.leader = Leader(epoch=self.leader.epoch + 1)
        self.start()

    def seconds(self) -> float:
        return self.api.now.timestamp()

    async def tick(self) -> None:
        """A quarter of a minute passes, the watches tell of it, and the loop looks."""
        self.api.pass_time(TICK)
        self.api.tell(self.registry)
        await self.loop.tick()
        for kind, name in self.api.objects:
            if kind == "VLLMService":
                body = self.api.objects[kind, name]
                if "status" not in body:
                    continue
                assert kstatus_violations(self.status(name), body["metadata"]["generation"]) == []

    async def ticks(self, count: int) -> None:
        for _ in range(count):
            await self.tick()

    def status(self, name: str = "chat") -> VLLMServiceStatus:
        return parse_status(self.api.objects["VLLMService", name].get("status"))

    def change(self, name: str = "chat") -> ActiveChange | None:
        return self.status(name).active_change

    def deployment(self, name: str = "chat") -> Body:
        return self.api.objects["Deployment", name]

    def seats(self, name: str = "chat") -> int:
        return seats_of(self.deployment(name)["spec"]["template"]["spec"]["containers"][0]["args"])

    @property
    def told(self) -> list[str]:
        """The reasons of the Events, in order."""
        return [event.reason for event in self.api.events.values()]


def service_body(name: str = "chat", *, spec: Mapping[str, Any] | None = None) -> Body:
    return {
        "apiVersion": "vllm-autotuner.dev/v1alpha1",
        "kind": "VLLMService",
        "metadata": {"namespace": "prod", "name": name, "uid": f"uid-{name}", "generation": 1},
        "spec": changed(SPEC, spec or {}),
    }


def bed(*names: str, spec: Mapping[str, Any] | None = None, **world: Any) -> Bed:
    """A cluster with services that differ from SPEC in what is named; `world`: fields of ApiServer."""
    api = ApiServer(now=START, **world)
    for name in names or ("chat",):
        api.create(service_body(name, spec=spec))
    return Bed(api)


def queueing(seats: int) -> Load:
    """64 seats are too few, 128 are enough."""
    if seats <= 64:
        return Load(running=float(seats), waiting=100.0, kv=0.005 * seats, ttft=6.0)
    return Load(running=100.0, kv=0.5, ttft=0.4, tpot=0.03)


def slow_beyond_64(seats: int) -> Load:
    """More than 64 seats end the queue, and bring tokens over their objective."""
    return queueing(seats) if seats <= 64 else Load(running=float(seats), kv=0.6, ttft=0.4, tpot=0.09)
