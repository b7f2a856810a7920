"""The real fleet loop over the model of its world, tick by tick in virtual time; it can be killed and started anew."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from tests.api.cases import changed
from tests.control.cluster_model import ApiServer, Body, Load, seats_of, service_of
from tests.control.desk import SPEC, START, TICK
from tests.invariants.deployments import knobs_of, trial_of
from tests.invariants.moment import Seen
from tests.invariants.witness import Witness

from vllm_autotuner.api.status import ActiveChange, VLLMServiceStatus, parse_status
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.lease import Election
from vllm_autotuner.control.operator_settings import OperatorSettings
from vllm_autotuner.control.read.metrics_sources import Sources
from vllm_autotuner.control.read.registry import Registry
from vllm_autotuner.control.run.context import ControlContext
from vllm_autotuner.control.run.fleet_loop import FleetLoop
from vllm_autotuner.control.run.liveness import Heartbeat
from vllm_autotuner.control.run.operator_metrics import OperatorMetrics
from vllm_autotuner.observation.prometheus import PrometheusAddress


@dataclass
class Leader:
    """An election whose outcome the test decides."""

    is_leader: bool = True
    epoch: int = 1


SETTLED: Final = 3
"""Ticks after which nothing is put off: one in which a new leader looks round, and two more."""


class Bed:
    """One operator and its world."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.leader = Leader()
        self.witnesses: defaultdict[str, Witness] = defaultdict(Witness)
        self.undisturbed = 0
        """Ticks since the operator was last started, refused something or killed."""
        self.harmed = False
        """The story takes pods away."""
        self.deaf = False
        """The watches tell of nothing."""
        self.limits_configmap = ""
        self.read_only = False
        api.stored = lambda name, by_hand: self.look(name, edited=by_hand)
        self.start()

    def start(self) -> None:
        """A process without memory, with a full registry, that has just become the leader."""
        self.registry = Registry()
        self.metrics = OperatorMetrics()
        self.context = ControlContext(
            settings=OperatorSettings(
                prometheus=PrometheusAddress(url="http://127.0.0.1:9"),
                identity="test_1",
                limits_configmap=self.limits_configmap,
                read_only=self.read_only,
            ),
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

    def look(self, name: str, *, settled: bool = False, edited: bool = False) -> None:
        """Hold what is there now of one service against every invariant."""
        objects = self.api.objects
        service = objects.get(("VLLMService", name))
        if service is None:
            return
        mine = [body for (kind, _), body in objects.items() if kind == "Deployment" and service_of(body) == name]
        own = next((body for body in mine if body["metadata"]["name"] == name), None)
        changes = {key[1]: body.get("status", {}).get("activeChange") for key, body in objects.items()}
        uid = service["metadata"]["uid"]
        # Kept, not raised: the operator would take it for a poisoned object and go on.
        self.witnesses[name].look(
            Seen(
                service=service,
                at=self.api.now,
                ready=sum(pod.deployment == name and pod.ready_since is not None for pod in self.api.pods),
                runs=None if own is None else knobs_of(own),
                trials={
                    body["metadata"]["name"]: trial_of(body)
                    for body in mine
                    if body is not own and body["metadata"]["ownerReferences"][0]["uid"] == uid
                },
                told={reason: count for (about, reason), count in self.api.told.items() if about == uid},
                settled=settled,
                harmed=self.harmed,
                edited=edited,
                others=sum(change is not None for other, change in changes.items() if other != name),
            )
        )

    @property
    def broken(self) -> list[str]:
        """Whatever was not as it must be since the beginning."""
        return [text for witness in self.witnesses.values() for text in witness.found]

    def restart(self) -> None:
        self.leader = Leader(epoch=self.leader.epoch + 1)
        self.undisturbed = 0
        self.start()

    def seconds(self) -> float:
        return self.api.now.timestamp()

    async def tick(self) -> None:
        """A quarter of a minute passes, the watches tell of it, and the loop looks."""
        self.api.pass_time(TICK)
        if not self.deaf:
            self.api.tell(self.registry)
        before = self.api.disturbances
        await self.loop.tick()
        self.undisturbed = self.undisturbed + 1 if self.api.disturbances == before and self.leader.is_leader else 0
        for name in list(self.witnesses):
            self.look(name, settled=self.undisturbed >= SETTLED)
        assert not self.broken, self.broken

    async def ticks(self, count: int) -> None:
        for _ in range(count):
            await self.tick()

    def status(self, name: str = "chat") -> VLLMServiceStatus:
        return parse_status(self.api.objects["VLLMService", name].get("status"))

    def change(self, name: str = "chat") -> ActiveChange | None:
        return self.status(name).active_change

    def state(self, name: str = "chat") -> str:
        """Of the change in progress; empty without one."""
        change = self.change(name)
        return "" if change is None else change.state.value

    def deployment(self, name: str = "chat") -> Body:
        return self.api.objects["Deployment", name]

    def seats(self, name: str = "chat") -> int:
        return seats_of(_args(self.deployment(name)))

    @property
    def told(self) -> list[str]:
        """The reasons of the Events, in order."""
        return [event.reason for event in self.api.events.values()]


def _args(deployment: Body) -> list[str]:
    return list(deployment["spec"]["template"]["spec"]["containers"][0]["args"])


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
