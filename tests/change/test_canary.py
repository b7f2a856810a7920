"""The state machine of a canary: one step from each state, in each situation."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from tests.change.worlds import (
    BEFORE,
    NEW,
    NOW,
    OLD,
    STRATEGY,
    TARGETS,
    canary_change,
    canary_world,
    measured,
    rollout,
    seen,
    silent,
    variant,
)

from vllm_autotuner.api.spec import StrategyType
from vllm_autotuner.api.status import (
    ActiveChange,
    Analysis,
    ChangeState,
    ChangeTarget,
    ConfigRef,
    Measurement,
    Outcome,
    VLLMServiceStatus,
)
from vllm_autotuner.change.edges import EDGES
from vllm_autotuner.change.machine import advance
from vllm_autotuner.change.provisioning import ROOM_WITHIN, UNSCHEDULABLE_FOR
from vllm_autotuner.change.trial_deployments import Track, trials
from vllm_autotuner.change.verdict import measure
from vllm_autotuner.change.verification import Confirmed, NotEffective, Undecided
from vllm_autotuner.change.world import Variants, World

PROVISIONING, VERIFYING = ChangeState.PROVISIONING, ChangeState.VERIFYING
WARMING_UP, ANALYZING, HELD = ChangeState.WARMING_UP, ChangeState.ANALYZING, ChangeState.HELD
PROMOTING, BAKING, ROLLING_BACK = ChangeState.PROMOTING, ChangeState.BAKING, ChangeState.ROLLING_BACK
BEFORE_PROMOTION = (PROVISIONING, VERIFYING, WARMING_UP, ANALYZING, HELD)

NO_NODE = "0/3 nodes: Insufficient nvidia.com/gpu"
STARTING: dict[str, Any] = {"settled": False}
PENDING: dict[str, Any] = {"settled": False, "unschedulable": NO_NODE}
CRASHED: dict[str, Any] = {"settled": False, "crashed": "OutOfMemory: CUDA out of memory"}
LATE: dict[str, Any] = {"deadline": NOW}
SETTLED_LATER = {"state_since": NOW - UNSCHEDULABLE_FOR}
FOLLOWED = rollout(NEW, ready=3, replicas=3)
FOLLOWING = rollout(NEW, settled=False, ready=3, replicas=3, older_ready=2)
UNTOUCHED = rollout(OLD, ready=3, replicas=3)


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    state: ChangeState
    to: ChangeState | None = None
    """None: it stays where it is."""
    why: str = ""
    harmful: bool | None = None
    ending: Outcome | None = None
    refs: tuple[bool, bool] | None = None
    """Whether canary and baseline are still wanted afterwards; None: as before."""
    change: dict[str, Any] = field(default_factory=dict)
    world: dict[str, Any] = field(default_factory=dict)


def beside(canary: dict[str, Any] | None = None, baseline: dict[str, Any] | None = None) -> dict[str, Any]:
    """A world in which the trials differ from ready ones in what is named."""
    variants = Variants(
        canary=variant(NEW, observation=seen(), **(canary or {})),
        baseline=variant(OLD, observation=seen(ttft=5.0, tpot=0.02), **(baseline or {})),
    )
    return {"variants": variants}


ALONE = {"baseline_ref": None}

CASES = (
    # Provisioning
    Case(id="both are ready", state=PROVISIONING, to=VERIFYING, why="the canary is ready with maxNumSeqs=96"),
    Case(id="the canary is starting", state=PROVISIONING, world=beside(STARTING)),
    Case(id="the baseline is starting", state=PROVISIONING, world=beside(None, STARTING)),
    Case(id="nothing is there yet", state=PROVISIONING, world={"variants": Variants()}),
    Case(
        id="without a baseline the canary is enough",
        state=PROVISIONING,
        change=ALONE,
        world={"variants": Variants(canary=variant())},
        to=VERIFYING,
        why="ready",
    ),
    Case(
        id="an old Deployment of that name is not it",
        state=PROVISIONING,
        world={"variants": Variants(canary=variant("other"))},
    ),
    Case(id="a canary without a node is waited for", state=PROVISIONING, change=ALONE, world=beside(PENDING)),
    Case(
        id="but not for ever: rejected without blame",
        state=PROVISIONING,
        change={**ALONE, **SETTLED_LATER},
        world=beside(PENDING),
        ending=Outcome.REJECTED,
        why=f"Unschedulable: there is no room for one more pod; the service was not changed ({NO_NODE})",
    ),
    Case(
        id="and not beyond the deadline",
        state=PROVISIONING,
        change={**ALONE, **LATE},
        world=beside(PENDING),
        ending=Outcome.REJECTED,
        why="Unschedulable",
    ),
    Case(
        id="the baseline's device is given to the canary first",
        state=PROVISIONING,
        change=SETTLED_LATER,
        world=beside(PENDING),
        refs=(True, False),
    ),
    Case(
        id="a baseline without a node is done without",
        state=PROVISIONING,
        change=SETTLED_LATER,
        world=beside(None, PENDING),
        refs=(True, False),
    ),
    Case(
        id="a baseline that is late is done without",
        state=PROVISIONING,
        change=LATE,
        world=beside(None, STARTING),
        refs=(True, False),
    ),
    Case(
        id="a baseline that crashes is no evidence against the candidate",
        state=PROVISIONING,
        world=beside(STARTING, CRASHED),
        refs=(True, False),
    ),
    Case(
        id="a canary that crashes is",
        state=PROVISIONING,
        world=beside(CRASHED),
        to=ROLLING_BACK,
        why="the engine does not start: OutOfMemory",
        harmful=True,
    ),
    Case(
        id="pods of the service that crash are not",
        state=PROVISIONING,
        world={"rollout": rollout(OLD, **CRASHED)},
        to=VERIFYING,
    ),
    Case(
        id="a canary that does not become ready in time",
        state=PROVISIONING,
        change={**ALONE, **LATE},
        world=beside(STARTING),
        to=ROLLING_BACK,
        why="provisioning timed out after 20m: the canary did not become ready",
        harmful=False,
    ),
    # Verifying, warming up
    Case(id="the engine confirms", state=VERIFYING, to=WARMING_UP, why="1 pod(s) report"),
    Case(id="the log is not readable yet", state=VERIFYING, world={"verification": Undecided("no log")}),
    Case(
        id="it runs something else",
        state=VERIFYING,
        world={"verification": NotEffective("chat-t-c1-0 reports maxNumSeqs=64")},
        to=ROLLING_BACK,
        why="not effective",
        harmful=True,
    ),
    Case(id="warm-up is over", state=WARMING_UP, change=LATE, to=ANALYZING, why="measuring"),
    Case(id="a pause in warm-up", state=WARMING_UP, world={"paused": True}, to=HELD, why="paused"),
    # Analyzing
    Case(
        id="the canary's metrics are missing",
        state=ANALYZING,
        world={"variants": Variants(canary=variant(observation=silent()), baseline=variant(OLD))},
        to=HELD,
        why="metrics are missing",
    ),
    Case(
        id="the baseline's metrics are missing",
        state=ANALYZING,
        world={"variants": Variants(canary=variant(), baseline=variant(OLD, observation=silent()))},
        to=HELD,
        why="metrics are missing",
    ),
    Case(
        id="the canary and its baseline were deleted",
        state=ANALYZING,
        world={"variants": Variants()},
        to=HELD,
        why="metrics are missing",
        refs=(True, False),
    ),
    Case(
        id="a baseline that crashes is done without",
        state=ANALYZING,
        world=beside(None, CRASHED),
        refs=(True, False),
    ),
    Case(
        id="what was held for the sake of a lost baseline goes on without it",
        state=HELD,
        change={"resume_state": ANALYZING},
        world={"variants": Variants(canary=variant())},
        to=ANALYZING,
        why="resumed",
        refs=(True, False),
    ),
    Case(id="a person pauses", state=ANALYZING, world={"paused": True}, to=HELD, why="paused"),
    Case(
        id="a pod of the service is lost: neither side is what it was (T22)",
        state=ANALYZING,
        world={"rollout": rollout(OLD, settled=False, ready=2, replicas=3)},
        to=HELD,
        why="pods of the service itself are not ready",
    ),
    Case(
        id="the canary crashes while it serves",
        state=ANALYZING,
        world=beside(CRASHED),
        to=ROLLING_BACK,
        why="the engine crashed",
        harmful=True,
    ),
    # Held
    Case(id="all is there again", state=HELD, change={"resume_state": ANALYZING}, to=ANALYZING, why="resumed"),
    Case(
        id="the canary is still silent",
        state=HELD,
        change={"resume_state": ANALYZING, "state_reason": "metrics are missing"},
        world={"variants": Variants(canary=variant(observation=silent()), baseline=variant(OLD))},
    ),
    Case(
        id="too few pods for too long: undone without blame",
        state=HELD,
        change={"resume_state": ANALYZING, "state_reason": "pods of the service itself are not ready", **LATE},
        world={"rollout": rollout(OLD, settled=False, ready=2, replicas=3)},
        to=ROLLING_BACK,
        why="pods of the service itself are not ready for over 15m",
    ),
    # Promoting
    Case(id="they are following", state=PROMOTING, world={"rollout": FOLLOWING}),
    Case(id="the Deployment has not been told yet", state=PROMOTING, world={"rollout": UNTOUCHED}),
    Case(
        id="all have followed: the canary may go",
        state=PROMOTING,
        world={"rollout": FOLLOWED},
        to=BAKING,
        why="3 pods run maxNumSeqs=96",
        refs=(False, True),
    ),
    Case(id="no pause and no silence stops half way", state=PROMOTING, world={"rollout": FOLLOWING, "paused": True}),
    Case(
        id="the pods that follow find no node: the canary's is given to them",
        state=PROMOTING,
        change={"state_since": NOW - ROOM_WITHIN},
        world={"rollout": replace(FOLLOWING, unschedulable=NO_NODE)},
        refs=(False, True),
    ),
    Case(
        id="and then the baseline's",
        state=PROMOTING,
        change={"state_since": NOW - 2 * ROOM_WITHIN, "canary_ref": None},
        world={"rollout": replace(FOLLOWING, unschedulable=NO_NODE)},
        refs=(False, False),
    ),
    Case(
        id="a pod that follows crashes",
        state=PROMOTING,
        world={"rollout": replace(FOLLOWING, crashed="exit code 137")},
        to=ROLLING_BACK,
        why="the engine crashed: exit code 137",
        harmful=True,
    ),
    Case(
        id="they do not get ready in time",
        state=PROMOTING,
        change=LATE,
        world={"rollout": FOLLOWING},
        to=ROLLING_BACK,
        why="promotion timed out",
        harmful=False,
    ),
    Case(
        id="they find no node in time: rolled back without blame",
        state=PROMOTING,
        change=LATE,
        world={"rollout": replace(FOLLOWING, unschedulable=NO_NODE)},
        to=ROLLING_BACK,
        why=NO_NODE,
    ),
    # Baking
    Case(id="it is watched", state=BAKING, world={"rollout": FOLLOWED}),
    Case(id="the time is over", state=BAKING, change=LATE, world={"rollout": FOLLOWED}, ending=Outcome.SUCCEEDED),
    Case(
        id="a crash ends it",
        state=BAKING,
        world={"rollout": replace(FOLLOWED, **CRASHED)},
        to=ROLLING_BACK,
        why="the engine crashed",
        harmful=True,
    ),
    Case(id="in silence the clock stops", state=BAKING, change=LATE, world={"rollout": FOLLOWED, "blind": True}),
    Case(
        id="silent for too long, but every pod is ready: it stays, with low confidence",
        state=BAKING,
        change={"clock_stopped_at": NOW - STRATEGY.data_budget},
        world={"rollout": FOLLOWED, "blind": True},
        ending=Outcome.SUCCEEDED,
        why="confidence Low: metrics are missing during the bake",
    ),
    Case(
        id="silent for too long, and a pod is not ready: rolled back without blame",
        state=BAKING,
        change={"clock_stopped_at": NOW - STRATEGY.data_budget},
        world={"rollout": FOLLOWING, "blind": True},
        to=ROLLING_BACK,
        why="metrics are missing for over 15m, and the Deployment is not fully ready (",
    ),
    Case(
        id="a baseline that crashes is done without",
        state=BAKING,
        world={"rollout": FOLLOWED, "variants": Variants(baseline=variant(OLD, **CRASHED))},
        refs=(False, False),
    ),
    # Rolling back
    Case(id="the canary is still there", state=ROLLING_BACK),
    Case(
        id="the canary is gone, and nothing else was touched",
        state=ROLLING_BACK,
        world={"variants": Variants(), "rollout": rollout(OLD, settled=False, ready=2, replicas=3)},
        ending=Outcome.ROLLED_BACK,
        why="as it was",
    ),
    Case(
        id="what cannot be deleted now is deleted later",
        state=ROLLING_BACK,
        change=LATE,
        ending=Outcome.ROLLED_BACK,
        why="as it was",
    ),
    Case(
        id="the service's pods have to come back first",
        state=ROLLING_BACK,
        change={"promoted": True},
        world={"rollout": rollout(OLD, settled=False, ready=3, replicas=3, older_ready=2)},
    ),
    Case(
        id="they are back",
        state=ROLLING_BACK,
        change={"promoted": True},
        world={"rollout": UNTOUCHED},
        ending=Outcome.ROLLED_BACK,
        why="as it was",
    ),
    Case(
        id="the old ones do not come: the new ones go on (T24)",
        state=ROLLING_BACK,
        change={"promoted": True, **LATE},
        world={"rollout": rollout(OLD, settled=False, ready=3, replicas=3, older_ready=3, crashed="image is gone")},
        ending=Outcome.ROLLBACK_FAILED,
        why="rollback failed: the old configuration does not serve (image is gone); keeping maxNumSeqs=96",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.state}: {case.id}")
def test_one_step(case: Case) -> None:
    given = canary_change(case.state, **case.change)
    step = advance(given, canary_world(**case.world))
    after, refs = step.change, case.refs or (given.canary_ref is not None, given.baseline_ref is not None)
    assert after.state is (case.to or case.state)
    assert after.harmful is case.harmful
    assert (after.canary_ref is not None, after.baseline_ref is not None) == refs
    assert (step.ending.outcome if step.ending is not None else None) is case.ending
    assert case.why in (step.ending.reason if step.ending is not None else after.state_reason)
    assert (after.id, after.from_, after.to, after.strategy) == (given.id, given.from_, given.to, given.strategy)
    assert after.state is given.state or after.state in EDGES[given.state]
    assert after.state is given.state or (after.deadline is not None and after.deadline >= NOW)


@pytest.mark.parametrize(
    ("cache", "undone"),
    [
        pytest.param(20_100, True, id="fewer slots freed nothing"),
        pytest.param(21_900, True, id="within noise"),
        pytest.param(31_000, False, id="a larger cache"),
        pytest.param(None, False, id="not exported"),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_change_for_a_larger_kv_cache_is_undone_where_none_is_exported(
    cache: int | None, undone: bool, in_place: bool
) -> None:
    trial = canary_world(variants=Variants(canary=variant(observation=seen(cache=cache)), baseline=variant(OLD)))
    own = canary_world(observation=seen(cache=cache), rollout=FOLLOWED, variants=Variants())
    given = canary_change(ANALYZING, kv_cache_tokens=20_000.0, analysis=Analysis(started_at=NOW))
    if in_place:
        given = given.updated(strategy=StrategyType.IN_PLACE, canary_ref=None, baseline_ref=None)
    after = advance(given, own if in_place else trial).change
    if not undone:
        assert (after.state, after.harmful) == (ANALYZING, None)
        return
    assert (after.state, after.harmful, after.refused) == (ROLLING_BACK, False, True)
    assert (
        after.state_reason == f"no clear effect: the KV cache is not over 10% larger: {cache:,} tokens, 20,000 before"
    )


@pytest.mark.parametrize(
    ("slots", "larger", "cache", "tpot", "kept"),
    [
        pytest.param(96, None, None, 0.02, True, id="more slots"),
        pytest.param(96, None, None, 0.026, False, id="more slots and slower tokens"),
        pytest.param(96, 20_000.0, 31_000, 0.026, True, id="slower tokens in a larger cache"),
        pytest.param(48, None, None, 0.02, False, id="fewer slots cannot end a queue"),
        pytest.param(48, 20_000.0, 31_000, 0.02, True, id="with a larger cache they can"),
        pytest.param(48, 20_000.0, None, 0.02, False, id="whether it is larger is not known"),
    ],
)
def test_what_the_extra_pods_of_a_trial_drained_speaks_for_what_can_drain_it(
    slots: int, larger: float | None, cache: int | None, tpot: float, kept: bool
) -> None:
    at = NOW + timedelta(minutes=5)
    given = canary_change(
        ANALYZING,
        to=ConfigRef(max_num_seqs=slots, config_hash=NEW),
        kv_cache_tokens=larger,
        before=(BEFORE,),
        analysis=Analysis(started_at=NOW, last=measured(9, tpot=tpot), reference=measured(9, tpot=0.02)),
    )
    trial = Variants(
        canary=variant(observation=seen(tpot=tpot, cache=cache, at=at)),
        baseline=variant(OLD, observation=seen(tpot=0.02, at=at)),
    )
    after = advance(given, canary_world(at, variants=trial)).change
    assert after.state is (PROMOTING if kept else ROLLING_BACK)


LATE_TOKENS = measure(seen(ttft=0.4, tpot=0.08), targets=TARGETS)
QUEUED_TOO = LATE_TOKENS.updated(waiting=2.0)
IN_TIME, SLOWER, STILL_LATE = 0.03, 0.036, 0.08


@pytest.mark.parametrize(
    ("fixed", "before", "ours", "theirs", "kept"),
    [
        pytest.param(True, LATE_TOKENS, IN_TIME, IN_TIME, True, id="only a setting can help, and it is as fast"),
        pytest.param(True, LATE_TOKENS, SLOWER, IN_TIME, False, id="it is slower, inside its objective"),
        pytest.param(True, LATE_TOKENS, STILL_LATE, STILL_LATE, False, id="both are late: it did not help"),
        pytest.param(True, BEFORE, IN_TIME, IN_TIME, False, id="tokens were in time before"),
        pytest.param(True, QUEUED_TOO, IN_TIME, IN_TIME, False, id="the bake would not see that its queue is longer"),
        pytest.param(False, LATE_TOKENS, IN_TIME, IN_TIME, False, id="replicas would help as well"),
    ],
)
def test_late_tokens_that_the_extra_pods_of_a_trial_ended_speak_for_fewer_slots_where_replicas_are_fixed(
    fixed: bool, before: Measurement, ours: float, theirs: float, kept: bool
) -> None:
    """Late in bursts: in a trial there is a third more of everything, and no window of it is late."""
    at = NOW + timedelta(minutes=5)
    given = canary_change(
        ANALYZING,
        to=ConfigRef(max_num_seqs=48, config_hash=NEW),
        target=ChangeTarget.TPOT,
        before=(before,),
        analysis=Analysis(started_at=NOW, last=measured(9, tpot=ours), reference=measured(9, tpot=theirs)),
    )
    trial = Variants(
        canary=variant(observation=seen(at=at, tpot=ours)), baseline=variant(OLD, observation=seen(at=at, tpot=theirs))
    )
    after = advance(given, canary_world(at, variants=trial, fixed_replicas=fixed)).change
    assert after.state is (PROMOTING if kept else ROLLING_BACK)
    assert ("the extra pods of the trial ended the late tokens" in after.state_reason) is kept


@pytest.mark.parametrize("state", [*BEFORE_PROMOTION, PROMOTING, BAKING])
@pytest.mark.parametrize("extra", [{}, {"blind": True}, {"paused": True}, beside(CRASHED)], ids=str)
def test_whatever_a_person_wants_undone_is_undone_at_once(state: ChangeState, extra: dict[str, Any]) -> None:
    """T28."""
    step = advance(canary_change(state), canary_world(abort="spec.tuning.mode became Off", **extra))
    assert (step.change.state, step.change.harmful) == (ROLLING_BACK, None)
    assert step.change.state_reason == "spec.tuning.mode became Off"


WORLDS: dict[str, dict[str, Any]] = {
    "all is well": {},
    "followed": {"rollout": FOLLOWED},
    "following": {"rollout": FOLLOWING},
    "no trial": {"variants": Variants()},
    "pending": beside(PENDING, PENDING),
    "crashed": beside(CRASHED, CRASHED),
    "blind": {"blind": True, "observation": silent()},
    "paused": {"paused": True},
    "not effective": {"verification": NotEffective("no")},
    "undecided": {"verification": Undecided("no")},
    "confirmed": {"verification": Confirmed("yes")},
    "no Deployment": {"rollout": rollout(None, settled=False, ready=0)},
    "crashing": {"rollout": replace(FOLLOWING, crashed="exit code 1")},
    "abort": {"abort": "a person"},
}


@pytest.mark.parametrize("changed", [{}, LATE, {"deadline": None}, ALONE, {"canary_ref": None}, {"analysis": None}])
@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("state", [state for state in ChangeState if state is not ChangeState.PROPOSED])
def test_every_state_in_every_world(state: ChangeState, name: str, changed: dict[str, Any]) -> None:
    """No edited status and no world makes a step that the table does not have, or brings the wrong Deployment."""
    given = canary_change(state, **changed)
    step = advance(given, canary_world(**WORLDS[name]))
    after = step.change
    assert after.state is given.state or after.state in EDGES[given.state]
    wanted = {trial.track for trial in trials(VLLMServiceStatus(active_change=after))}
    if after.state in (BAKING, ROLLING_BACK):
        assert Track.CANARY not in wanted
    if after.state is ROLLING_BACK and not after.promoted:
        assert wanted == set()
    assert (after.promoted is given.promoted) or (given.state, after.state) == (ANALYZING, PROMOTING)
    if step.ending is not None and step.ending.outcome is Outcome.SUCCEEDED:
        assert given.state is BAKING


def run(change: ActiveChange, worlds: list[World]) -> tuple[list[ChangeState], ActiveChange]:
    states = [change.state]
    for now in worlds:
        change = advance(change, now).change
        if change.state is not states[-1]:
            states.append(change.state)
    return states, change


def minutes(count: int, *, canary: dict[str, float], baseline: dict[str, float]) -> list[World]:
    """Ticks of 15 s."""
    found = []
    for tick in range(4 * count):
        now = NOW + timedelta(seconds=15 * (tick + 1))
        variants = Variants(
            canary=variant(NEW, observation=seen(at=now, **canary)),
            baseline=variant(OLD, observation=seen(at=now, **baseline)),
        )
        found.append(canary_world(now, variants=variants))
    return found


@pytest.mark.parametrize(
    ("canary", "to", "harmful"),
    [
        pytest.param({"ttft": 0.4, "tpot": 0.02}, PROMOTING, None, id="better: promoted"),
        pytest.param({"ttft": 5.0, "tpot": 0.02}, ROLLING_BACK, False, id="the same: no clear effect"),
        pytest.param({"ttft": 0.4, "tpot": 0.09}, ROLLING_BACK, True, id="better on one, over the other: harm (T21)"),
    ],
)
def test_the_verdict_is_on_both_sides_at_the_same_time(
    canary: dict[str, float], to: ChangeState, harmful: bool | None
) -> None:
    given = canary_change(ANALYZING, analysis=Analysis(started_at=NOW))
    states, after = run(given, minutes(9, canary=canary, baseline={"ttft": 5.0, "tpot": 0.02}))
    assert states[1] is to
    assert after.harmful is harmful
    assert after.analysis is not None
    assert len(after.analysis.last) == len(after.analysis.reference)


def test_the_bakes_clock_stands_still_while_metrics_are_missing() -> None:
    given = canary_change(BAKING, deadline=NOW + timedelta(minutes=10))
    stopped = advance(given, canary_world(rollout=FOLLOWED, blind=True)).change
    assert (stopped.clock_stopped_at, stopped.deadline) == (NOW, given.deadline)
    later = NOW + timedelta(minutes=7)
    going = advance(stopped, canary_world(later, rollout=FOLLOWED)).change
    assert going.clock_stopped_at is None
    assert going.deadline == NOW + timedelta(minutes=17)


def test_a_pause_in_the_bake_has_a_persons_patience() -> None:
    given = canary_change(BAKING, clock_stopped_at=NOW - timedelta(hours=23), **LATE)
    assert advance(given, canary_world(rollout=FOLLOWED, paused=True)).ending is None
    given = canary_change(BAKING, clock_stopped_at=NOW - timedelta(hours=24), **LATE)
    ending = advance(given, canary_world(rollout=FOLLOWED, paused=True)).ending
    assert ending is not None
    assert ending.outcome is Outcome.SUCCEEDED


def test_each_reason_that_stops_the_bakes_clock_has_its_own_limit() -> None:
    given = canary_change(BAKING, deadline=NOW + timedelta(minutes=10))
    hours, minutes = timedelta(hours=8), timedelta(minutes=14)
    for passed, reason in ((timedelta(), "paused"), (hours, "metrics are missing"), (hours + minutes, "")):
        seen_then = {"paused": reason == "paused", "blind": reason == "metrics are missing"}
        step = advance(given, canary_world(NOW + passed, rollout=FOLLOWED, **seen_then))
        assert (step.ending, step.change.state) == (None, BAKING), reason
        given = step.change
        assert given.state_reason == (reason or "resumed")
    assert given.clock_stopped_at is None
    assert given.deadline == NOW + timedelta(minutes=10) + hours + minutes


@pytest.mark.parametrize("state", [PROVISIONING, VERIFYING, WARMING_UP, ANALYZING, HELD])
def test_a_canary_that_died_between_two_ticks_died_all_the_same(state: ChangeState) -> None:
    died = canary_world(
        variants=Variants(canary=variant(died="chat-t-c1 ended with exit code 137 1 time(s)"), baseline=variant(OLD))
    )
    step = advance(canary_change(state), died)
    assert (step.change.state, step.change.harmful) == (ROLLING_BACK, True)
    baseline = canary_world(variants=Variants(canary=variant(), baseline=variant(OLD, died="chat-b-c1 ended once")))
    assert advance(canary_change(state), baseline).change.state is not ROLLING_BACK
