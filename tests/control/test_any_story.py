"""Whatever users, engines, clusters and clocks do: what must hold after every tick."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.control.desk import (
    BLIND,
    CAPPED,
    DEFERRED,
    HARMED,
    HEALTHY,
    HELPED,
    IDLE,
    NO_SERIES,
    OVERLOADED,
    SPEC,
    UNCLEAR,
    WEDGED,
    Desk,
    desk,
    scaled,
)
from tests.examples import examples

from vllm_autotuner.api.annotations import APPROVE, PAUSE
from vllm_autotuner.api.conditions import ConditionType
from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.service import InvalidService
from vllm_autotuner.api.spec import Mode
from vllm_autotuner.api.status import ActiveChange, Outcome, VLLMServiceStatus
from vllm_autotuner.change.edges import EDGES
from vllm_autotuner.change.effective import effective_knobs, settled_knobs, spec_knobs
from vllm_autotuner.change.failure_memory import failed_values
from vllm_autotuner.change.verification import Confirmed, NotEffective, Undecided, Verification
from vllm_autotuner.control.decide.annotation_commands import is_paused
from vllm_autotuner.control.decide.inputs import wanted_replicas
from vllm_autotuner.guardrails.circuit_breaker import circuit_is_open
from vllm_autotuner.observation.observation import Observation

SEEN = {
    "capped": CAPPED,
    "helped": HELPED,
    "harmed": HARMED,
    "overloaded": OVERLOADED,
    "healthy": HEALTHY,
    "idle": IDLE,
    "wedged": WEDGED,
    "deferred": DEFERRED,
    "blind": BLIND,
    "not scraped": NO_SERIES,
    "unclear": UNCLEAR,
}
EDITS: list[dict[str, Any]] = [
    {"tuning__mode": "Automatic"},
    {"tuning__mode": "Approve"},
    {"tuning__mode": "Recommend"},
    {"tuning__mode": "Off"},
    {"engine__maxNumSeqs": 64},
    {"engine__maxNumSeqs": 40},
    {"engine__maxNumSeqs": ...},
    {"engine__maxModelLen": 4096},
    {"engine__image": "vllm/vllm-openai:v0.33.0"},
    {"tuning__maxNumSeqs": {"min": 16, "max": 256}},
    {"tuning__maxNumSeqs": {"min": 40, "max": 70}},
    {"tuning__maxNumSeqs": {"min": 1, "max": 64}},
    {"tuning__maxNumSeqs": ...},
    {"paused": True},
    {"paused": ...},
    {"tuning__cooldown": "1m"},
    {"objectives__tpot__target": "20ms"},
    {"replicas": ..., "scaling": {"minReplicas": 2, "maxReplicas": 3}},
    {"scaling": ..., "replicas": 4},
]
BACK_TO_START: dict[str, Any] = {
    "engine": SPEC["engine"],
    "tuning": SPEC["tuning"],
    "objectives": SPEC["objectives"],
    "paused": ...,
    "scaling": ...,
    "replicas": 1,
}
MODES = ["Automatic", "Automatic", "Automatic", "Approve", "Approve", "Recommend", "Off"]
ROLLOUTS: dict[str, dict[str, Any]] = {
    "follows": {},
    "moving": {"settled": False, "rolled_out": False},
    "not there": {"config_hash": None, "settled": False, "rolled_out": False, "ready": 0, "replicas": 0},
    "another": {"config_hash": "edited by hand"},
    "crashed": {"settled": False, "crashed": "OutOfMemory: CUDA out of memory"},
    "unschedulable": {"settled": False, "unschedulable": "0/3 nodes"},
    "gone": {"settled": False, "ready": 0},
}
WITNESSES: dict[str, Verification] = {
    "confirmed": Confirmed("1 pod(s) report it"),
    "not effective": NotEffective("chat-0 reports maxNumSeqs=64"),
    "undecided": Undecided("the log is not readable"),
}


def edits(changes: Mapping[str, Any]) -> "Twist":
    return lambda story: story.edit(changes)


def annotates(value: str) -> "Twist":
    return lambda story: story.desk.annotations.update({PAUSE: value})


def sees(**world: Any) -> "Twist":
    def twist(story: "AnyStory") -> None:
        for _ in range(2):
            story.tick(HELPED, **world)

    return twist


Twist = Callable[["AnyStory"], Any]
TWISTS: dict[str, Twist] = {
    **{f"edit {number}": edits(changes) for number, changes in enumerate(EDITS)},
    **{f"pause {value}": annotates(value) for value in ("true", "false", "ture")},
    **{f"the Deployment: {name}": sees(rollout=name) for name in ROLLOUTS},
    **{f"the engines: {name}": sees(witness=name) for name in WITNESSES},
    "an approval": lambda story: story.approve(),
    "a restart": lambda story: story.desk.restart(),
    "three minutes": lambda story: story.wait(timedelta(minutes=3)),
    "two days": lambda story: story.wait(timedelta(days=2)),
    "the clock jumps back": lambda story: story.jump_back(),
}
LIKELY = [*sorted(TWISTS), *(f"edit {number}" for number in (0, 1, 2, 3, 10, 11) for _ in range(4))]
"""Taking leave back, as a whole or by bounds, is what must never be missed."""
FATES = ["helped", "helped", "harmed", "harmed", "capped", "blind", "overloaded"]


class AnyStory(RuleBasedStateMachine):
    """One service, its users and its cluster."""

    desk: Desk

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.begun: list[str] = []
        self.over: list[str] = []
        self.jumped_back = False

    @initialize(scales=st.booleans(), seats=st.sampled_from([64, ...]))
    def create(self, scales: bool, seats: Any) -> None:
        self.desk = (scaled if scales else desk)(engine__maxNumSeqs=seats)

    @rule(
        later=st.sampled_from([timedelta(hours=7), timedelta(days=1), timedelta(days=15)]),
        mode=st.sampled_from(MODES),
        paused=st.sampled_from([False, False, False, True]),
        approves=st.booleans(),
        fate=st.sampled_from(FATES),
        far=st.integers(1, 12),
        twist=st.sampled_from(LIKELY),
        aftermath=st.sampled_from(FATES),
        long=st.integers(1, 6),
    )
    def chapter(
        self,
        later: timedelta,
        mode: str,
        paused: bool,
        approves: bool,
        fate: str,
        far: int,
        twist: str,
        aftermath: str,
        long: int,
    ) -> None:
        """All is as it was in the beginning, seats run out, a change comes some way; then something happens to it."""
        self.edit(BACK_TO_START | {"tuning__mode": mode})
        self.desk.annotations.clear()
        if paused:
            self.desk.annotations[PAUSE] = "true"
        self.desk.now += later
        for _ in range(3):
            self.tick(CAPPED)
            if approves:
                self.approve()
        for _ in range(far):
            self.tick(SEEN[fate])
        TWISTS[twist](self)
        for _ in range(long):
            self.tick(SEEN[aftermath])

    @rule(
        seen=st.sampled_from(sorted(SEEN)),
        rollout=st.sampled_from(["follows", *ROLLOUTS]),
        witness=st.sampled_from(["confirmed", *WITNESSES]),
        twist=st.sampled_from(LIKELY),
    )
    def anything(self, seen: str, rollout: str, witness: str, twist: str) -> None:
        TWISTS[twist](self)
        self.tick(SEEN[seen], rollout=rollout, witness=witness)

    def edit(self, changes: Mapping[str, Any]) -> None:
        spec, generation = self.desk.spec, self.desk.generation
        self.desk.edit(**changes)
        if isinstance(self.desk.parsed, InvalidService):
            # The API server would have refused it.
            self.desk.spec, self.desk.generation = spec, generation

    def approve(self) -> None:
        recommendation = self.desk.read.recommendation
        if recommendation is not None:
            self.desk.annotations[APPROVE] = recommendation.id

    def jump_back(self) -> None:
        self.desk.now -= timedelta(hours=2)
        self.jumped_back = True

    def wait(self, passed: timedelta) -> None:
        self.desk.now += passed

    def tick(self, seen: Observation, *, rollout: str = "follows", witness: str = "confirmed") -> None:
        found = self.desk
        where = replace(found.rollout(), **ROLLOUTS[rollout])
        service, before = found.service, found.read
        runs = settled_knobs(service.spec, before)
        replicas = wanted_replicas(service, before)
        found.tick(seen, rollout=where, verification=WITNESSES[witness])
        after, spec = found.read, service.spec

        # What the workload runs is what the user wrote, or what his bounds allow.
        knobs, bounds = effective_knobs(spec, after), spec.tuning.max_num_seqs
        if knobs != spec_knobs(spec):
            assert bounds is None or (knobs.max_num_seqs and bounds.min <= knobs.max_num_seqs <= bounds.max)
            assert knobs.updated(max_num_seqs=spec_knobs(spec).max_num_seqs) == spec_knobs(spec)
        count = wanted_replicas(service, after)
        if spec.scaling is None:
            assert count == spec.replicas
        else:
            assert count is not None
            assert spec.scaling.min_replicas <= count <= spec.scaling.max_replicas

        # Without leave nothing moves.
        if spec.tuning.mode in (Mode.OFF, Mode.RECOMMEND):
            assert knobs == runs
            assert count == replicas
        if is_paused(service):
            assert count == replicas
            assert before.active_change is not None or knobs == runs

        self._follow(before.active_change, after.active_change)
        assert [entry.id for entry in after.history] == self.over[-10:]
        if after.active_change is not None and before.active_change is None:
            self._may_begin(after.active_change, before=before)
        assert after.active_change is None or after.recommendation is None
        assert found.is_true(ConditionType.TUNING_IN_PROGRESS) is (after.active_change is not None)
        if after.active_change is not None and where.ready >= (count or 0):
            assert found.is_true(ConditionType.READY) or found.is_true(ConditionType.ROLLBACK_FAILED)
        for one in found.events:
            if one.reason in {f"Change{outcome.value}" for outcome in Outcome}:
                assert one.transition.split("/")[0] in self.over
        endings = [one.transition for one in found.events if one.transition.endswith(tuple(Outcome))]
        assert len(endings) == len(set(endings)) == len(self.over)

    def _follow(self, old: ActiveChange | None, new: ActiveChange | None) -> None:
        if old is not None and new is not None:
            assert (new.id, new.from_, new.to) == (old.id, old.from_, old.to)
            assert new.state is old.state or new.state in EDGES[old.state]
        if old is not None and new is None:
            self.over.append(old.id)
        if new is not None and old is None:
            assert new.deadline is not None
            self.begun.append(new.id)
        assert len(self.begun) == len(self.over) + (new is not None)

    def _may_begin(self, change: ActiveChange, *, before: VLLMServiceStatus) -> None:
        found, spec = self.desk, self.desk.service.spec
        if spec.tuning.mode is Mode.APPROVE:
            standing = before.recommendation
            assert standing is not None
            assert found.annotations.get(APPROVE) == standing.id
            assert change.to_value == standing.recommended
        else:
            assert spec.tuning.mode is Mode.AUTOMATIC
        assert not is_paused(found.service)
        assert (Knob.MAX_NUM_SEQS, str(change.to.max_num_seqs)) not in failed_values(spec, before, now=found.now)
        assert not circuit_is_open(before.circuit, now=found.now)
        rested = before.cooldown_until is None or before.cooldown_until <= found.now
        assert rested or (_was_kept(before) and not spec.tuning.cooldown_is_written)
        if not self.jumped_back:
            assert found.now - found.watching_since >= timedelta(seconds=30)


def _was_kept(status: VLLMServiceStatus) -> bool:
    """Whether the last change was: only after such a one another may begin within its cooldown."""
    return bool(status.history) and status.history[-1].outcome is Outcome.SUCCEEDED


TestAnyStory = AnyStory.TestCase
TestAnyStory.settings = settings(max_examples=examples(15, in_soak=30), stateful_step_count=12, deadline=None)
