"""Sees every version of every VLLMService, Deployment and Event of a namespace, and holds each against I1 to I12.

Apart from the tests, because an invariant is only worth something when it is checked in all of them, on every status
that was ever written and not only on those that a test happened to read. What must hold stands in `tests/invariants`.
Must not: judge anything itself, or ask the operator anything: it sees what everybody can see.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Self

import httpx
from tests.invariants.deployments import knobs_of, trial_of
from tests.invariants.moment import Object, Seen
from tests.invariants.witness import Witness

from e2e.stage import Stage, condition
from vllm_autotuner.workload.labels import OPERATOR, SERVICE, TRACK

SERVICES: Final = "/apis/vllm-autotuner.dev/v1alpha1/namespaces/{namespace}/vllmservices"
DEPLOYMENTS: Final = "/apis/apps/v1/namespaces/{namespace}/deployments"
EVENTS: Final = "/apis/events.k8s.io/v1/namespaces/{namespace}/events"
IDLE_WATCH: Final = httpx.Timeout(30, read=None)
"""A watch may be silent for as long as nothing happens; to connect and to ask must not take forever."""
PROMOTED: Final = ["Provisioning", "Verifying", "WarmingUp", "Analyzing", "Promoting", "Baking"]
"""The course of a change that its canary has won."""
PUT_OFF: Final = 120.0
"""Seconds for what an operator with ticks of a second puts off by two of them; a busy machine may take ten for one."""


@dataclass(slots=True)
class Watched:
    """What has been seen of one service."""

    versions: list[Object] = field(default_factory=list)
    """Of the VLLMService, each one whose status differs from the one before."""
    last: Object | None = None
    deployments: dict[str, Object] = field(default_factory=dict)
    """Its own and those of its trials, by name."""
    events: dict[str, Object] = field(default_factory=dict)
    """About it, by name."""
    witness: Witness = field(default_factory=Witness)
    harmed: bool = False
    """A scene takes its pods away."""
    ready_since: int | None = None
    """The resourceVersion of its first status that was Ready; the API server counts all kinds by one number."""
    lapses: list[str] = field(default_factory=list)
    """Moments without a Ready service or a serving pod, after the first good one."""
    fewest: int | None = None
    """Available pods of its own Deployment at the worst moment after the first good one."""
    created: list[str] = field(default_factory=list)
    """The Deployments that came into being beside its own, by their track."""
    deleted: list[str] = field(default_factory=list)


class Monitor:
    """`async with Monitor(stage) as monitor`: watches until the end; `broken` tells what was not as it must be."""

    def __init__(self, stage: Stage, *, may_miss: bool = False) -> None:
        """`may_miss`: go on where versions were missed, as when the CRD is replaced; else the monitor fails."""
        self._stage = stage
        self._may_miss = may_miss
        self._seen: defaultdict[str, Watched] = defaultdict(Watched)
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        watched = ((SERVICES, self._service), (DEPLOYMENTS, self._deployment), (EVENTS, self._event))
        for path, see in watched:
            self._tasks.append(asyncio.create_task(self._watch(path.format(namespace=self._stage.namespace), see)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def broken(self, name: str) -> list[str]:
        """Everything about this service that was not as it must always be."""
        blind = [f"the monitor itself failed: {task!r}" for task in self._tasks if task.done()]
        return blind + self._seen[name].witness.found

    async def at_rest(self, name: str) -> None:
        """Wait until nothing is left that the operator puts off: an Event to tell, a trial to remove."""
        seen = self._seen[name]
        with suppress(TimeoutError):
            async with asyncio.timeout(PUT_OFF):
                while (inputs := self._inputs(name, settled=True)) and seen.witness.put_off(inputs):
                    self._news.clear()
                    await self._news.wait()
        self._look(name, settled=True)

    def expect_harm(self, name: str) -> None:
        """From now on pods of this service may go away without the operator's doing."""
        self._seen[name].harmed = True

    def lapses(self, name: str) -> list[str]:
        """Moments in which the service was not Ready or had no serving pod, after its first good one."""
        return self._seen[name].lapses

    def fewest_available(self, name: str) -> int | None:
        """Available pods of the service's own Deployment at the worst moment after its first good one."""
        seen = self._seen[name]
        now = seen.deployments.get(name, {}).get("status", {}).get("availableReplicas")
        return now if seen.fewest is None else seen.fewest

    def trials(self, name: str) -> tuple[list[str], list[str]]:
        """The Deployments beside the service's own: which were created, and which deleted, by track and sorted."""
        return sorted(self._seen[name].created), sorted(self._seen[name].deleted)

    def statuses(self, name: str) -> list[Object]:
        """Every status that was written, oldest first."""
        return [version.get("status") or {} for version in self._seen[name].versions]

    def states(self, name: str) -> list[str]:
        """The states of its changes in the order in which they were written, repeats left out."""
        states = ((status.get("activeChange") or {}).get("state") for status in self.statuses(name))
        return [state for state, _ in groupby(filter(None, states))]

    def course(self, name: str) -> list[str]:
        """The same without Held: a machine that is busy for a moment may hold a change, which then goes on."""
        return [state for state, _ in groupby(state for state in self.states(name) if state != "Held")]

    async def when(self, name: str, holds: Callable[[Object], object], *, seconds: float) -> Object:
        """Wait for a status about which `holds` is true, and return at the very moment it is seen.

        None is passed over: on a busy machine the next one may have come before anybody could look.
        Raises TimeoutError, for the caller knows what it waited for; AssertionError when the monitor itself has failed.
        """
        seen = self._seen[name]
        status, looked = (seen.last or {}).get("status") or {}, len(seen.versions)
        async with asyncio.timeout(seconds):
            while not holds(status):
                while looked == len(seen.versions):
                    for task in self._tasks:
                        assert not task.done(), f"the monitor itself failed: {task!r}"
                    self._news.clear()
                    await self._news.wait()
                status = seen.versions[looked]["status"]
                looked += 1
            return status

    async def _watch(self, path: str, see: Callable[[str, Object], None]) -> None:
        try:
            await self._follow(path, see)
        finally:
            self._news.set()

    async def _follow(self, path: str, see: Callable[[str, Object], None]) -> None:
        version = (await self._stage.get(path))["metadata"]["resourceVersion"]
        while True:
            query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
            with suppress(httpx.TransportError):  # a watch ends now and then; it goes on where it was
                async with self._stage.api.stream("GET", path, params=query, timeout=IDLE_WATCH) as answer:
                    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:  # while its CRD is replaced
                        await asyncio.sleep(0.5)
                        continue
                    answer.raise_for_status()
                    async for line in answer.aiter_lines():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            if not self._may_miss:
                                raise AssertionError(f"versions were missed: {event['object']}")
                            version = await self._looked_anew(path, see)
                            break
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            see(event["type"], event["object"])
                            self._news.set()

    async def _looked_anew(self, path: str, see: Callable[[str, Object], None]) -> str:
        """Take what there is now for news; return the version to go on from."""
        found = await self._stage.get(path)
        for body in found["items"]:
            see("MODIFIED", body)
        self._news.set()
        return str(found["metadata"]["resourceVersion"])

    def _service(self, kind: str, body: Object) -> None:
        seen = self._seen[body["metadata"]["name"]]
        if kind == "DELETED" or "deletionTimestamp" in body["metadata"]:
            # What goes on after that is the garbage collector's doing.
            seen.last = None
            return
        before, seen.last = seen.last, body
        status, old = body.get("status") or {}, (before or {}).get("status") or {}
        if status and status != old:
            seen.versions.append(body)
        by_hand = before is not None and status != old and _by_hand(body) != _by_hand(before)
        self._look(body["metadata"]["name"], edited=by_hand)
        if condition(status, "Ready") != "True" and seen.ready_since is not None:
            seen.lapses.append(f"Ready={condition(status, 'Ready')}: {_ready(status)}")
        elif condition(status, "Ready") == "True" and seen.ready_since is None:
            seen.ready_since = int(body["metadata"]["resourceVersion"])

    def _deployment(self, kind: str, body: Object) -> None:
        metadata = body["metadata"]
        name = metadata.get("labels", {}).get(SERVICE, metadata["name"])
        seen = self._seen[name]
        if (track := metadata.get("labels", {}).get(TRACK)) is not None:
            {"ADDED": seen.created, "DELETED": seen.deleted}.get(kind, []).append(track)
        if kind == "DELETED":
            seen.deployments.pop(metadata["name"], None)
        else:
            seen.deployments[metadata["name"]] = body
        self._look(name)
        if kind == "DELETED" or metadata["name"] != name or seen.ready_since is None:
            return
        # A watch of its own: on a busy machine the Deployment's first versions may come after the Ready they led to.
        if int(metadata["resourceVersion"]) < seen.ready_since:
            return
        available = body.get("status", {}).get("availableReplicas") or 0
        seen.fewest = available if seen.fewest is None else min(seen.fewest, available)
        if not available:
            seen.lapses.append("no pod of the Deployment is available")

    def _event(self, kind: str, body: Object) -> None:
        about = body.get("regarding", {})
        if about.get("kind") == "VLLMService" and kind != "DELETED":
            seen = self._seen[about["name"]]
            seen.events[body["metadata"]["name"]] = body
            self._look(about["name"])

    def _look(self, name: str, *, edited: bool = False, settled: bool = False) -> None:
        if (inputs := self._inputs(name, edited=edited, settled=settled)) is not None:
            self._seen[name].witness.look(inputs)

    def _inputs(self, name: str, *, edited: bool = False, settled: bool = False) -> Seen | None:
        seen = self._seen[name]
        if seen.last is None:
            return None
        own = seen.deployments.get(name)
        return Seen(
            service=seen.last,
            ready=None if own is None else own.get("status", {}).get("availableReplicas", 0),
            runs=None if own is None else knobs_of(own),
            trials={
                each: trial_of(body)
                for each, body in seen.deployments.items()
                if each != name and seen.last["metadata"]["uid"] in _owners(body)
            },
            # The Events have a watch of their own: one may be seen before the status that it tells of.
            told=_told(seen) if settled else None,
            settled=settled,
            harmed=seen.harmed,
            edited=edited,
            others=sum(other != name and bool(_change(found)) for other, found in self._seen.items()),
        )


def _owners(body: Object) -> list[str]:
    return [str(each["uid"]) for each in body["metadata"].get("ownerReferences", ())]


def _told(seen: Watched) -> Mapping[str, int]:
    """How often each reason was told of this very object."""
    uid = seen.last["metadata"]["uid"] if seen.last is not None else ""
    told: Counter[str] = Counter()
    for each in seen.events.values():
        if each["regarding"].get("uid") == uid:
            told[each["reason"]] += (each.get("series") or {}).get("count", 1)
    return told


def _change(seen: Watched) -> Object | None:
    return ((seen.last or {}).get("status") or {}).get("activeChange")


def _by_hand(body: Object) -> list[Object]:
    """What others than the operator say they wrote into the status."""
    entries: list[Object] = body["metadata"].get("managedFields", [])
    return [each for each in entries if each.get("subresource") == "status" and each["manager"] != OPERATOR]


def _ready(status: Object) -> str:
    return next((each.get("message", "") for each in status.get("conditions", []) if each["type"] == "Ready"), "")
