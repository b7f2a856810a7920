"""The fleet loop: in every interval the leader reads and decides the services part by part; calm ones rest.

Order for each service: decide, write the status, post its Events, and only then apply it to the workload. If the
process is killed between any two steps, the next leader continues from the status: intent stands before effect (T01).
Must not: decide anything itself. An exception for one service never affects the others.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final

from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.budgets import REPORT_TICK_SECONDS
from vllm_autotuner.cluster.errors import TOO_LARGE, ClusterError, NotFound, Unavailable
from vllm_autotuner.control.decide.figures_refresh import RefreshSlots
from vllm_autotuner.control.decide.fleet_budget import Fleet, Part, fleet_of, part_of
from vllm_autotuner.control.decide.inputs import OperatorState
from vllm_autotuner.control.read.adopting import Adopting
from vllm_autotuner.control.read.fleet_parts import changes_in, has_a_change, parts_of
from vllm_autotuner.control.read.free_gpus import FreeGpuLookup
from vllm_autotuner.control.read.inputs_reader import Look
from vllm_autotuner.control.read.limits_configmap import current_limits
from vllm_autotuner.control.read.metrics_sources import Sources, source_of
from vllm_autotuner.control.read.registry import Key, RegistrySnapshot
from vllm_autotuner.control.read.views import ServiceEntry
from vllm_autotuner.control.run.calm_services import CalmServices
from vllm_autotuner.control.run.context import ControlContext
from vllm_autotuner.control.run.effects import Effects, Urgency, Work
from vllm_autotuner.control.run.fleet_export import FleetExport
from vllm_autotuner.control.run.self_health import SelfHealth
from vllm_autotuner.control.run.service_tick import Apart, Decided, OperatorStateOf, Persisted, ServiceTick
from vllm_autotuner.control.write.event_outbox import FAILED, OBJECT_TOO_LARGE
from vllm_autotuner.guardrails.concurrency import Asking
from vllm_autotuner.guardrails.mode_ceiling import NO_LIMITS
from vllm_autotuner.observation.quiet_pods import PodName
from vllm_autotuner.observation.snapshot import FleetSnapshot

__all__ = ["FleetLoop", "run_fleet_loop"]

HELD_LOOKS: Final = 4
"""Failed looks at a source, or at the limits, for which services stay as they are: a minute at the default interval. A
restart of Prometheus takes less, and to tell it of every service is a write for each, twice. Our choice."""
FOLLOWING: Final = 1.0
"""Seconds after which a follower looks again whether it leads."""
ONE_WAIT: Final = 1.0
"""Seconds between two heartbeats while effects are waited for."""
LAST_WAIT: Final = 5.0
"""Seconds for writes under way when the operator stops."""
LONGEST_BREATH: Final = 0.05
"""Seconds of decisions in a row before others run: a quarter of the lag that a fleet may have. By time, because of new
services, which cost next to nothing, all are decided before any of them gets pods."""
KEPT_MEASURED: Final = 64
"""Services on their way whose metrics are kept, so that one that was written meanwhile is decided again at once: four
times as many as are carried out at a time. Our choice."""
ONE_REPORT: Final = 0.5
"""Seconds for reports in a tick that is late: as many as there is nothing new to write about, and one more."""

logger = logging.getLogger(__name__)


async def run_fleet_loop(context: ControlContext, stop: asyncio.Event) -> None:
    """Tick until `stop`."""
    sources = Sources(context.settings)
    loop = FleetLoop(context, sources=sources)
    try:
        while not stop.is_set():
            context.heartbeat.beat()
            started, led = context.monotonic(), context.election.is_leader
            await loop.tick()
            interval = context.settings.interval.total_seconds()
            # A change that the last leader left must not wait for the beat of a process that had nothing to do.
            pace = interval if led else min(interval, FOLLOWING)
            rest = pace - (context.monotonic() - started)
            try:
                async with asyncio.timeout(max(0.0, rest)):
                    await stop.wait()
            except TimeoutError:
                continue
    finally:
        await loop.end()
        await sources.close()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A service that asks for a turn to begin a change."""

    decided: Decided
    asking: Asking
    look: Look


@dataclass(frozen=True, slots=True)
class _Handled:
    """What came of a part of the fleet."""

    waiting: Sequence[_Waiting]
    engines: int
    calm: int
    """Services that needed no decision."""


class FleetLoop:
    """Keeps between ticks only what a restart may lose, e.g. since when this process has been the leader."""

    def __init__(self, context: ControlContext, *, sources: Sources) -> None:
        self._context = context
        self._sources = sources
        self._epoch: int | None = None
        self._watching_since = context.wall()
        self._refresh_slots: RefreshSlots | None = None
        self._export = FleetExport(context)
        self._known: Mapping[Key, ServiceEntry] = {}
        self._effects = Effects()
        self._calm = CalmServices()
        self._beginning: dict[str, VLLMService] = {}
        """uid -> a service whose change begins, as it will be written: it counts from the moment it is its turn."""
        self._in_flight: frozenset[str] = frozenset()
        """uids of the services that were on their way when this tick began."""
        self._decided: dict[str, str] = {}
        """uid -> the resource version that a service had when it was decided last, and written."""
        self._held: dict[str, float] = {}
        """uid -> since when (Unix seconds) a service is not decided, because looks at its metrics fail."""
        self._behind: Mapping[str, float] = {}
        """The services for which the last tick had no time: uid -> since when there was none, as `_began`."""
        self._unread: Mapping[str, float] = {}
        """The services whose adopted Deployment the last tick had no time to read, in the same way."""
        self._limits = NO_LIMITS
        self._limited_at = -inf
        """When they were asked for last in this tick."""
        self._limits_known_at = -inf
        """When they were read last."""
        self._began = context.monotonic()
        """When this tick did."""
        self._put_off = False
        """The last tick had no time to report unreadable objects."""
        context.metrics.shards.set(context.settings.shard.of)
        context.metrics.interval.set(context.settings.interval.total_seconds())
        self._health = SelfHealth(interval=context.settings.interval, window=context.settings.window)
        # An operator for named namespaces has no permission to list nodes, nor the pods of other namespaces.
        looks = not context.settings.namespaces and not context.settings.nodes_on_demand
        self._free_gpus = FreeGpuLookup(
            context.cluster, enabled=looks, monotonic=context.monotonic, beat=context.heartbeat.beat
        )
        self._services = self._services_anew()

    def _services_anew(self) -> ServiceTick:
        return ServiceTick(
            self._context,
            sources=self._sources,
            free_gpus=self._free_gpus,
            wrote=lambda uid: self._health.api_wrote(uid, at=self._context.wall()),
        )

    async def end(self) -> None:
        """Let what is being written arrive; what has not begun is decided by the next leader."""
        self._effects.drop_waiting()
        await self._effects.settled(within=LAST_WAIT)

    async def tick(self) -> None:
        """Handle the whole fleet once. A follower does nothing here; its watches keep the registry current."""
        context = self._context
        context.metrics.leader.set(1 if context.election.is_leader else 0)
        if not context.election.is_leader:
            if self._epoch is not None:
                self._export.forget()
                self._effects.drop_waiting()
                self._beginning.clear()
            self._epoch = None
            return
        if self._epoch != context.election.epoch:
            self._epoch, self._watching_since = context.election.epoch, context.wall()
            self._services = self._services_anew()
            self._refresh_slots = None
            self._known = {}
            self._decided.clear()
            self._held.clear()
            self._limits_known_at = -inf
            self._calm.keep_only(frozenset())
        # All of it, the look at the metrics and the logs as well: whatever takes long delays the next tick.
        with context.metrics.tick_duration.time():
            await self._lead()

    async def _lead(self) -> None:
        context = self._context
        self._began = context.monotonic()
        # Before the snapshot: what arrives after it is not in it, and would be decided and announced once more.
        self._in_flight = self._effects.on_their_way()
        started, fleet = context.wall(), context.registry.snapshot()
        # Where the clock was set back, this process would count as just started until the clock has caught up.
        self._watching_since = min(self._watching_since, started)
        since = self._refresh_slots.now if self._refresh_slots is not None else started
        self._refresh_slots = RefreshSlots(services=len(fleet.services), since=since, now=started)
        uids = {entry.uid for entry in fleet.services.values()}
        self._services.keep_only(uids)
        self._calm.keep_only(uids)
        for gone in self._decided.keys() - uids:
            del self._decided[gone]
            self._held.pop(gone, None)
        self._export.keep_only(fleet.services.keys())
        self._note_deletions(fleet.services)
        self._free_gpus.begin_tick()
        self._limited_at = -inf
        adopting = Adopting(
            fleet.services, cluster=context.cluster, monotonic=context.monotonic, beat=context.heartbeat.beat
        )
        self._unread = await adopting.read_all(put_off=self._unread)
        await self._services.read_logs(fleet, adopting=adopting)
        self._sources.begin_tick()
        # Once and not for each part: it looks at the whole fleet.
        operator_of = self._operator_of(fleet)
        engines = calm = 0
        waiting: list[_Waiting] = []
        behind, others = dict[str, float](), 0
        for part in parts_of(fleet, behind=self._behind):
            # However slow Prometheus is, running changes are looked at in each tick, and at least one other part.
            if others and context.monotonic() - self._began > context.settings.interval.total_seconds():
                behind |= {entry.uid: self._behind.get(entry.uid, self._began) for entry in part.values()}
                continue
            others += not changes_in(part)
            handled = await self._handle(part, fleet=fleet, adopting=adopting, operator_of=operator_of)
            engines, calm = engines + handled.engines, calm + handled.calm
            waiting += handled.waiting
        await self._settle()
        await self._give_turns(waiting, adopting=adopting)
        await self._settle()
        await self._report(fleet, adopting=adopting, operator_of=operator_of)
        self._sources.keep_only(fleet.services.values())
        self._behind = behind
        if not behind:
            context.metrics.engines.set(engines)
            context.metrics.calm_services.set(calm)
        context.metrics.set_waiting(self._effects.waits())
        # With the statuses that were written meanwhile; one that was deleted meanwhile is missed in the next tick.
        self._known = {**fleet.services, **context.registry.services.views()}
        await self._export.fleet(self._services.memory.classes())
        context.metrics.ticks.labels(outcome="Done").inc()
        self._health.looked(took=context.wall() - started, now=context.wall())

    async def _handle(
        self,
        part: Mapping[Key, ServiceEntry],
        *,
        fleet: RegistrySnapshot,
        adopting: Adopting,
        operator_of: OperatorStateOf,
    ) -> _Handled:
        """Look at the metrics of a part of the fleet, decide it, and send what was decided on its way.

        The metrics are gone with the return: else they were kept while those of the next part are read.
        """
        at, resting = self._context.wall().timestamp(), set[str]()
        rests = partial(self._rests, fleet=fleet, at=at, resting=resting)
        snapshots = await self._sources.look(part.values(), at=at, rests=rests)
        self._note_failures(snapshots)
        # Last before the decisions, so that a switch flipped during a slow look counts; but not for each of many parts
        # anew, where an answer of the API server takes seconds.
        if self._context.monotonic() - self._limited_at > self._context.settings.interval.total_seconds() / 3:
            await self._limit()
        due = {key: entry for key, entry in part.items() if entry.uid not in resting}
        look = Look(fleet=fleet, snapshots=snapshots)
        waiting = await self._decide(due, look=look, adopting=adopting, operator_of=operator_of)
        return _Handled(waiting, engines=sum(each.gauged for each in snapshots.values()), calm=len(resting))

    def _rests(
        self, entry: ServiceEntry, quiet: Set[PodName], *, fleet: RegistrySnapshot, at: float, resting: set[str]
    ) -> bool:
        """Whether a service needs no decision in this tick; it is noted in `resting` then."""
        slots, interval = self._refresh_slots, self._context.settings.interval.total_seconds()
        # A fleet whose figures may all be refreshed in each tick costs little, and everything of it is seen at once.
        small = slots is None or slots.period <= interval
        # With the limits of the look: metrics are read for those that are decided, whatever is switched meanwhile.
        rests = not small and self._calm.rests(entry, quiet, fleet=fleet, limits=self._limits, at=at)
        if rests:
            resting.add(entry.uid)
        return rests

    def _note_deletions(self, services: Mapping[Key, ServiceEntry]) -> None:
        alive = {entry.uid for entry in services.values()}
        for key, entry in self._known.items():
            if entry.uid not in alive and has_a_change(entry):
                work = partial(self._apart, key, entry, partial(self._services.note_deletion, entry))
                self._effects.add(f"{entry.uid} was deleted", work, urgency=Urgency.REPORT)

    def _note_failures(self, snapshots: Mapping[str, FleetSnapshot]) -> None:
        for name, snapshot in snapshots.items():
            if snapshot.error is not None:
                self._context.metrics.prometheus_errors.labels(source=name or "default", kind="Failed").inc()
                logger.warning("metrics source failed", extra={"source": name, "error": snapshot.error.why})
                self._health.source_failed(name, at=self._context.wall())

    async def _limit(self) -> None:
        self._limited_at = self._context.monotonic()
        limits, known = await current_limits(self._context.settings, self._context.cluster)
        if known:
            self._limits_known_at = self._limited_at
        elif self._limited_at - self._limits_known_at < self._held_seconds:
            return  # one request that is refused is no news for a fleet; until it is answered nothing begins
        if limits != self._limits:
            ceiling, why = limits.ceiling.value, limits.why or "no limits"
            logger.warning("limits changed", extra={"ceiling": ceiling, "kill": limits.kill, "why": why})
        self._limits = limits

    async def _decide(
        self, entries: Mapping[Key, ServiceEntry], *, look: Look, adopting: Adopting, operator_of: OperatorStateOf
    ) -> list[_Waiting]:
        """Decide these services and send what was decided on its way; return those that ask for a turn to begin."""
        waiting: list[_Waiting] = []
        handled = [(key, entry) for key, entry in entries.items() if not _is_only_reported(entry)]
        breathed = self._context.monotonic()
        for key, entry in handled:
            # A long tick must not look like a hung one, and the watches and the lease must breathe: fifty decisions in
            # a row kept them waiting for half a second.
            self._context.heartbeat.beat()
            if self._context.monotonic() - breathed > LONGEST_BREATH:
                await asyncio.sleep(0)
                breathed = self._context.monotonic()
            if entry.uid in self._in_flight or entry.uid in self._unread or self._waits_for_metrics(entry, look):
                continue
            async with self._isolated(key, entry, deciding=True):
                try:
                    decided = await self._services.decide(
                        key, entry, look=look, adopting=adopting, operator_of=operator_of
                    )
                finally:
                    self._calm.forget(entry.uid)
                self._decided[entry.uid] = entry.resource_version
                self._held.pop(entry.uid, None)
                if isinstance(decided, Decided):
                    if decided.decision.turn is not None:
                        waiting.append(_Waiting(decided, decided.decision.turn.asking, look))
                    else:
                        self._send(decided, look=look, adopting=adopting)
                elif decided is not None:
                    urgency = Urgency.CHANGE if has_a_change(entry) else Urgency.REPORT
                    self._effects.add(entry.uid, partial(self._apart, key, entry, decided), urgency=urgency)
        return waiting

    def _send(self, decided: Decided, *, look: Look, adopting: Adopting) -> None:
        """Let what was decided for a service be carried out."""
        urgency = Urgency.REPLICAS if decided.entry.uid in self._beginning else _urgency(decided)
        if urgency is Urgency.REPORT and len(self._effects) >= KEPT_MEASURED:
            # Where all are told something at once, 100 KiB each were kept until the last was. One that somebody else
            # writes meanwhile is decided in the next tick.
            decided, look = decided.without_metrics(), replace(look, snapshots={})
        carry_out = self._begin_service if urgency is Urgency.BEGIN else self._carry_out
        work = partial(carry_out, decided, look=look, adopting=adopting)
        self._effects.add(decided.entry.uid, work, urgency=urgency)

    async def _give_turns(self, waiting: Sequence[_Waiting], *, adopting: Adopting) -> None:
        """Begin changes: only now is it known who all would, and which changes have ended in this tick."""
        if not waiting:
            return
        known = self._limits_known_at >= self._began
        begin = self._fleet().begin([each.asking for each in waiting] if known else [])
        for each in waiting:
            decided = each.decided
            self._context.heartbeat.beat()
            async with self._isolated(decided.key, decided.entry):
                if decided.entry.uid in begin:
                    decided = self._services.begin_at_its_turn(decided)
                    self._beginning[decided.entry.uid] = replace(decided.service, status=decided.decision.status)
            self._send(decided, look=each.look, adopting=adopting)

    def _waits_for_metrics(self, entry: ServiceEntry, look: Look) -> bool:
        """Whether a service is not decided in this tick, because a look at its metrics has failed and nothing else is
        new. One failed look is no blindness: it is told after `HELD_LOOKS` of them."""
        service = entry.service
        if not isinstance(service, VLLMService) or service.status.active_change is not None:
            return False
        snapshot = look.snapshots.get(source_of(service))
        if snapshot is None or snapshot.error is None:
            self._held.pop(entry.uid, None)
            return False
        if self._decided.get(entry.uid) != entry.resource_version:
            return False  # somebody wrote it: that is decided at once
        since = self._held[entry.uid] = min(self._held.get(entry.uid, snapshot.at), snapshot.at)
        return snapshot.at - since < self._held_seconds

    @property
    def _held_seconds(self) -> float:
        return HELD_LOOKS * self._context.settings.interval.total_seconds()

    async def _settle(self) -> None:
        """Wait for what is on its way, as long as that does not delay the next tick."""
        interval = self._context.settings.interval.total_seconds()
        while len(self._effects) and (left := interval - (self._context.monotonic() - self._began)) > 0:
            self._context.heartbeat.beat()
            await self._effects.settled(within=min(left, ONE_WAIT))

    async def _report(self, fleet: RegistrySnapshot, *, adopting: Adopting, operator_of: OperatorStateOf) -> None:
        """Say of objects that cannot be read what is wrong with them, as far as this tick has time for it."""
        keys = [key for key, entry in fleet.services.items() if _is_only_reported(entry)]
        # No change of them is in progress: what they measure is not asked.
        look = Look(fleet=fleet, snapshots={})
        began, interval = self._context.monotonic(), self._context.settings.interval.total_seconds()
        late = began - self._began > interval / 2
        if late and keys and not self._put_off:
            # A slow look and slow writes in one tick would delay the next one; but a look may be slow for hours.
            self._put_off = True
            REPORT_TICK_SECONDS.exceeded()
            return
        self._put_off = False
        limit = ONE_REPORT if late else REPORT_TICK_SECONDS.limit
        for count, key in enumerate(sorted(keys)):
            if count and self._context.monotonic() - began > limit:
                REPORT_TICK_SECONDS.exceeded()
                logger.warning("no time left to report unreadable objects in this tick")
                break
            self._context.heartbeat.beat()
            entry = look.fleet.services[key]
            async with self._isolated(key, entry):
                found = await self._services.decide(key, entry, look=look, adopting=adopting, operator_of=operator_of)
                if found is not None and not isinstance(found, Decided):
                    await found()

    async def _apart(self, key: Key, entry: ServiceEntry, work: Apart) -> None:
        async with self._isolated(key, entry):
            await work()

    async def _carry_out(self, decided: Decided, *, look: Look, adopting: Adopting) -> None:
        try:
            persisted = await self._persist(decided, look=look, adopting=adopting)
        finally:
            # From here on it counts as what its status says.
            self._beginning.pop(decided.entry.uid, None)
        if persisted is not None:
            await self._follow(persisted, decided=decided, look=look)

    async def _begin_service(self, decided: Decided, *, look: Look, adopting: Adopting) -> Work | None:
        """Write the status of a new service; return the rest: of many new ones each is told of before any has pods."""
        persisted = await self._persist(decided, look=look, adopting=adopting)
        return None if persisted is None else partial(self._follow, persisted, decided=decided, look=look)

    async def _persist(self, decided: Decided, *, look: Look, adopting: Adopting) -> Persisted | None:
        async with self._isolated(decided.key, decided.entry):
            return await self._services.persist(decided, look=look, adopting=adopting)
        return None

    async def _follow(self, persisted: Persisted, *, decided: Decided, look: Look) -> None:
        async with self._isolated(decided.key, decided.entry):
            await self._services.follow(persisted, look=look)
            self._export.replicas(decided.key, persisted.decided.decision.desired)
            if persisted.decided is decided:
                self._calm.note(decided, fleet=look.fleet)
            if (written := self._context.registry.services.get(decided.key)) is not None:
                self._decided[written.uid] = written.resource_version

    def _fleet(self) -> Fleet:
        entries, settings = self._context.registry.services.views().values(), self._context.settings
        parts = [self._part(entry) for entry in entries]
        shards = settings.shard.of
        return fleet_of(
            parts, changes_at_once=settings.changes_at_once.among(shards), extra_gpus=settings.extra_gpus.among(shards)
        )

    def _part(self, entry: ServiceEntry) -> Part:
        try:
            return part_of(self._beginning.get(entry.uid, entry.service), now=self._context.wall())
        except Exception:
            # The others must get their turns; what is wrong with this one is reported when it is handled.
            self._context.metrics.ticks.labels(outcome="Failed").inc()
            logger.exception("failed to count service", extra={"service": entry.service.key})
            return Part()

    def _operator_of(self, fleet: RegistrySnapshot) -> OperatorStateOf:
        queue, services = self._fleet().why(), len(fleet.services)
        return lambda service: self._operator_state(service, queue=queue, services=services)

    def _operator_state(self, service: VLLMService, *, queue: str, services: int) -> OperatorState:
        uid, now = service.metadata.uid, self._context.wall()
        return OperatorState(
            watching_since=self._watching_since,
            epoch=self._context.election.epoch,
            limits=self._limits,
            catalogue=self._context.settings.catalogue,
            trouble=self._health.trouble(uid, source=source_of(service), services=services, now=now),
            queue=queue,
            refresh_due=self._refresh_slots is not None
            and self._refresh_slots.has(uid, since=self._calm.decided_at(uid)),
        )

    @asynccontextmanager
    async def _isolated(self, key: Key, entry: ServiceEntry, *, deciding: bool = False) -> AsyncIterator[None]:
        """Let no error of one service reach the others. `deciding`: nor what is to be told of it."""
        try:
            yield
        except ClusterError as error:
            if isinstance(error, NotFound) and self._context.registry.services.get(key) is None:
                return  # it was deleted meanwhile
            logger.warning("failed to handle service", extra={"service": "/".join(key), "error": str(error)})
            if isinstance(error, Unavailable):
                self._health.api_failed(entry.uid, at=self._context.wall())
            elif error.reason == TOO_LARGE:
                await self._services.status_writer.outbox.say(OBJECT_TOO_LARGE, about=entry)
        except Exception:
            # A poisoned object is reported on itself and never stops the others.
            self._context.metrics.ticks.labels(outcome="Failed").inc()
            logger.exception("unexpected error while handling service", extra={"service": "/".join(key)})
            say = partial(self._services.status_writer.outbox.say, FAILED, about=entry)
            if deciding:
                with suppress(ValueError):  # it is on its way
                    self._effects.add(entry.uid, partial(self._quietly, say), urgency=Urgency.REPORT)
            else:
                await self._quietly(say)

    async def _quietly(self, say: Callable[[], Awaitable[object]]) -> None:
        with suppress(Exception):  # the same defect may be in the way of saying so
            await say()


def _urgency(decided: Decided) -> Urgency:
    before, decision = decided.service.status, decided.decision
    if before.active_change is not None or decision.status.active_change is not None:
        return Urgency.CHANGE
    was, is_now = before.effective, decision.status.effective
    if was is None:
        return Urgency.BEGIN
    same = was.replicas == (is_now and is_now.replicas)
    return Urgency.REPORT if same else Urgency.REPLICAS


def _is_only_reported(entry: ServiceEntry) -> bool:
    """Whether all there is to do is to say why an object cannot be read: no change of it is in progress."""
    status = entry.service.status
    return isinstance(entry.service, InvalidService) and (status is None or status.active_change is None)
