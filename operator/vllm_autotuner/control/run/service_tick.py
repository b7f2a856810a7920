"""One service in one tick: read, decide, write the status, post its Events, and only then apply it to the workload.

If the process is killed between any two steps, the next leader continues from the status: intent is stored before
effect (T01). Apart from `fleet_loop`, which goes from service to service and admits changes from the queue.
Must not: decide anything.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from vllm_autotuner.api.conditions import Reason
from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.api.status import ChangeState
from vllm_autotuner.cluster.errors import FORBIDDEN, Conflict, Refused
from vllm_autotuner.control.decide.inputs import Inputs, OperatorState, Refusal
from vllm_autotuner.control.decide.tick import Decision, begin_at_its_turn, decide, decide_without_spec, may_need_gpus
from vllm_autotuner.control.decide.unreadable_object import invalid, not_adopted
from vllm_autotuner.control.read.adopted import Adopted
from vllm_autotuner.control.read.adopting import Adopting
from vllm_autotuner.control.read.crash_causes import CrashCauses
from vllm_autotuner.control.read.free_gpus import FreeGpuLookup
from vllm_autotuner.control.read.inputs_reader import InputsReader, Look
from vllm_autotuner.control.read.metrics_sources import Sources
from vllm_autotuner.control.read.pod_logs import PodLogs
from vllm_autotuner.control.read.registry import Key, RegistrySnapshot
from vllm_autotuner.control.read.service_memory import ServiceMemory
from vllm_autotuner.control.read.spec_generation import with_current_generation
from vllm_autotuner.control.read.views import ServiceEntry
from vllm_autotuner.control.run.context import ControlContext
from vllm_autotuner.control.write.announcements import abandoned
from vllm_autotuner.control.write.event_outbox import remembering
from vllm_autotuner.control.write.status_writer import StatusWriter
from vllm_autotuner.control.write.workload_writer import WorkloadWriter
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.workload.adoption import Unadoptable

__all__ = ["Apart", "Decided", "Persisted", "ServiceTick"]

Apart: TypeAlias = Callable[[], Awaitable[None]]
"""Decides and writes, all in one, for a service about which there is little to decide. Raises ClusterError."""
OperatorStateOf = Callable[[VLLMService], OperatorState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A service that was read, and what was decided for it. Nothing of it has happened yet."""

    key: Key
    entry: ServiceEntry
    service: VLLMService
    """As it was read; `inputs` may see it otherwise (spec.targetRef)."""
    adopted: Adopted | None
    inputs: Inputs
    decision: Decision
    final: bool = False
    """Decided twice in this tick already, or not to be decided again in it."""

    def without_metrics(self) -> "Decided":
        """The same with nothing that was measured, which is most of its memory; so it is not decided again."""
        seen = self.inputs.observation
        blank = Observation(at=seen.at, window=seen.window, engines=())
        return replace(self, inputs=replace(self.inputs, observation=blank), final=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Persisted:
    """A decision that stands in the status. The workload does not follow it yet."""

    decided: Decided
    """Another one than was to be persisted, where the object had changed."""
    service: VLLMService
    entry: ServiceEntry
    """As it was written."""


class ServiceTick:
    """Handles single services, and keeps the leader's memory of them. Created anew when this process becomes leader."""

    def __init__(
        self, context: ControlContext, *, sources: Sources, free_gpus: FreeGpuLookup, wrote: Callable[[str], None]
    ) -> None:
        """`wrote` is told the uid of each service whose status was written."""
        self._context = context
        self._free_gpus = free_gpus
        self.memory = ServiceMemory()
        self.status_writer = StatusWriter(
            cluster=context.cluster,
            registry=context.registry,
            wall=context.wall,
            count_ending=lambda change, outcome: context.metrics.count_ending(change, outcome, now=context.wall()),
            wrote=wrote,
        )
        self._workload_writer = WorkloadWriter(
            cluster=context.cluster,
            registry=context.registry,
            epoch=lambda: context.election.epoch,
            count_orphan=context.metrics.orphans_removed.inc,
        )
        self._logs = PodLogs(context.cluster, monotonic=context.monotonic)
        self._causes = CrashCauses(self._logs)
        self._reader = InputsReader(
            logs=self._logs, causes=self._causes, sources=sources, free_gpus=free_gpus, memory=self.memory
        )

    def keep_only(self, uids: set[str]) -> None:
        """Forget what no longer exists."""
        self.memory.keep_only(uids)
        self.status_writer.keep_only(uids)

    async def note_deletion(self, entry: ServiceEntry) -> None:
        """Say what a deleted service leaves behind, where that is a value under test."""
        if (event := abandoned(entry.service)) is not None:
            await self.status_writer.outbox.say(event, about=entry)

    async def read_logs(self, fleet: RegistrySnapshot, *, adopting: Adopting) -> None:
        """Look up why engines of the fleet crashed, before any decision: all at once, and within a tick's budget."""
        self._logs.begin_tick()
        await self._causes.look([*map(fleet.pods_of, fleet.services), *adopting.pods()])

    async def decide(
        self, key: Key, entry: ServiceEntry, *, look: Look, adopting: Adopting, operator_of: OperatorStateOf
    ) -> Decided | Apart | None:
        """Read one service and decide; None where there is nothing to do. Writes nothing. Raises ClusterError."""
        service = entry.service
        if service.metadata.deleting or self._is_left_to_a_writer(service):
            return None
        if isinstance(service, InvalidService):
            return partial(
                self._handle_unreadable, entry, service, look=look, adopting=adopting, operator_of=operator_of
            )
        adopted = await adopting.of(service)
        if isinstance(adopted, Unadoptable):
            return partial(self._tell_why_not, entry, service, adopted, look=replace(look, snapshots={}))
        inputs = await self._read(service, look=look, adopted=adopted, operator=operator_of(service))
        decision, final = self._decide(inputs), False
        if self._free_gpus.is_due(inputs.now) and may_need_gpus(decision, inputs):
            # Once more with the free GPUs, which are listed only where a class is named that they may matter for.
            await self._free_gpus.look(inputs.now)
            free_gpus = self._free_gpus.of(inputs.service, inputs.workload.pod_names, now=inputs.now)
            inputs = replace(inputs, free_gpus=free_gpus)
            decision, final = self._decide(inputs), True
        return Decided(
            key=key, entry=entry, service=service, adopted=adopted, inputs=inputs, decision=decision, final=final
        )

    def begin_at_its_turn(self, decided: Decided) -> Decided:
        """The same service once it is its turn to begin a change."""
        decision = begin_at_its_turn(decided.decision, decided.inputs)
        # The turn outlives a conflict: what is decided again from the API server begins the change as well.
        inputs = replace(decided.inputs, operator=replace(decided.inputs.operator, queue=""))
        return replace(decided, inputs=inputs, decision=decision)

    async def persist(self, decided: Decided, *, look: Look, adopting: Adopting) -> Persisted | None:
        """Persist a decision and announce it; return what was persisted.

        None when the object changed meanwhile and cannot be decided on any more. Raises ClusterError; Conflict when the
        object changed meanwhile and was decided twice already.
        """
        # Not where it is decided: each post is a request, and what the next service needs must not wait for it.
        await self.status_writer.catch_up(decided.entry, decided.service.status)
        decided = self._caught_up(decided)
        try:
            service, entry = await self.status_writer.persist(
                decided.entry, decided.service, decided.decision.status, ended=decided.decision.ended
            )
        except Conflict:
            if decided.final:
                raise  # the next tick decides from what it reads then
            again = await self._decide_from_the_api(decided, look=look, adopting=adopting)
            if again is None:
                return None
            decided = again
            service, entry = await self.status_writer.persist(
                decided.entry, decided.service, decided.decision.status, ended=decided.decision.ended
            )
        self.memory.put(entry.uid, decided.decision.history)
        return Persisted(decided=decided, service=service, entry=entry)

    def _caught_up(self, decided: Decided) -> Decided:
        """The same decision, whose status remembers the Events that still wait: others were posted since."""
        waiting = self.status_writer.outbox.waiting(decided.entry.uid, decided.service.status)
        status = remembering(decided.decision.status, waiting)
        if status is decided.decision.status:
            return decided
        return replace(decided, decision=replace(decided.decision, status=status))

    async def _decide_from_the_api(self, decided: Decided, *, look: Look, adopting: Adopting) -> Decided | None:
        """Decide again, once, because the object was written since the watch saw it. None when it cannot be decided."""
        fresh = await self.status_writer.read(decided.entry)
        if not isinstance(fresh.service, VLLMService):
            return None
        adopted = await adopting.of(fresh.service)
        if isinstance(adopted, Unadoptable):
            await self._tell_why_not(fresh, fresh.service, adopted, look=look)
            return None
        inputs = await self._read(fresh.service, look=look, adopted=adopted, operator=decided.inputs.operator)
        return Decided(
            key=decided.key,
            entry=fresh,
            service=fresh.service,
            adopted=adopted,
            inputs=inputs,
            decision=self._decide(inputs),
            final=True,
        )

    async def follow(self, persisted: Persisted, *, look: Look) -> None:
        """Make the workload what the written status says. Raises ClusterError."""
        decided, service, entry = persisted.decided, persisted.service, persisted.entry
        status, adopted = decided.decision.status, decided.adopted

        unchanged = partial(self._may_follow, entry)
        try:
            if adopted is None:
                await self._workload_writer.follow(
                    service,
                    status,
                    fleet=look.fleet,
                    memory=self.memory,
                    unchanged=unchanged,
                    now=decided.inputs.now,
                    idle=decided.inputs.operator.refresh_due,
                )
            else:
                await self._workload_writer.tidy(service, status, fleet=look.fleet, unchanged=unchanged)
                if adopted.differs(status) and await unchanged():
                    await adopted.follow(status, cluster=self._context.cluster, epoch=self._context.election.epoch)
        except Refused as error:
            reason = Reason.FORBIDDEN if error.status == FORBIDDEN else Reason.INVALID_SPEC
            self.memory.refused(service, Refusal(reason, str(error)))
            raise
        self.memory.accepted(entry.uid)

    def _is_left_to_a_writer(self, service: VLLMService | InvalidService) -> bool:
        """Whether a change is in progress, and only an operator that writes can take it further."""
        change = service.status.active_change if service.status is not None else None
        return change is not None and not self._context.cluster.writes

    async def _may_follow(self, entry: ServiceEntry) -> bool:
        """Whether the status is stored, and still the one to follow."""
        # A leader with a lagging watch must not undo newer writes: the next tick decides on fresh state (T04).
        return self._context.cluster.writes and await self.status_writer.is_unchanged(entry)

    def _decide(self, inputs: Inputs) -> Decision:
        with self._context.metrics.deciding():
            return decide(inputs)

    async def _read(
        self,
        service: VLLMService,
        *,
        look: Look,
        adopted: Adopted | None,
        operator: OperatorState,
        unreadable: bool = False,
    ) -> Inputs:
        seen = replace(service, status=with_current_generation(service)) if adopted is None else adopted.service
        waiting = self.status_writer.outbox.waiting(seen.metadata.uid, seen.status)
        seen = replace(seen, status=remembering(seen.status, waiting))
        now = self._context.wall()
        return await self._reader.read(
            seen, look=look, adopted=adopted, operator=operator, now=now, unreadable=unreadable
        )

    async def _tell_why_not(self, entry: ServiceEntry, service: VLLMService, found: Unadoptable, *, look: Look) -> None:
        """Say on the object why the Deployment that it names is not adopted."""
        status, ended = not_adopted(service, found, now=self._context.wall())
        service, written = await self.status_writer.persist(entry, service, status, ended=ended)
        unchanged = partial(self._may_follow, written)
        await self._workload_writer.tidy(service, status, fleet=look.fleet, unchanged=unchanged)

    async def _handle_unreadable(
        self,
        entry: ServiceEntry,
        unreadable: InvalidService,
        *,
        look: Look,
        adopting: Adopting,
        operator_of: OperatorStateOf,
    ) -> None:
        """Bring a change to safety whose spec cannot be read any more, and say on the object what cannot be read."""
        if unreadable.status is None:
            await self.status_writer.report_unreadable(entry, unreadable)
            return
        service = VLLMService(metadata=unreadable.metadata, spec=unreadable.spec, status=unreadable.status)
        await self.status_writer.catch_up(entry, service.status)
        found = await adopting.of(service)
        adopted = found if isinstance(found, Adopted) else None
        inputs = await self._read(service, look=look, adopted=adopted, operator=operator_of(service), unreadable=True)
        decision = decide_without_spec(inputs)
        after = invalid(unreadable, decision.status, ended=decision.ended, now=inputs.now)
        _, written = await self.status_writer.persist(entry, service, after, ended=decision.ended)
        self.memory.put(entry.uid, decision.history)

        unchanged = partial(self._may_follow, written)
        if adopted is None:
            await self._workload_writer.undo(service, after, fleet=look.fleet, unchanged=unchanged)
            return
        await self._workload_writer.tidy(service, after, fleet=look.fleet, unchanged=unchanged)
        change = after.active_change
        undoing = change is not None and change.state is ChangeState.ROLLING_BACK
        if undoing and adopted.differs(after) and await unchanged():
            await adopted.follow(after, cluster=self._context.cluster, epoch=self._context.election.epoch)
