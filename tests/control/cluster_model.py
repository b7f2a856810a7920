"""A model of what the fleet loop stands between: an API server, the controllers behind it, engines and their metrics.

In one process and in virtual time. Every request that changes something is a point at which the operator can be killed,
before or after it takes effect.
"""

import copy
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from tests.builders import latency
from tests.control.crd_schema import require_valid
from tests.control.field_owners import Owners
from tests.control.objects import gpu_pod, node_object

from vllm_autotuner.cluster.adapter import Page
from vllm_autotuner.cluster.errors import Conflict, NotFound, Refused, Unavailable
from vllm_autotuner.cluster.events import Event, event_name
from vllm_autotuner.cluster.kinds import NODE, POD, Kind
from vllm_autotuner.control.read.registry import Key, Registry
from vllm_autotuner.control.read.views import ServiceEntry
from vllm_autotuner.engine.flags import parse_flags
from vllm_autotuner.engine.metric_names import Meaning
from vllm_autotuner.observation.reading import NoData
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.snapshot import EngineKey, EngineSeries, FleetSnapshot
from vllm_autotuner.workload.labels import CONFIG_HASH, OPERATOR, SERVICE, TRACK

Body = dict[str, Any]
STARTUP: Final = timedelta(seconds=20)
"""From a pod's creation to its readiness."""
SCRAPE, WINDOW = 2.0, 30.0


class Killed(BaseException):
    """The operator's process is gone: nothing after this line runs."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What an engine's metrics show."""

    running: float = 39.0
    waiting: float = 0.0
    kv: float = 0.6
    ttft: float = 0.2
    tpot: float = 0.02


@dataclass
class Pod:
    name: str
    deployment: str
    labels: dict[str, str]
    config_hash: str
    args: tuple[str, ...]
    created: datetime
    ready_since: datetime | None = None
    crashed: bool = False
    scheduled: bool = True


@dataclass
class ApiServer:
    """Objects with resourceVersions, optimistic locking, and a Deployment controller that surges by one."""

    now: datetime
    objects: dict[tuple[str, str], Body] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    events: dict[str, Event] = field(default_factory=dict)
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many of them there are, by the uid they are about and their reason."""
    applies: Counter[str] = field(default_factory=Counter)
    """Of Deployments, by the hash of their template and their replicas."""
    deletes: Counter[str] = field(default_factory=Counter)
    """Of Deployments, by name."""
    devices: int = 1000
    """One a pod; who finds none is Pending."""
    shows_nodes: bool = False
    """The operator may list nodes."""
    lists: Counter[str] = field(default_factory=Counter)
    """How often each kind was listed."""
    requests: Counter[str] = field(default_factory=Counter)
    version: int = 100
    point: int = 0
    """Changing requests so far."""
    kill: tuple[int, str] | None = None
    """At which of them the operator dies, and whether "before" or "after" it takes effect."""
    loses: int | None = None
    """The answer to which of them is lost, after it took effect."""
    refuses: Callable[[str, str], Exception | None] = lambda verb, name: None
    crashes: Callable[[int], bool] = lambda seats: False
    """Which numbers of seats an engine does not survive."""
    load: Callable[[int], Load] = lambda seats: Load()
    """What an engine with so many seats shows."""
    owners: dict[tuple[str, str], Owners] = field(default_factory=dict)
    """Of the fields of each child."""
    silent: NoData | None = None
    """Why the metrics source does not answer."""
    shows: Callable[[Body], Body] = lambda body: body
    """What the watch of the VLLMServices brings of the object that there is."""
    versions: list[tuple[datetime, str, Body]] = field(default_factory=list)
    """Every version of every object: when it was stored, its kind, the object."""
    reports: Callable[[int], int | None] = lambda seats: seats
    """How many seats an engine that was asked for so many says it has; None: its log is gone."""
    node: Callable[[Pod], str] = lambda pod: "gpus"
    """Where a pod that is scheduled runs."""
    stored: Callable[[str, bool], object] = lambda name, by_hand: None
    """Told the name of the service whenever an object of it is another one, and whether a person wrote its status."""
    disturbances: int = 0
    """Requests that were refused or not answered, or during which the operator died."""

    def create(self, body: Body) -> None:
        self._store("VLLMService", body["metadata"]["name"], body)

    def edit(self, name: str, change: Callable[[Body], None]) -> None:
        """A user's edit, which no watch has told of yet."""
        body = copy.deepcopy(self.objects["VLLMService", name])
        before, status = copy.deepcopy(body["spec"]), copy.deepcopy(body.get("status"))
        change(body)
        if body["spec"] != before:
            body["metadata"]["generation"] += 1
        self._store("VLLMService", name, body, by_hand=body.get("status") != status)

    def overwrite(self, name: str, change: Callable[[Body], None], *, by: str, via: str = "") -> None:
        """Somebody else writes a Deployment: what he changes is his from then on."""
        live = self.objects["Deployment", name]
        body = copy.deepcopy(live)
        change(body)
        if body == live:
            return
        self.owners["Deployment", name].updated(live, body, by=by, via=via)
        body["metadata"]["managedFields"] = self.owners["Deployment", name].managed_fields()
        body["metadata"]["generation"] += 1
        self._store("Deployment", name, body)

    def _store(self, kind: str, name: str, body: Body, *, by_hand: bool = False) -> Body:
        self.version += 1
        # Never in place: what was handed out stays what it was.
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        self.objects[kind, name] = body
        self.versions.append((self.now, kind, body))
        self.stored(service_of(body), by_hand)
        return body

    def _enter(self, verb: str, name: str) -> None:
        self.requests[verb] += 1
        if (error := self.refuses(verb, name)) is not None:
            self.disturbances += 1
            raise error
        if self.kill == (self.point, "before"):
            self.disturbances += 1
            raise Killed
        self.point += 1

    def _leave(self) -> None:
        if self.kill == (self.point - 1, "after"):
            self.disturbances += 1
            raise Killed
        if self.loses == self.point - 1:
            self.disturbances += 1
            raise Unavailable("the answer was lost", reason="NoAnswer")

    # What the operator asks of a Cluster

    async def read_service(self, namespace: str, name: str) -> Body:
        self.requests["read"] += 1
        return self._service(name)

    async def write_status(self, namespace: str, name: str, status: Body, *, resource_version: str) -> Body:
        self._enter("status", name)
        body = self._service(name)
        if body["metadata"]["resourceVersion"] != resource_version:
            raise Conflict(f"{name} has changed", reason="Conflict", status=409)
        require_valid("status", status, stored=body.get("status"))
        written = self._store("VLLMService", name, {**body, "status": copy.deepcopy(status)})
        self._leave()
        return written

    async def apply(self, body: Body, *, epoch: int) -> Body:
        kind, name = body["kind"], body["metadata"]["name"]
        self._enter(f"apply {kind}", name)
        live = self.objects.get((kind, name))
        made = copy.deepcopy(body)
        if live is not None:
            self.owners[kind, name].keep(made, live=live)
        generation = live["metadata"]["generation"] if live else 0
        changed = live is None or live["spec"] != made["spec"]
        made["metadata"]["generation"] = generation + changed
        made["metadata"]["uid"] = f"{kind}-{name}"
        self.owners.setdefault((kind, name), Owners()).applied(body, by=OPERATOR)
        made["metadata"]["managedFields"] = self.owners[kind, name].managed_fields()
        made["status"] = live.get("status", {}) if live else {}
        if kind == "Deployment":
            track = made["metadata"]["labels"].get(TRACK, "")
            what = f"{made['metadata']['annotations'][CONFIG_HASH]} x {made['spec'].get('replicas')}"
            self.applies[f"{track} {what}".strip()] += 1
        applied = self._store(kind, name, made)
        self._leave()
        return applied

    async def scale(self, namespace: str, name: str, replicas: int, *, resource_version: str) -> None:
        self._enter("scale Deployment", name)
        if self.objects["Deployment", name]["metadata"]["resourceVersion"] != resource_version:
            raise Conflict(f"{name} has changed", reason="Conflict", status=409)
        self.overwrite(name, lambda body: body["spec"].update(replicas=replicas), by=OPERATOR, via="scale")
        self._leave()

    async def patch_child(self, live: Body, patch: Body, *, service_name: str, service_uid: str, epoch: int) -> Body:
        kind, name = live["kind"], live["metadata"]["name"]
        self._enter(f"patch {kind}", name)
        assert self.objects[kind, name]["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]
        made = merged(live, patch)
        made["metadata"]["generation"] += made["spec"] != live["spec"]
        self.owners[kind, name].updated(live, made, by=OPERATOR, via="")
        made["metadata"]["managedFields"] = self.owners[kind, name].managed_fields()
        self.applies[f"{patch['metadata']['annotations'][CONFIG_HASH]} x {made['spec'].get('replicas')}"] += 1
        patched = self._store(kind, name, made)
        self._leave()
        return patched

    async def delete(
        self, kind: Kind, *, namespace: str, name: str, service_name: str, service_uid: str, epoch: int
    ) -> None:
        self._enter(f"delete {kind.kind}", name)
        live = self.objects.pop((kind.kind, name), None)
        if live is not None:
            assert live["metadata"]["ownerReferences"][0]["uid"] == service_uid
            self.deletes[name] += 1
            self.pods = [pod for pod in self.pods if pod.deployment != name]
            self.stored(service_of(live), False)
        self._leave()

    async def post_event(self, about: Body, event: Event, *, now: datetime) -> None:
        self._enter("event", about["metadata"]["name"])
        uid = about["metadata"]["uid"]
        name = event_name(event, name=about["metadata"]["name"], uid=uid)
        if name not in self.events:
            self.events[name] = event
            self.told[uid, event.reason] += 1
        self._leave()

    async def pod_log(self, namespace: str, name: str, container: str, **cut: Any) -> str:
        self.requests["log"] += 1
        pod = next((pod for pod in self.pods if pod.name == name), None)
        if pod is None or (cut.get("previous") and not pod.crashed):
            raise NotFound(f"{name} has no such log", reason="NotFound", status=404)
        if pod.crashed:
            return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        seats = self.reports(seats_of(pod.args))
        return "" if seats is None else f"INFO 11-21 [api_utils.py:286] non-default args: {{'max_num_seqs': {seats}}}\n"

    def _service(self, name: str) -> Body:
        found = self.objects.get(("VLLMService", name))
        if found is None:
            raise NotFound(f"{name} is not there", reason="NotFound", status=404)
        return found

    async def read(self, kind: Kind, *, namespace: str, name: str) -> Body:
        self.requests[f"read {kind.kind}"] += 1
        if (error := self.refuses("read", name)) is not None:
            raise error
        found = self.objects.get((kind.kind, name))
        if found is None:
            raise NotFound(f"{name} is not there", reason="NotFound", status=404)
        return found

    async def pages(
        self, kind: Kind, *, namespace: str | None = None, selector: str = "", fields: str = ""
    ) -> AsyncIterator[Page]:
        assert (namespace, selector) == (None, ""), "only what is listed of the whole cluster"
        self.lists[kind.kind] += 1
        if not self.shows_nodes:
            raise Refused(f"may not list {kind.plural}", reason="Forbidden", status=403)
        bodies: list[Body] = []
        if kind == NODE:
            bodies = [node_object("gpus", devices=self.devices)]
        elif kind == POD:
            bodies = [gpu_pod(pod.name, node="gpus" if pod.scheduled else "") for pod in self.pods]
        yield Page(objects=tuple(bodies), resource_version=str(self.version))

    # What goes on behind it

    def pass_time(self, passed: timedelta) -> None:
        """Move the clock, and let the controllers do their work."""
        self.now += passed
        for pod in self.pods:
            free = self.devices - sum(each.scheduled for each in self.pods)
            if not pod.scheduled and free > 0:
                pod.scheduled, pod.created = True, self.now
            if pod.scheduled and pod.ready_since is None and self.now - pod.created >= STARTUP:
                pod.crashed = self.crashes(seats_of(pod.args))
                pod.ready_since = None if pod.crashed else self.now
        for (kind, name), body in list(self.objects.items()):
            if kind == "Deployment":
                self._roll(name, body)

    def _roll(self, name: str, body: Body) -> None:
        template, wanted = body["spec"]["template"], body["spec"].get("replicas", 1)
        current = template["metadata"]["annotations"][CONFIG_HASH]
        mine = [pod for pod in self.pods if pod.deployment == name]
        new = [pod for pod in mine if pod.config_hash == current]
        old = [pod for pod in mine if pod.config_hash != current]
        serving = [pod for pod in new if pod.ready_since is not None]
        # One pod more than wanted at most, and never fewer ready ones: the strategy that is rendered.
        while len(new) < wanted and len(new) + len(old) < wanted + 1:
            args = tuple(template["spec"]["containers"][0]["args"])
            labels = dict(template["metadata"]["labels"])
            created = Pod(f"{name}-{self.version}-{len(new)}", name, labels, current, args, created=self.now)
            created.scheduled = sum(pod.scheduled for pod in self.pods) < self.devices
            self.pods.append(created)
            new.append(created)
            self.version += 1
        stay = old[: max(0, wanted - len(serving))]
        self.pods = [pod for pod in self.pods if pod.deployment != name] + new[:wanted] + stay
        ready = [pod for pod in (*new[:wanted], *stay) if pod.ready_since is not None]
        status = {
            "observedGeneration": body["metadata"]["generation"],
            "replicas": len(new[:wanted]) + len(stay),
            "readyReplicas": len(ready),
            "updatedReplicas": len(new[:wanted]),
            "availableReplicas": len(ready),
        }
        if body["status"] != status:
            self._store("Deployment", name, {**body, "status": status})

    def tell(self, registry: Registry) -> None:
        """What the watches bring: everything as it is now, and the end of what is gone."""
        for (kind, _), body in self.objects.items():
            if kind == "VLLMService":
                registry.services.see(self.shows(body))
            elif kind == "Deployment":
                registry.deployments.see(body)
        for key, view in registry.deployments.views().items():
            if ("Deployment", key.name) not in self.objects:
                registry.deployments.evict(key, uid=view.uid)
        known = set(registry.pods.views())
        for pod in self.pods:
            self.version += 1
            registry.pods.see(_pod_body(pod, version=self.version, node=self.node(pod)))
            known.discard(Key("prod", pod.name))
        for key in known:
            registry.pods.evict(key, uid=key.name)

    # What its engines show

    async def look(self, entries: Iterable[ServiceEntry], *, at: float) -> Mapping[str, FleetSnapshot]:
        engines = {
            EngineKey("prod", pod.name, "0"): engine_series(self.load(seats_of(pod.args)), at=at)
            for pod in self.pods
            if pod.ready_since is not None
        }
        found = FleetSnapshot(
            at=at,
            state_window=WINDOW,
            scrape_interval=SCRAPE,
            engines={} if self.silent else engines,
            error=self.silent,
        )
        return {"": found}

    def of(self, service: object, snapshots: Mapping[str, FleetSnapshot]) -> FleetSnapshot:
        return snapshots[""]


def merged(base: Body, patch: Body) -> Body:
    """A merge patch (RFC 7386): what is null goes."""
    both = {
        key: merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in patch.items()
    }
    return {key: value for key, value in {**base, **both}.items() if value is not None}


def service_of(body: Body) -> str:
    """The name of the service that an object is, or belongs to."""
    metadata = body["metadata"]
    return str(metadata.get("labels", {}).get(SERVICE, metadata["name"]))


def seats_of(args: Iterable[str]) -> int:
    """How many sequences an engine with these arguments runs."""
    return parse_flags(tuple(args)).max_num_seqs or 256


def _pod_body(pod: Pod, *, version: int, node: str) -> Body:
    ready: Body = {"type": "Ready", "status": "True" if pod.ready_since else "False"}
    place: Body = {"type": "PodScheduled", "status": str(pod.scheduled)}
    if not pod.scheduled:
        place |= {"reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}
    if pod.ready_since is not None:
        ready["lastTransitionTime"] = pod.ready_since.isoformat()
    container: Body = {"name": "vllm", "restartCount": int(pod.crashed), "state": {"running": {}}}
    if pod.crashed:
        container["lastState"] = {"terminated": {"exitCode": 1, "reason": "Error"}}
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "prod",
            "name": pod.name,
            "uid": pod.name,
            "resourceVersion": str(version),
            "labels": pod.labels,
            "annotations": {CONFIG_HASH: pod.config_hash},
        },
        "spec": {
            "containers": [{"name": "vllm", "args": list(pod.args)}],
            **({"nodeName": node} if pod.scheduled else {}),
        },
        "status": {"phase": "Running", "conditions": [ready, place], "containerStatuses": [container]},
    }


def engine_series(load: Load, *, at: float) -> EngineSeries:
    """Half a minute of an engine under a constant load."""
    times = [at - WINDOW + SCRAPE * (scrape + 1) for scrape in range(int(WINDOW / SCRAPE))]

    def flat(level: float) -> Series:
        return Series(labels={"__name__": "gauge"}, times=times, values=[level] * len(times))

    def grows(total: float) -> Series:
        steps = len(times) - 1
        return Series(
            labels={"__name__": "counter"},
            times=times,
            values=[1000 + total * step / steps for step in range(len(times))],
        )

    found = EngineSeries(
        gauges={
            Meaning.RUNNING: flat(load.running),
            Meaning.WAITING: flat(load.waiting),
            Meaning.KV_USAGE: flat(load.kv),
        },
        counters={
            Meaning.PREEMPTIONS: {"": grows(0)},
            Meaning.PROMPT_TOKENS: {"": grows(30_000)},
            Meaning.GENERATION_TOKENS: {"": grows(load.running / load.tpot * WINDOW)},
            Meaning.FINISHED: {"stop": grows(60)},
        },
    )
    for meaning, seconds in ((Meaning.TTFT, load.ttft), (Meaning.TPOT, load.tpot), (Meaning.ITL, load.tpot)):
        shape = latency(seconds)
        found.buckets[meaning] = dict(shape.buckets)
        found.sums[meaning], found.counts[meaning] = grows(shape.total or 0.0), grows(shape.count)
    return found
