"""Sees every version of every VLLMService and Deployment of a namespace, and holds each against what must always be so.

Apart from the tests, because an invariant is only worth something when it is checked in all of them, on every status
that was ever written and not only on those that a test happened to read.
Must not: judge what a test is about (an outcome, a duration); a rule here holds in every story.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import httpx

from e2e.stage import Stage, condition
from vllm_autotuner.api.conditions import kstatus_violations
from vllm_autotuner.api.status import ChangeState, StatusUnreadable, parse_status
from vllm_autotuner.change.edges import EDGES
from vllm_autotuner.engine.flags import parse_flags
from vllm_autotuner.workload.labels import OPERATOR, SERVICE, TRACK

Object = Mapping[str, Any]

SERVICES: Final = "/apis/vllm-autotuner.dev/v1alpha1/namespaces/{namespace}/vllmservices"
DEPLOYMENTS: Final = "/apis/apps/v1/namespaces/{namespace}/deployments"


@dataclass(slots=True)
class Seen:
    """What has been seen of one service."""

    versions: list[Object] = field(default_factory=list)
    """Of the VLLMService, each one whose status differs from the one before."""
    last: Object | None = None
    deployment: Object | None = None
    was_ready: bool = False
    lapses: list[str] = field(default_factory=list)
    """Moments without a Ready service or a serving pod, after the first good one."""
    allowed: list[Callable[[int | None], bool]] = field(default_factory=list)
    """Which max-num-seqs each spec that was ever written allows."""
    fewest: int | None = None
    """Available pods of its own Deployment at the worst moment after the first good one."""
    created: list[str] = field(default_factory=list)
    """The Deployments that came into being beside its own, by their track."""
    deleted: list[str] = field(default_factory=list)


class Monitor:
    """`async with Monitor(stage) as monitor`: watches until the end; `broken` tells what was not as it must be."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._seen: defaultdict[str, Seen] = defaultdict(Seen)
        self._broken: defaultdict[str, list[str]] = defaultdict(list)
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for path, see in ((SERVICES, self._service), (DEPLOYMENTS, self._deployment)):
            self._tasks.append(asyncio.create_task(self._watch(path.format(namespace=self._stage.namespace), see)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def broken(self, name: str) -> list[str]:
        """Everything about this service that was not as it must always be."""
        blind = [f"the monitor itself failed: {task!r}" for task in self._tasks if task.done()]
        return blind + self._broken[name]

    def lapses(self, name: str) -> list[str]:
        """Moments in which the service was not Ready or had no serving pod, after its first good one."""
        return self._seen[name].lapses

    def fewest_available(self, name: str) -> int | None:
        """Available pods of the service's own Deployment at the worst moment after its first good one."""
        seen = self._seen[name]
        now = (seen.deployment or {}).get("status", {}).get("availableReplicas")
        return now if seen.fewest is None else seen.fewest

    def trials(self, name: str) -> tuple[list[str], list[str]]:
        """The Deployments beside the service's own: which were created, and which deleted, by track and sorted."""
        return sorted(self._seen[name].created), sorted(self._seen[name].deleted)

    def statuses(self, name: str) -> list[Object]:
        """Every status that was written, oldest first."""
        return [version.get("status") or {} for version in self._seen[name].versions]

    def states(self, name: str) -> list[str]:
        """The states of its changes in the order in which they were written, repeats left out."""
        found: list[str] = []
        for status in self.statuses(name):
            state = (status.get("activeChange") or {}).get("state")
            if state and found[-1:] != [state]:
                found.append(state)
        return found

    async def when(self, name: str, holds: Callable[[Object], object], *, seconds: float) -> Object:
        """Wait for a status about which `holds` is true, and return at the very moment it is seen.

        Raises TimeoutError, for the caller knows what it waited for; AssertionError when the monitor itself has failed.
        """
        async with asyncio.timeout(seconds):
            while True:
                for task in self._tasks:
                    assert not task.done(), f"the monitor itself failed: {task!r}"
                status = (self._seen[name].last or {}).get("status") or {}
                if holds(status):
                    return status
                self._news.clear()
                await self._news.wait()

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
                async with self._stage.api.stream("GET", path, params=query, timeout=None) as answer:
                    answer.raise_for_status()
                    async for line in answer.aiter_lines():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise AssertionError(f"versions were missed: {event['object']}")
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            see(event["type"], event["object"])
                            self._news.set()

    def _service(self, kind: str, body: Object) -> None:
        name = body["metadata"]["name"]
        seen = self._seen[name]
        if kind == "DELETED":
            return
        before, seen.last = seen.last, body
        seen.allowed.append(_allowed(body["spec"]))
        status, old = body.get("status") or {}, (before or {}).get("status") or {}
        if status and status != old:
            seen.versions.append(body)
            self._broken[name] += violations(body, before=old)
        self._lapse(seen, condition(status, "Ready") == "True", f"Ready={condition(status, 'Ready')}: {_ready(status)}")

    def _deployment(self, kind: str, body: Object) -> None:
        name, labels = body["metadata"]["name"], body["metadata"].get("labels") or {}
        if (track := labels.get(TRACK)) is not None:
            of = self._seen[labels[SERVICE]]
            {"ADDED": of.created, "DELETED": of.deleted}.get(kind, []).append(track)
            return
        seen = self._seen[name]
        if kind == "DELETED":
            seen.deployment = None
            return
        before, seen.deployment = seen.deployment, body
        template = body["spec"]["template"]
        if before is None or before["spec"]["template"] != template:
            engine = template["spec"]["containers"][0]
            seats = parse_flags([*(engine.get("command") or []), *(engine.get("args") or [])]).max_num_seqs
            if seen.allowed and not any(allows(seats) for allows in seen.allowed):
                self._broken[name].append(f"the Deployment asks for max-num-seqs {seats}, which no spec allows")
        available = body.get("status", {}).get("availableReplicas") or 0
        if seen.was_ready:
            seen.fewest = available if seen.fewest is None else min(seen.fewest, available)
        if seen.was_ready and not available:
            seen.lapses.append("no pod of the Deployment is available")

    @staticmethod
    def _lapse(seen: Seen, ready: bool, text: str) -> None:
        if ready:
            seen.was_ready = True
        elif seen.was_ready:
            seen.lapses.append(text)


def violations(body: Object, *, before: Object) -> list[str]:
    """What is wrong with a status that was just written over `before`; empty when nothing is."""
    raw, generation = body["status"], body["metadata"]["generation"]
    try:
        found = [f"kstatus: {text}" for text in kstatus_violations(parse_status(raw), generation)]
    except StatusUnreadable as error:
        found = [str(error)]
    change, old = raw.get("activeChange"), before.get("activeChange")
    ids = [entry["id"] for entry in raw.get("history", [])]
    found += [f"change {each} stands in the history {ids.count(each)} times" for each in {*ids} if ids.count(each) > 1]
    spent = raw.get("budget", {}).get("changesToday", 0) - before.get("budget", {}).get("changesToday", 0)
    begun = change is not None and (old is None or old["id"] != change["id"])
    if spent != int(begun):
        found.append(f"{spent} counted in the budget while {int(begun)} began")
    if old is not None and (change is None or change["id"] != old["id"]) and ids.count(old["id"]) != 1:
        found.append(f"change {old['id']} is over and not in the history")
    if begun and change is not None and change["id"] in ids:
        found.append(f"change {change['id']} began a second time")
    if change is not None and old is not None and change["id"] == old["id"] and change["state"] != old["state"]:
        edge = ChangeState(old["state"]), ChangeState(change["state"])
        if edge[1] not in EDGES[edge[0]]:
            found.append(f"no such move: {edge[0]} -> {edge[1]}")
    if change is not None and not (change.get("deadline") and change.get("from") and change.get("to")):
        found.append("an active change without deadline, from and to")
    effective = (raw.get("effective") or {}).get("maxNumSeqs")
    if raw.get("observedGeneration") == generation and change is None and not _allowed(body["spec"])(effective):
        found.append(f"effective maxNumSeqs {effective} is neither the spec's nor within its bounds")
    for entry in body["metadata"].get("managedFields", []):
        if entry["manager"] == OPERATOR and "f:spec" in entry.get("fieldsV1", {}):
            found.append("the operator wrote the spec")
    return found


def _allowed(spec: Object) -> Callable[[int | None], bool]:
    written = spec.get("engine", {}).get("maxNumSeqs")
    bounds = spec.get("tuning", {}).get("maxNumSeqs")
    return lambda seats: (
        seats == written or (seats is not None and bounds is not None and bounds["min"] <= seats <= bounds["max"])
    )


def _ready(status: Object) -> str:
    return next((each.get("message", "") for each in status.get("conditions", []) if each["type"] == "Ready"), "")
