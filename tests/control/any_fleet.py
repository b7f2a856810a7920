"""A random story: whatever users, engines, clusters, clocks and crashes do to the real fleet loop and its world.

Every status that is written on the way, and every moment between two ticks, is held against I1 to I12
(`tests/invariants`); at the end all faults are lifted, and what was under way must come to an end.
`test_any_fleet.py` plays a fixed selection of stories, `make soak` goes on with random ones.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.api.cases import changed
from tests.builders import no_answer
from tests.control.cluster_model import Body, Killed, Load, service_of
from tests.control.desk import SCALED, SPEC
from tests.control.loop_bed import Bed, bed, queueing, service_body, slow_beyond_64
from typing_extensions import override

from vllm_autotuner.api.annotations import APPROVE, PAUSE
from vllm_autotuner.api.service import InvalidService, parse_service
from vllm_autotuner.cluster.errors import ClusterError, Conflict, Refused, Unavailable

__all__ = ["STEPS_OF_A_STORY", "AnyFleet"]

STEPS_OF_A_STORY: Final = 50
"""Long enough for several changes, each with a fate of its own; a failure among them is still shrunk in minutes."""

EDITS: Final[tuple[Mapping[str, Any], ...]] = (
    {"tuning.mode": "Automatic"},
    {"tuning.mode": "Approve"},
    {"tuning.mode": "Recommend"},
    {"tuning.mode": "Off"},
    {"engine.maxNumSeqs": 64},
    {"engine.maxNumSeqs": 40},
    {"engine.maxNumSeqs": ...},
    {"engine.maxModelLen": 4096},
    {"engine.image": "vllm/vllm-openai:v0.33.0"},
    {"engine.image": "vllm/vllm-openai:v0.32.0"},
    {"tuning.maxNumSeqs": {"min": 16, "max": 256}},
    {"tuning.maxNumSeqs": {"min": 40, "max": 70}},
    {"tuning.maxNumSeqs": {"min": 1, "max": 64}},
    {"tuning.maxNumSeqs": ...},
    {"paused": True},
    {"paused": ...},
    {"tuning.cooldown": "1m"},
    {"tuning.budget": {"changesPerDay": 9}},
    {"objectives.tpot.target": "20ms"},
    {"replicas": ..., "scaling": {"minReplicas": 2, "maxReplicas": 3}},
    {"scaling": ..., "replicas": 2},
    {"replicas": -1},
)
CALM: Final[Mapping[str, Any]] = {
    "engine": SPEC["engine"],
    "tuning": SPEC["tuning"],
    "objectives": SPEC["objectives"],
    "paused": ...,
}
"""The spec that every chapter begins with, whatever became of it."""
MODES: Final = ("Automatic", "Automatic", "Automatic", "Approve", "Approve", "Recommend", "Off")
LOADS: Final[Mapping[str, Callable[[int], Load]]] = {
    "more seats help": queueing,
    "more seats harm": slow_beyond_64,
    "more seats change nothing": lambda seats: queueing(64),
    "idle": lambda seats: Load(running=0.0, kv=0.0),
    "healthy": lambda seats: Load(),
    "overloaded": lambda seats: Load(running=39.0, waiting=9.0, ttft=6.0),
}
REFUSALS: Final[Mapping[str, ClusterError]] = {
    "no answer": Unavailable("no answer", reason="NoAnswer"),
    "a conflict": Conflict("changed", reason="Conflict", status=409),
    "a right is missing": Refused("forbidden", reason="Forbidden", status=403),
    "a quota": Refused("exceeded quota", reason="Forbidden", status=422),
}
VERBS: Final = ("status", "event", "apply Deployment", "apply Service", "read", "")
JUMPS: Final = (
    timedelta(minutes=3),
    timedelta(minutes=11),
    timedelta(hours=2),
    timedelta(hours=7),
    timedelta(days=1),
    timedelta(days=15),
    -timedelta(minutes=5),
    -timedelta(hours=2),
)
LIMITS_MAP: Final = ("ConfigMap", "limits")
LIMITS: Final[tuple[Mapping[str, str] | None, ...]] = (
    None,
    {"killSwitch": "true"},
    {"modeCeiling": "Approve"},
    {"modeCeiling": "Recommend"},
    {"modeCeiling": "Automtic"},
)
ENDS_WITHIN: Final = 60
"""Ticks of half a minute after which nothing is under way any more: the longest deadline (20 min to start pods) and
the way back, with half as much to spare."""


@dataclass(slots=True)
class Refusing:
    """The API server refuses the next requests of one kind."""

    verb: str
    error: ClusterError
    left: int

    def __call__(self, verb: str, name: str) -> Exception | None:
        if self.left <= 0 or not verb.startswith(self.verb):
            return None
        self.left -= 1
        return self.error


class AnyFleet(RuleBasedStateMachine):
    """One service, or two, with their users, their cluster and their operator."""

    bed: Bed
    size: Mapping[str, Any]
    stories: ClassVar = 0
    """That came to their end, each with its STEPS_OF_A_STORY steps."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.ticks = 0

    @initialize(
        replicas=st.sampled_from([None, 1, 1, 1, 2, 3]),
        seats=st.sampled_from([64, ...]),
        second=st.sampled_from([False, False, False, False, True]),
    )
    def begin(self, replicas: int | None, seats: Any, second: bool) -> None:
        self.size = {"scaling": ..., "replicas": replicas} if replicas is not None else dict(SCALED)
        spec = {**self.size, "engine.maxNumSeqs": seats}
        self.bed = bed(*(("chat", "other") if second else ("chat",)), spec=spec, load=queueing)
        self.bed.limits_configmap = LIMITS_MAP[1]
        self.bed.start()

    @rule(count=st.sampled_from([1, 1, 1, 2]))
    def time_passes(self, count: int) -> None:
        for _ in range(count):
            self.tick()

    @rule(
        later=st.sampled_from([timedelta(hours=7), timedelta(days=1), timedelta(days=15)]),
        mode=st.sampled_from(MODES),
        load=st.sampled_from(sorted(LOADS)),
        far=st.integers(3, 12),
    )
    def a_change_comes_some_way(self, later: timedelta, mode: str, load: str, far: int) -> None:
        """All is as it was in the beginning, seats run out, a change comes some way; what happens to it comes next."""
        self.lift()
        self.edit({**CALM, **self.size, "tuning.mode": mode})
        self.bed.api.load = queueing
        self.bed.api.now += later
        for _ in range(3):
            self.tick()
        self.approve("chat")
        self.bed.api.load = LOADS[load]
        for _ in range(far):
            self.tick()

    # What users do

    @rule(change=st.sampled_from(EDITS))
    def the_user_edits(self, change: Mapping[str, Any]) -> None:
        self.edit(change)

    @rule(word=st.sampled_from(["true", "false", "ture", None]))
    def the_user_pauses(self, word: str | None) -> None:
        self.annotate("chat", PAUSE, word)

    @rule(name=st.sampled_from(["chat", "other"]), right=st.sampled_from([True, True, False]))
    def the_user_approves(self, name: str, right: bool) -> None:
        if right:
            self.approve(name)
        else:
            self.annotate(name, APPROVE, "deadbeef")

    @rule(kind=st.sampled_from(["rollback", "retry"]), nonce=st.sampled_from(["1", "2", "3"]))
    def the_user_asks(self, kind: str, nonce: str) -> None:
        self.annotate("chat", f"vllm-autotuner.dev/{kind}", nonce)

    @rule()
    def the_user_deletes_it_and_makes_it_anew(self) -> None:
        api = self.bed.api
        gone = api.objects.pop(("VLLMService", "chat"))
        for key, child in list(api.objects.items()):
            if key[0] == "Deployment" and service_of(child) == "chat":
                del api.objects[key]
                api.pods = [pod for pod in api.pods if pod.deployment != key[1]]
        body = service_body("chat")
        body["metadata"]["uid"] = f"{gone['metadata']['uid']}+"
        api.create(body)

    @rule(limits=st.sampled_from(LIMITS))
    def the_admin_limits(self, limits: Mapping[str, str] | None) -> None:
        self.bed.api.objects.pop(LIMITS_MAP, None)
        if limits is not None:
            metadata = {"namespace": "default", "name": LIMITS_MAP[1]}
            self.bed.api.objects[LIMITS_MAP] = {"kind": "ConfigMap", "metadata": metadata, "data": dict(limits)}

    # What engines, pods and metrics do

    @rule(load=st.sampled_from(sorted(LOADS)))
    def the_load_changes(self, load: str) -> None:
        self.bed.api.load = LOADS[load]

    @rule(silent=st.booleans())
    def metrics_go_and_come(self, silent: bool) -> None:
        self.bed.api.silent = no_answer() if silent else None

    @rule(limit=st.sampled_from([64, 100, 10_000]))
    def engines_beyond_some_seats_crash(self, limit: int) -> None:
        self.bed.api.crashes = lambda seats: seats > limit

    @rule(says=st.sampled_from(["the truth", "another value", "nothing"]))
    def engines_report(self, says: str) -> None:
        found: dict[str, Callable[[int], int | None]] = {
            "the truth": lambda seats: seats,
            "another value": lambda seats: 64,
            "nothing": lambda seats: None,
        }
        self.bed.api.reports = found[says]

    @rule(devices=st.sampled_from([1, 3, 4, 1000]))
    def gpus_are_short(self, devices: int) -> None:
        self.bed.api.devices = devices

    @precondition(lambda self: self.bed.api.pods)
    @rule(data=st.data(), how=st.sampled_from(["gone", "crashed", "not ready"]))
    def a_pod_fails(self, data: st.DataObject, how: str) -> None:
        api = self.bed.api
        pod = api.pods[data.draw(st.integers(0, len(api.pods) - 1))]
        self.bed.harmed = True
        if how == "gone":
            api.pods.remove(pod)
        pod.ready_since, pod.crashed = None, how == "crashed"
        pod.created = api.now

    @precondition(lambda self: ("Deployment", "chat") in self.bed.api.objects)
    @rule(replicas=st.sampled_from([None, 5]))
    def somebody_writes_the_deployment(self, replicas: int | None) -> None:
        """Replicas by hand, or the template taken back to other arguments."""
        api = self.bed.api
        body = self.bed.deployment()
        spec = dict(body["spec"])
        if replicas is not None:
            spec["replicas"] = replicas
        self.bed.harmed = True
        api.objects["Deployment", "chat"] = {**body, "spec": spec}

    # What becomes of the operator and its requests

    @rule()
    def the_operator_restarts(self) -> None:
        self.bed.restart()

    @rule(leads=st.booleans())
    def the_lease_moves(self, leads: bool) -> None:
        if leads and not self.bed.leader.is_leader:
            self.bed.leader.epoch += 1
        self.bed.leader.is_leader = leads

    @rule(after=st.integers(0, 6), when=st.sampled_from(["before", "after"]))
    def the_operator_is_killed(self, after: int, when: str) -> None:
        self.bed.api.kill = (self.bed.api.point + after, when)
        self.tick()
        self.bed.api.kill = None

    @rule(verb=st.sampled_from(VERBS), error=st.sampled_from(sorted(REFUSALS)), count=st.integers(1, 8))
    def requests_are_refused(self, verb: str, error: str, count: int) -> None:
        self.bed.api.refuses = Refusing(verb, REFUSALS[error], count)
        self.tick()

    @rule(change=st.sampled_from(EDITS))
    def the_user_edits_during_a_write(self, change: Mapping[str, Any]) -> None:
        """The watch has not told of it when the operator writes: a conflict, and another decision."""
        done = False

        def edit(verb: str, name: str) -> None:
            nonlocal done
            if not done and verb == "status":
                done = True
                self.edit(change)

        self.bed.api.refuses = edit
        self.tick()
        self.bed.api.refuses = lambda verb, name: None

    @rule(jump=st.sampled_from(JUMPS))
    def the_clock_jumps(self, jump: timedelta) -> None:
        self.bed.api.now += jump

    @rule(deaf=st.booleans())
    def the_watches_lag(self, deaf: bool) -> None:
        self.bed.deaf = deaf

    @override
    def teardown(self) -> None:
        """Whatever happened: once nothing is in the way, nothing is under way for long."""
        try:
            if hasattr(self, "bed"):
                self.lift()
                self._comes_to_rest()
            AnyFleet.stories += 1
        finally:
            self.runner.close()

    def _comes_to_rest(self) -> None:
        for _ in range(ENDS_WITHIN):
            if not any(self.changes()) and self.bed.undisturbed > 3:
                return
            self.bed.api.now += timedelta(seconds=15)
            self.tick()
        raise AssertionError(f"still under way: {[change for change in self.changes() if change]}")

    def changes(self) -> list[Any]:
        names = [name for kind, name in self.bed.api.objects if kind == "VLLMService"]
        return [self.bed.change(name) for name in names]

    def lift(self) -> None:
        """End every fault; what users want stays."""
        api = self.bed.api
        api.silent, api.kill, api.refuses = None, None, lambda verb, name: None
        api.crashes, api.reports, api.devices = lambda seats: False, lambda seats: seats, 1000
        api.objects.pop(LIMITS_MAP, None)
        self.annotate("chat", PAUSE, None)
        self.edit({"paused": ...})
        if not self.bed.leader.is_leader:
            self.the_lease_moves(leads=True)
        self.bed.deaf = False
        if not any(self.changes()):
            self.bed.harmed = False

    def tick(self) -> None:
        self.ticks += 1
        try:
            self.runner.run(self.bed.tick())
        except Killed:
            self.bed.api.kill = None
            self.bed.restart()
        failed = self.bed.metrics.ticks.labels(outcome="Failed")._value.get()
        assert not failed, "the loop took an exception of ours for a poisoned object: its log has it"

    def edit(self, changes: Mapping[str, Any]) -> None:
        body = self.bed.api.objects["VLLMService", "chat"]
        spec = changed(body["spec"], changes)
        refused = isinstance(parse_service({**body, "spec": spec, "status": {}}), InvalidService)
        # The API server refuses what it knows to be wrong; an older one knows less.
        if not refused or changes == {"replicas": -1}:
            self.bed.api.older_crd = refused
            self.bed.api.edit("chat", lambda found: found.update(spec=spec))

    def annotate(self, name: str, key: str, value: str | None) -> None:
        def change(body: Body) -> None:
            annotations = body["metadata"].setdefault("annotations", {})
            annotations.pop(key, None)
            if value is not None:
                annotations[key] = value

        if ("VLLMService", name) in self.bed.api.objects:
            self.bed.api.edit(name, change)

    def approve(self, name: str) -> None:
        if ("VLLMService", name) in self.bed.api.objects:
            recommendation = self.bed.status(name).recommendation
            if recommendation is not None:
                self.annotate(name, APPROVE, recommendation.id)
