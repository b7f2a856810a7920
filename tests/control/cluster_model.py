"""A model of what the fleet loop stands between: an API server, the controllers behind it, engines and their metrics.

In one process and in virtual time. Every request that changes something is a point at which the operator can be killed,
before or after it takes effect. What the real API server refuses is refused here as well: `api_contract.py` has the
requests that both are asked.
"""

import copy
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from tests.builders import latency
from tests.control.crd_schema import pruned, require_valid, require_valid_name
from tests.control.field_owners import Owners
from tests.control.objects import gpu_pod, node_object
from tests.control.permissions import require_permitted

from vllm_autotuner.cluster import adapter
from vllm_autotuner.cluster.adapter import Page
from vllm_autotuner.cluster.errors import Conflict, NotFound, Refused, Unavailable, from_response
from vllm_autotuner.cluster.events import Event, event_body
from vllm_autotuner.cluster.kinds import DEPLOYMENT, EVENT, NODE, POD, VLLM_SERVICE, Kind, kind_of
from vllm_autotuner.cluster.ownership import controller_of, objection
from vllm_autotuner.control.read.metrics_sources import Rests, never
from vllm_autotuner.control.read.registry import Key, Registry
from vllm_autotuner.control.read.views import ServiceEntry
from vllm_autotuner.engine.flags import parse_flags
from vllm_autotuner.engine.metric_names import Meaning
from vllm_autotuner.observation.quiet_pods import PodName
from vllm_autotuner.observation.reading import NoData
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.snapshot import EngineKey, EngineSeries, FleetSnapshot
from vllm_autotuner.workload.labels import CONFIG_HASH, LEASE_EPOCH, OPERATOR, SERVICE, TRACK

Body = dict[str, Any]
STARTUP: Final = timedelta(seconds=20)
"""From a pod's creation to its readiness."""
SCRAPE, WINDOW = 2.0, 30.0


MOST_BYTES: Final = 1_572_864
"""Of one request to etcd, its default: the object, and a few hundred bytes around it."""
MOST_EVENT_TEXT: Final = 128
"""Bytes of an Event's reason, action and instance, each of which it must have."""


class Killed(BaseException):
    """The operator's process is gone: nothing after this line runs."""


async def nothing() -> None:
    """Nobody else does anything."""


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

    writes: ClassVar[bool] = True

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
    holds: int | None = None
    """Tokens that a KV cache holds: an engine with a longer max-model-len does not start. None: any length fits."""
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
    older_crd: bool = False
    """The installed CRD knows less than the operator: it lets users write any spec."""
    meanwhile: Callable[[], Awaitable[object]] = nothing
    """What others do between the operator's look at a child and its write."""

    # What people ask of it

    def create(self, body: Body) -> None:
        """A service that is there when the story begins, whoever let it in."""
        self._store("VLLMService", body["metadata"]["name"], body)

    def post(self, body: Body) -> Body:
        """Create a service. Raises Refused, and Conflict where the name is taken."""
        name = body["metadata"]["name"]
        self.admit(body)
        if ("VLLMService", name) in self.objects:
            raise Conflict(f"{name} already exists", reason="AlreadyExists", status=409)
        metadata = {**body["metadata"], "uid": f"uid-{name}-{self.version}", "generation": 1}
        made = {**_sent(body), "metadata": metadata, "spec": _spec(body)}
        _require_room(made)
        return self._store("VLLMService", name, made)

    def admit(self, body: Body) -> None:
        """Raise Refused for what the API server would not let in."""
        require_valid_name(body["metadata"]["name"])
        require_valid("spec", body.get("spec"))

    def put(self, body: Body, *, subresource: str = "", by_hand: bool = True) -> Body:
        """Replace a service, or its status alone. Raises NotFound, Conflict and Refused."""
        metadata = body["metadata"]
        live = self._service(metadata["name"], namespace=metadata["namespace"])
        if "resourceVersion" not in metadata:
            problem = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            raise Refused(problem, reason="Invalid", status=422)
        for precondition in ("uid", "resourceVersion"):
            if metadata.get(precondition, live["metadata"][precondition]) != live["metadata"][precondition]:
                raise Conflict(f"{metadata['name']} has changed", reason="Conflict", status=409)
        if subresource == "status":
            status = body.get("status", {})
            require_valid("status", status, stored=live.get("status"))
            made = {**live, "status": copy.deepcopy(pruned("status", status))}
        else:
            require_valid("spec", body.get("spec"), stored=live["spec"])
            spec = _spec(body)
            made = {**live, "spec": spec, "metadata": {**metadata, **_kept(live["metadata"])}}
            made["metadata"]["generation"] += spec != live["spec"]
        _require_room(made)
        by_hand = by_hand and subresource == "status"
        return live if made == live else self._store("VLLMService", metadata["name"], made, by_hand=by_hand)

    def remove(self, name: str) -> None:
        """Delete a service. Raises NotFound."""
        self._service(name)
        del self.objects["VLLMService", name]

    def edit(self, name: str, change: Callable[[Body], None]) -> None:
        """A user's edit of anything in a service, which no watch has told of yet."""
        live = self.objects["VLLMService", name]
        body = copy.deepcopy(live)
        change(body)
        if not self.older_crd:
            require_valid("spec", body["spec"], stored=live["spec"])
        if body.get("status") != live.get("status"):
            require_valid("status", body.get("status", {}), stored=live.get("status"))
        if body["spec"] != live["spec"]:
            body["metadata"]["generation"] += 1
        if body != live:
            self._store("VLLMService", name, body, by_hand=body.get("status") != live.get("status"))

    def overwrite(self, name: str, change: Callable[[Body], None], *, by: str, via: str = "") -> None:
        """Somebody else writes a Deployment: what he changes is his from then on."""
        live = self.objects["Deployment", name]
        body = copy.deepcopy(live)
        change(body)
        if body == live:
            return
        self.owners["Deployment", name].updated(live, body, by=by, via=via)
        body["metadata"]["managedFields"] = self.owners["Deployment", name].managed_fields()
        body["metadata"]["generation"] += body["spec"] != live["spec"]
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
        return self._service(name, namespace=namespace)

    async def write_status(self, namespace: str, name: str, status: Body, *, resource_version: str) -> Body:
        self._enter("status", name)
        require_permitted("update", VLLM_SERVICE, "status")
        metadata = {"namespace": namespace, "name": name, "resourceVersion": resource_version}
        written = self.put({"metadata": metadata, "status": status}, subresource="status", by_hand=False)
        self._leave()
        return written

    async def apply(self, body: Body, *, epoch: int) -> Body:
        kind, name = body["kind"], body["metadata"]["name"]
        self._enter(f"apply {kind}", name)
        require_permitted("patch", kind_of(body))
        for last in (False, False, True):
            try:
                applied = await self._applied(body, epoch=epoch)
                break
            except Conflict as conflict:
                if last or conflict.status is None:
                    raise
        self._leave()
        return applied

    async def _applied(self, body: Body, *, epoch: int) -> Body:
        kind, metadata = body["kind"], body["metadata"]
        name, controller = metadata["name"], controller_of(body)
        looked_at = self._child(kind, metadata)
        if looked_at is not None:
            service_uid = controller["uid"] if controller is not None else None
            service_name = metadata["labels"][SERVICE]
            found = objection(live=looked_at, service_name=service_name, service_uid=service_uid, epoch=epoch)
            if found is not None:
                raise found
        await self.meanwhile()
        live = self._child(kind, metadata)
        _require_unchanged(looked_at, live, name=name)
        made = copy.deepcopy(body)
        made["metadata"]["annotations"] = {**made["metadata"].get("annotations", {}), LEASE_EPOCH: str(epoch)}
        asked = copy.deepcopy(made)
        if live is not None:
            self.owners[kind, name].keep(made, live=live)
        generation = live["metadata"]["generation"] if live else 0
        changed = live is None or live["spec"] != made["spec"]
        made["metadata"]["generation"] = generation + changed
        made["metadata"]["uid"] = live["metadata"]["uid"] if live else f"{kind}-{name}-{self.version}"
        if live is None:
            self.owners[kind, name] = Owners()
        self.owners[kind, name].applied(asked, by=OPERATOR)
        made["metadata"]["managedFields"] = self.owners[kind, name].managed_fields()
        made["status"] = live.get("status", {}) if live else {}
        if kind == "Deployment":
            track = made["metadata"]["labels"].get(TRACK, "")
            what = f"{made['metadata']['annotations'][CONFIG_HASH]} x {made['spec'].get('replicas')}"
            self.applies[f"{track} {what}".strip()] += 1
        return live if live is not None and _same(live, made) else self._store(kind, name, made)

    async def scale(self, namespace: str, name: str, replicas: int, *, resource_version: str) -> None:
        self._enter("scale Deployment", name)
        require_permitted("patch", DEPLOYMENT, "scale")
        live = self._require_child("Deployment", {"namespace": namespace, "name": name})
        if live["metadata"]["resourceVersion"] != resource_version:
            raise Conflict(f"{name} has changed", reason="Conflict", status=409)
        if replicas < 0:
            raise Refused("spec.replicas: must be greater than or equal to 0", reason="Invalid", status=422)
        self.overwrite(name, lambda body: body["spec"].update(replicas=replicas), by=OPERATOR, via="scale")
        self._leave()

    async def patch_child(self, live: Body, patch: Body, *, service_name: str, service_uid: str, epoch: int) -> Body:
        kind, name = live["kind"], live["metadata"]["name"]
        found = objection(live=live, service_name=service_name, service_uid=service_uid, epoch=epoch)
        if found is not None:
            raise found
        self._enter(f"patch {kind}", name)
        require_permitted("patch", kind_of(live))
        there = self._require_child(kind, live["metadata"])
        if there["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"]:
            raise Conflict(f"{name} has changed", reason="Conflict", status=409)
        annotations = {**patch["metadata"]["annotations"], LEASE_EPOCH: str(epoch)}
        made = merged(there, {**patch, "metadata": {**patch["metadata"], "annotations": annotations}})
        made["metadata"]["generation"] += made["spec"] != there["spec"]
        self.owners[kind, name].updated(there, made, by=OPERATOR, via="")
        made["metadata"]["managedFields"] = self.owners[kind, name].managed_fields()
        self.applies[f"{patch['metadata']['annotations'][CONFIG_HASH]} x {made['spec'].get('replicas')}"] += 1
        patched = there if _same(there, made) else self._store(kind, name, made)
        self._leave()
        return patched

    async def delete(
        self, kind: Kind, *, namespace: str, name: str, service_name: str, service_uid: str, epoch: int
    ) -> None:
        self._enter(f"delete {kind.kind}", name)
        require_permitted("delete", kind)
        for last in (False, False, True):
            live = self._child(kind.kind, {"namespace": namespace, "name": name})
            if live is None or live["metadata"].get("deletionTimestamp"):
                break
            found = objection(live=live, service_name=service_name, service_uid=service_uid, epoch=epoch)
            if found is not None:
                raise found
            await self.meanwhile()
            there = self._child(kind.kind, live["metadata"])
            if there is None:
                break
            if all(there["metadata"][key] == live["metadata"][key] for key in ("uid", "resourceVersion")):
                del self.objects[kind.kind, name]
                self.deletes[name] += 1
                self.pods = [pod for pod in self.pods if pod.deployment != name]
                self.stored(service_of(there), False)
                break
            if last:
                raise Conflict(f"{name} is another object, or another version", reason="Conflict", status=409)
        self._leave()

    async def post_event(self, about: Body, event: Event, *, now: datetime) -> None:
        self._enter("event", about["metadata"]["name"])
        require_permitted("create", EVENT)
        body = event_body(event, about=about, instance="test_1", now=now)
        for field_ in ("reason", "action"):
            if not 0 < len(str(body[field_]).encode()) <= MOST_EVENT_TEXT:
                problem = f"{field_}: can have at most {MOST_EVENT_TEXT} characters, and at least one"
                raise Refused(problem, reason="Invalid", status=422)
        uid, name = about["metadata"]["uid"], body["metadata"]["name"]
        if name not in self.events:
            self.events[name] = event
            self.told[uid, event.reason] += 1
        self._leave()

    async def pod_log(self, namespace: str, name: str, container: str, **cut: Any) -> str:
        self.requests["log"] += 1
        pod = next((pod for pod in self.pods if pod.name == name), None)
        if pod is None or (cut.get("previous") and not pod.crashed):
            raise NotFound(f"{name} has no such log", reason="NotFound", status=404)
        if pod.crashed and self._is_too_long(pod):
            wanted = f"To serve at least one request with the model's max seq len ({_length_of(pod)})"
            return f"ValueError: {wanted}, estimated maximum model length is {self.holds}."
        if pod.crashed:
            return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        seats = self.reports(seats_of(pod.args))
        given = {"max_num_seqs": seats} | ({"max_model_len": length} if (length := _length_of(pod)) else {})
        return "" if seats is None else f"INFO 11-21 [api_utils.py:286] non-default args: {given}\n"

    def _is_too_long(self, pod: Pod) -> bool:
        return self.holds is not None and (_length_of(pod) or 0) > self.holds

    def _service(self, name: str, *, namespace: str = "prod") -> Body:
        return self._require_child("VLLMService", {"namespace": namespace, "name": name})

    def _require_child(self, kind: str, metadata: Body) -> Body:
        found = self._child(kind, metadata)
        if found is None:
            raise NotFound(f"{metadata['name']} is not there", reason="NotFound", status=404)
        return found

    def _child(self, kind: str, metadata: Body) -> Body | None:
        found = self.objects.get((kind, metadata["name"]))
        return None if found is None or found["metadata"]["namespace"] != metadata["namespace"] else found

    async def read(self, kind: Kind, *, namespace: str, name: str) -> Body:
        self.requests[f"read {kind.kind}"] += 1
        if (error := self.refuses("read", name)) is not None:
            raise error
        require_permitted("get", kind)
        return self._require_child(kind.kind, {"namespace": namespace, "name": name})

    async def pages(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        selector: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[Page]:
        self.lists[kind.kind] += 1
        if kind in (NODE, POD) and not self.shows_nodes:
            raise Refused(f"may not list {kind.plural}", reason="Forbidden", status=403)
        require_permitted("list", kind)
        wanted = [tuple(each.split("=", 1)) for each in selector.split(",") if each]
        bodies: list[Body] = []
        if kind == NODE:
            bodies = [node_object("gpus", devices=self.devices)]
        elif kind == POD:
            bodies = [gpu_pod(pod.name, node="gpus" if pod.scheduled else "") for pod in self.pods]
        else:
            bodies = [
                body
                for (of, _), body in self.objects.items()
                if of == kind.kind
                and namespace in (None, body["metadata"]["namespace"])
                and all((body["metadata"].get("labels") or {}).get(name) == value for name, value in wanted)
            ]
        if metadata_only:
            bodies = [{"metadata": body["metadata"]} for body in bodies]
        size, version = adapter.PAGE_SIZE, str(self.version)
        for begin in range(0, max(1, len(bodies)), size):
            yield Page(objects=tuple(bodies[begin : begin + size]), resource_version=version)

    # What goes on behind it

    def pass_time(self, passed: timedelta) -> None:
        """Move the clock, and let the controllers do their work."""
        self.now += passed
        for pod in self.pods:
            free = self.devices - sum(each.scheduled for each in self.pods)
            if not pod.scheduled and free > 0:
                pod.scheduled, pod.created = True, self.now
            if pod.scheduled and pod.ready_since is None and self.now - pod.created >= STARTUP:
                pod.crashed = self.crashes(seats_of(pod.args)) or self._is_too_long(pod)
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

    def begin_tick(self) -> None:
        """Every look succeeds or fails at once."""

    async def look(
        self, entries: Iterable[ServiceEntry], *, at: float, rests: Rests = never
    ) -> Mapping[str, FleetSnapshot]:
        engines = {
            EngineKey("prod", pod.name, "0"): engine_series(self.load(seats_of(pod.args)), at=at)
            for pod in self.pods
            if pod.ready_since is not None
        }
        quiet = {
            PodName(key.namespace, key.pod)
            for key, engine in engines.items()
            if self.silent is None and not any(engine.gauges[Meaning.WAITING].values)
        }
        gauged = len(engines)
        resting = [rests(entry, quiet) for entry in entries]
        if all(resting):
            engines = {}  # all of them are in one namespace, of which nothing more is asked
        found = FleetSnapshot(
            at=at,
            state_window=WINDOW,
            scrape_interval=SCRAPE,
            engines={} if self.silent else engines,
            error=self.silent,
            gauged=0 if self.silent else gauged,
        )
        return {"": found}

    def keep_only(self, entries: Iterable[ServiceEntry]) -> None:
        """Nothing is kept from look to look."""

    def of(self, service: object, snapshots: Mapping[str, FleetSnapshot]) -> FleetSnapshot:
        nothing = FleetSnapshot(at=0.0, state_window=WINDOW, scrape_interval=None, engines={})
        return snapshots.get("", nothing)


def _require_room(body: Body) -> None:
    """Raise Refused for what etcd would not store, as the API server's answer is read."""
    if len(json.dumps(body)) > MOST_BYTES:
        answer = b"etcdserver: request is too large"
        raise from_response(status=500, body=answer, headers={}, request="PUT")


def _sent(body: Body) -> Body:
    """What a client may set of a service when it creates it: the status has a request of its own."""
    return {name: copy.deepcopy(value) for name, value in body.items() if name != "status"}


def _spec(body: Body) -> Body:
    found: Body = copy.deepcopy(pruned("spec", body["spec"]))
    return found


def _kept(metadata: Body) -> Body:
    """What of the metadata no client can change."""
    return {name: metadata[name] for name in ("namespace", "name", "uid", "generation", "resourceVersion")}


def _same(one: Body, other: Body) -> bool:
    """Whether a write changes nothing: it is no new version then."""
    server = {"resourceVersion", "managedFields"}

    def without(body: Body) -> Body:
        return {**body, "metadata": {key: value for key, value in body["metadata"].items() if key not in server}}

    return without(one) == without(other)


def _require_unchanged(looked_at: Body | None, live: Body | None, *, name: str) -> None:
    """Raise Conflict where an apply meets another object than the one that was looked at, or another version of it."""
    if looked_at is None and live is None:
        return
    if looked_at is None:
        problem = f"Apply failed with conflicts: {name} has fields of another manager"
    elif live is None or live["metadata"]["uid"] != looked_at["metadata"]["uid"]:
        problem = f"the uid in the precondition is not that of {name}"
    elif live["metadata"]["resourceVersion"] != looked_at["metadata"]["resourceVersion"]:
        problem = f"{name} has changed"
    else:
        return
    raise Conflict(problem, reason="Conflict", status=409)


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


def _length_of(pod: Pod) -> int | None:
    return parse_flags(pod.args).max_model_len


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
