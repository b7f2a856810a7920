"""The fleet loop: every interval, in the leader only, one look at the metrics of all services, then each in turn.

Order for each service: decide, write the status, announce what it says, only then make the workload follow it. Killed
between any two of these, the next leader reads the same status and goes on: intent stands before effect (T01).
Must not: decide anything itself. An exception for one service never reaches the others.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime

from vllm_autotuner.api.conditions import Reason
from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.api.status import ChangeState
from vllm_autotuner.cluster.errors import FORBIDDEN, ClusterError, Conflict, NotFound, Refused, Unavailable
from vllm_autotuner.control.decide.figures_refresh import RefreshSlots
from vllm_autotuner.control.decide.fleet_budget import Fleet, fleet_of
from vllm_autotuner.control.decide.inputs import Inputs, Refusal
from vllm_autotuner.control.decide.tick import Decision, decide, keep_safe, may_need_gpus
from vllm_autotuner.control.decide.unreadable_object import invalid, not_adopted
from vllm_autotuner.control.read.adopted import Adopted
from vllm_autotuner.control.read.adopting import Adopting
from vllm_autotuner.control.read.free_gpus import FreeGpuLookup
from vllm_autotuner.control.read.interference import interference_of
from vllm_autotuner.control.read.limits_configmap import current_limits
from vllm_autotuner.control.read.memories import Memories
from vllm_autotuner.control.read.metrics_sources import Sources
from vllm_autotuner.control.read.pod_state import pods_view
from vllm_autotuner.control.read.registry import Key, RegistrySnapshot
from vllm_autotuner.control.read.rendered_hashes import hashes_of
from vllm_autotuner.control.read.trial_state import own_pods, variants_of
from vllm_autotuner.control.read.views import ServiceEntry
from vllm_autotuner.control.read.workload_state import (
    approved_id,
    is_paused,
    knobs_of,
    observed,
    rollout_of,
    verification_of,
)
from vllm_autotuner.control.run.context import ControlContext
from vllm_autotuner.control.run.self_health import SelfHealth
from vllm_autotuner.control.write.event_outbox import FAILED, remembering
from vllm_autotuner.control.write.status_writer import StatusWriter
from vllm_autotuner.control.write.workload_writer import WorkloadWriter, asked_for
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.guardrails.mode_ceiling import NO_LIMITS
from vllm_autotuner.observation.snapshot import FleetSnapshot
from vllm_autotuner.workload.adoption import Unadoptable
from vllm_autotuner.workload.hashing import RENDERING_VERSION
from vllm_autotuner.workload.rendering import pod_selector

__all__ = ["FleetLoop", "run_fleet_loop"]

logger = logging.getLogger(__name__)


async def run_fleet_loop(context: ControlContext, stop: asyncio.Event) -> None:
    """Tick until `stop`."""
    sources = Sources(context.settings)
    loop = FleetLoop(context, sources=sources)
    try:
        while not stop.is_set():
            context.heartbeat.beat()
            started = context.monotonic()
            await loop.tick()
            rest = context.settings.interval.total_seconds() - (context.monotonic() - started)
            try:
                async with asyncio.timeout(max(0.0, rest)):
                    await stop.wait()
            except TimeoutError:
                continue
    finally:
        await sources.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """A service that was looked at, and what was decided for it. Nothing of it has happened yet."""

    key: Key
    entry: ServiceEntry
    service: VLLMService
    """As it was read; `inputs` may see it otherwise (spec.targetRef)."""
    adopted: Adopted | None
    inputs: Inputs
    decision: Decision


class FleetLoop:
    """Keeps between ticks only what a restart may forget: what was seen last, and since when this process leads."""

    def __init__(self, context: ControlContext, *, sources: Sources) -> None:
        self._context = context
        self._sources = sources
        self._memories = Memories()
        self._status_writer = StatusWriter(context)
        self._workload_writer = WorkloadWriter(context)
        self._epoch: int | None = None
        self._watching_since: datetime | None = None
        self._refresh_slots: RefreshSlots | None = None
        self._exported: set[Key] = set()
        self._limits = NO_LIMITS
        self._health = SelfHealth(interval=context.settings.interval, window=context.settings.window)
        self._adopting = Adopting({}, cluster=context.cluster)
        # Whoever serves some namespaces only has no right to look at nodes, nor at the pods of others.
        looks = not context.settings.namespaces and not context.settings.nodes_on_demand
        self._free_gpus = FreeGpuLookup(context.cluster, enabled=looks)

    async def tick(self) -> None:
        """Look once at everything. Followers look at nothing: they only keep their registry warm."""
        context = self._context
        context.metrics.leader.set(1 if context.election.is_leader else 0)
        if not context.election.is_leader:
            if self._epoch is not None:
                context.metrics.forget_fleet()
                self._exported.clear()
            self._epoch = None
            return
        if self._epoch != context.election.epoch:
            self._epoch, self._watching_since = context.election.epoch, context.wall()
            self._memories = Memories()
            self._status_writer = StatusWriter(context)
            self._refresh_slots = None
        started, fleet = context.wall(), context.registry.snapshot()
        since = self._refresh_slots.now if self._refresh_slots is not None else started
        self._refresh_slots = RefreshSlots(services=len(fleet.services), since=since, now=started)
        uids = {entry.uid for entry in fleet.services.values()}
        self._memories.keep_only(uids)
        self._status_writer.keep_only(uids)
        for gone in self._exported - fleet.services.keys():
            self._export(gone, None)
        snapshots = await self._sources.look(fleet.services.values(), at=context.wall().timestamp())
        for name, snapshot in snapshots.items():
            if snapshot.error is not None:
                context.metrics.prometheus_errors.labels(source=name or "default", kind="Failed").inc()
                logger.warning("metrics not available", extra={"source": name, "error": snapshot.error.why})
                self._health.source_failed(name, at=context.wall())
        self._adopting = Adopting(fleet.services, cluster=context.cluster)
        await self._adopting.read_all()
        # Last before the decisions, so that a switch flipped during a slow look counts.
        await self._limit()
        with context.metrics.tick_duration.time():
            await self._each(fleet, snapshots)
        classes: dict[str, int] = {}
        for diagnosis in self._memories.classes():
            classes[diagnosis] = classes.get(diagnosis, 0) + 1
        context.metrics.set_services(classes)
        context.metrics.blind_ticks.inc(classes.get(DiagnosisClass.METRICS_BLIND.value, 0))
        services = (entry.service for entry in context.registry.services.views().values())
        statuses = (service.status for service in services if isinstance(service, VLLMService))
        context.metrics.set_statuses(statuses, now=context.wall())
        context.metrics.ticks.labels(outcome="Done").inc()
        self._health.looked(took=context.wall() - started, now=context.wall())

    async def _limit(self) -> None:
        limits = await current_limits(self._context.settings, self._context.cluster)
        if limits != self._limits:
            ceiling, why = limits.ceiling.value, limits.why or "no limits"
            logger.warning("limits changed", extra={"ceiling": ceiling, "kill": limits.kill, "why": why})
        self._limits = limits

    async def _each(self, fleet: RegistrySnapshot, snapshots: Mapping[str, FleetSnapshot]) -> None:
        settings = self._context.settings
        queue = self._fleet().why(settings=settings)
        waiting: dict[str, _Decided] = {}
        for count, (key, entry) in enumerate(fleet.services.items()):
            if count % 50 == 0:
                # A long tick must not look like a hung one, and the watches and the lease must breathe.
                self._context.heartbeat.beat()
                await asyncio.sleep(0)
            async with self._isolated(key, entry):
                decided = await self._one(key, entry, queue=queue, fleet=fleet, snapshots=snapshots)
                if decided is not None and decided.decision.asks is not None:
                    waiting[entry.uid] = decided
                elif decided is not None:
                    await self._carry_out(decided, fleet=fleet, snapshots=snapshots)
        # Only now is it known who all would begin, and which changes have ended in this tick.
        asking = [each.decision.asks for each in waiting.values() if each.decision.asks is not None]
        begin = self._fleet().begin(asking, settings=settings)
        for decided in waiting.values():
            async with self._isolated(decided.key, decided.entry):
                if decided.entry.uid in begin:
                    inputs = replace(decided.inputs, queue="")
                    decided = replace(decided, inputs=inputs, decision=self._decide(inputs))
                await self._carry_out(decided, fleet=fleet, snapshots=snapshots)

    def _fleet(self) -> Fleet:
        entries = self._context.registry.services.views().values()
        return fleet_of((entry.service for entry in entries), now=self._context.wall())

    @asynccontextmanager
    async def _isolated(self, key: Key, entry: ServiceEntry) -> AsyncIterator[None]:
        try:
            yield
        except NotFound:
            self._context.registry.services.evict(key, uid=entry.uid)
        except ClusterError as error:
            logger.warning("service not handled", extra={"service": "/".join(key), "error": str(error)})
            if isinstance(error, Unavailable):
                self._health.api_failed(entry.uid, at=self._context.wall())
        except Exception:
            # A poisoned object is reported on itself and never stops the others.
            self._context.metrics.ticks.labels(outcome="Failed").inc()
            logger.exception("service failed", extra={"service": "/".join(key)})
            with suppress(Exception):  # the same defect may be in the way of saying so
                await self._status_writer.outbox.say(FAILED, about=entry)

    async def _one(
        self,
        key: Key,
        entry: ServiceEntry,
        *,
        queue: str,
        fleet: RegistrySnapshot,
        snapshots: Mapping[str, FleetSnapshot],
    ) -> "_Decided | None":
        """Look at one service and decide; None when that was all. `queue`: what is told to who would begin a change."""
        service = entry.service
        if service.metadata.deleting:
            return None
        if isinstance(service, InvalidService):
            await self._keep_safe(key, entry, service, fleet=fleet, snapshots=snapshots)
            return None
        adopted = await self._adopted(entry, service)
        if isinstance(adopted, Unadoptable):
            return None
        await self._status_writer.catch_up(entry, service.status)
        inputs = await self._inputs(key, service, fleet=fleet, snapshots=snapshots, adopted=adopted)
        inputs = replace(inputs, queue=queue)
        decision = self._decide(inputs)
        if self._free_gpus.is_due(inputs.now) and may_need_gpus(decision, inputs):
            await self._free_gpus.look(inputs.now)
            inputs = replace(inputs, free_gpus=self._free_gpus.of(inputs.service, inputs.pod_names, now=inputs.now))
            decision = self._decide(inputs)
        return _Decided(key=key, entry=entry, service=service, adopted=adopted, inputs=inputs, decision=decision)

    async def _carry_out(
        self, decided: "_Decided", *, fleet: RegistrySnapshot, snapshots: Mapping[str, FleetSnapshot]
    ) -> None:
        """Persist a decision, announce it, and make the workload follow it."""
        key, decision, uid, adopted = decided.key, decided.decision, decided.entry.uid, decided.adopted
        try:
            service, entry = await self._status_writer.persist(
                decided.entry, decided.service, decision.status, ended=decision.ended
            )
        except Conflict:
            # Someone wrote the object since our watch saw it: decide again from what the API server has now.
            fresh = await self._status_writer.read(key)
            if not isinstance(fresh.service, VLLMService):
                return
            again = await self._adopted(fresh, fresh.service)
            if isinstance(again, Unadoptable):
                return
            adopted = again
            inputs = await self._inputs(key, fresh.service, fleet=fleet, snapshots=snapshots, adopted=adopted)
            decision = self._decide(replace(inputs, queue=decided.inputs.queue))
            service, entry = await self._status_writer.persist(
                fresh, fresh.service, decision.status, ended=decision.ended
            )
        self._memories.put(entry.uid, decision.history)
        self._export(key, decision.desired)

        async def unchanged() -> bool:
            # A leader whose watch lags must not undo what was done since: the next tick decides on what there is (T04).
            return await self._status_writer.is_unchanged(key, entry)

        try:
            if adopted is None:
                await self._workload_writer.follow(
                    service, decision.status, fleet=fleet, memories=self._memories, unchanged=unchanged
                )
            elif adopted.differs(decision.status) and await unchanged():
                await adopted.follow(decision.status, cluster=self._context.cluster, epoch=self._context.election.epoch)
        except Refused as error:
            reason = Reason.FORBIDDEN if error.status == FORBIDDEN else Reason.INVALID_SPEC
            self._memories.refused(service, Refusal(reason, str(error)))
            raise
        self._memories.accepted(uid)

    def _decide(self, inputs: Inputs) -> Decision:
        with self._context.metrics.deciding():
            return decide(inputs)

    async def _adopted(self, entry: ServiceEntry, service: VLLMService) -> Adopted | Unadoptable | None:
        """What is known of the Deployment that a service names; None where it has one of our own."""
        found = await self._adopting.of(service)
        if isinstance(found, Unadoptable):
            status, ended = not_adopted(service, found, now=self._context.wall())
            await self._status_writer.persist(entry, service, status, ended=ended)
        return found

    def _export(self, key: Key, desired: int | None) -> None:
        metrics = self._context.metrics
        if desired is not None:
            metrics.desired_replicas.labels(namespace=key.namespace, name=key.name).set(desired)
            self._exported.add(key)
        elif key in self._exported:
            metrics.forget_service(key.namespace, key.name)
            self._exported.discard(key)

    async def _inputs(
        self,
        key: Key,
        service: VLLMService,
        *,
        fleet: RegistrySnapshot,
        snapshots: Mapping[str, FleetSnapshot],
        adopted: Adopted | None,
        unreadable: bool = False,
    ) -> Inputs:
        context = self._context
        everything, deployment = fleet.pods_of(key), fleet.deployments.get(key)
        pods = own_pods(everything)
        if adopted is not None:
            service, pods, deployment = adopted.service, adopted.pods, adopted.deployment
        waiting = self._status_writer.outbox.waiting(service.metadata.uid, service.status)
        service = replace(service, status=remembering(service.status, waiting))
        interference = None
        if adopted is None and not unreadable:
            interference = interference_of(deployment, asked_for(service, service.status, deployment))
        elif adopted is not None:
            everything = pods
        now = context.wall()
        warm_up = service.spec.tuning.strategy.warm_up
        starts = await pods_view(pods, warm_up=warm_up, cluster=context.cluster, now=now)
        snapshot = self._sources.of(service, snapshots)
        observation = observed(snapshot, pods, now=now, starts=starts)
        variants = await variants_of(
            service.status.active_change,
            deployments=fleet.deployments_of(key),
            pods=everything,
            snapshot=snapshot,
            warm_up=warm_up,
            cluster=context.cluster,
            now=now,
        )
        names = tuple(pod.name for pod in pods)
        source = service.spec.prometheus.source if service.spec.prometheus is not None else ""
        return Inputs(
            service=service,
            observation=observation,
            rollout=rollout_of(deployment, pods, starts=starts, interference=interference),
            variants=variants,
            verification=await verification_of(
                service,
                everything,
                cluster=context.cluster,
                observation=variants.canary.observation if variants.canary is not None else observation,
            ),
            history=self._memories.of(service),
            hash_of=hashes_of(service, deployment) if adopted is None else adopted.hash_of,
            hash_version=RENDERING_VERSION,
            paused=is_paused(service),
            approved=approved_id(service, limits=self._limits),
            limits=self._limits,
            trouble=self._health.trouble(service.metadata.uid, source=source, services=len(fleet.services), now=now),
            now=now,
            watching_since=self._watching_since or now,
            epoch=context.election.epoch,
            refresh_due=self._refresh_slots is not None and self._refresh_slots.has(service.metadata.uid),
            pods=deployment.current_replicas if deployment is not None else 0,
            pod_names=names,
            free_gpus=self._free_gpus.of(service, names, now=now),
            selector=pod_selector(service.metadata.name) if adopted is None else adopted.selector,
            adoption=None if adopted is None else adopted.adoption,
            refusal=self._memories.refusal(service),
            catalogue=context.settings.catalogue,
            interference=interference,
            runs=knobs_of(deployment) if interference is not None else None,
            unreadable=unreadable,
            scaled_by=deployment.scaled_by if deployment is not None and adopted is None else "",
        )

    async def _keep_safe(
        self,
        key: Key,
        entry: ServiceEntry,
        invalid_one: InvalidService,
        *,
        fleet: RegistrySnapshot,
        snapshots: Mapping[str, FleetSnapshot],
    ) -> None:
        """Bring a change to safety whose spec cannot be read any more, and say on the object what cannot be read."""
        if invalid_one.status is None:
            await self._status_writer.report_unreadable(entry, invalid_one)
            return
        service = VLLMService(metadata=invalid_one.metadata, spec=invalid_one.spec, status=invalid_one.status)
        await self._status_writer.catch_up(entry, service.status)
        found = await self._adopting.of(service)
        adopted = found if isinstance(found, Adopted) else None
        inputs = await self._inputs(key, service, fleet=fleet, snapshots=snapshots, adopted=adopted, unreadable=True)
        decision = keep_safe(inputs)
        after = invalid(invalid_one, decision.status, ended=decision.ended, now=inputs.now)
        _, written = await self._status_writer.persist(entry, service, after, ended=decision.ended)
        self._memories.put(entry.uid, decision.history)

        async def unchanged() -> bool:
            return await self._status_writer.is_unchanged(key, written)

        change = after.active_change
        if adopted is None:
            await self._workload_writer.undo(service, after, fleet=fleet, unchanged=unchanged)
            return
        undoing = change is not None and change.state is ChangeState.ROLLING_BACK
        if undoing and adopted.differs(after) and await unchanged():
            await adopted.follow(after, cluster=self._context.cluster, epoch=self._context.election.epoch)
