"""The state machine in place: one step from each state, in each situation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.builders import NOT_MEASURED, engine
from tests.change.worlds import (
    BEFORE,
    NOW,
    OLD,
    STRATEGY,
    TARGETS,
    analysis,
    canary_change,
    canary_world,
    change,
    measured,
    rollout,
    seen,
    silent,
    variant,
    world,
)

from vllm_autotuner.api.status import MEASUREMENTS_LENGTH, ActiveChange, ChangeState, ChangeTarget, Measurement, Outcome
from vllm_autotuner.change.analysis import longest
from vllm_autotuner.change.comparison import GROSS_WINDOWS
from vllm_autotuner.change.edges import EDGES, IllegalMove, moved
from vllm_autotuner.change.machine import Ending, World, advance
from vllm_autotuner.change.verdict import measure
from vllm_autotuner.change.verification import NotEffective, Undecided
from vllm_autotuner.change.world import Variants
from vllm_autotuner.observation.observation import Observation

PROVISIONING, VERIFYING = ChangeState.PROVISIONING, ChangeState.VERIFYING
WARMING_UP, ANALYZING, HELD = ChangeState.WARMING_UP, ChangeState.ANALYZING, ChangeState.HELD
PROMOTING, BAKING, ROLLING_BACK = ChangeState.PROMOTING, ChangeState.BAKING, ChangeState.ROLLING_BACK
UNDER_TEST = (PROVISIONING, VERIFYING, WARMING_UP, ANALYZING, HELD, PROMOTING, BAKING)


@pytest.mark.parametrize(
    ("before", "to", "legal"),
    [
        pytest.param(before, to, legal, id=f"{before} -> {to}: {'legal' if legal else 'raises'}")
        for before in ChangeState
        for to in ChangeState
        for legal in [to in EDGES.get(before, frozenset())]
    ],
)
def test_every_edge(before: ChangeState, to: ChangeState, legal: bool) -> None:
    given = change(before)
    if not legal:
        with pytest.raises(IllegalMove, match=f"{before} -> {to}"):
            moved(given, to, why="because", now=NOW, limit=timedelta(minutes=1))
        assert given == change(before)
        return
    after = moved(given, to, why="because", now=NOW, limit=timedelta(minutes=1))
    assert (after.state, after.state_reason, after.state_since) == (to, "because", NOW)
    assert after.deadline == NOW + timedelta(minutes=1)


def test_nothing_leaves_a_rollback_but_its_end() -> None:
    assert EDGES[ROLLING_BACK] == frozenset()
    assert all(ROLLING_BACK in EDGES[state] for state in UNDER_TEST)


@pytest.mark.parametrize(
    ("pods", "after", "ends"),
    [
        pytest.param({"ready": 3}, 0, Outcome.SUCCEEDED, id="all serve"),
        pytest.param({"ready": 2}, 0, Outcome.SUCCEEDED, id="one of several is missing by itself"),
        pytest.param({"ready": 18, "replicas": 20}, 1200, Outcome.SUCCEEDED, id="so are two of twenty"),
        pytest.param({"ready": 0, "replicas": 1}, 1200, "undone", id="the only one is missing"),
        pytest.param({"ready": 1}, 0, None, id="of most nothing is known: they are waited for"),
        pytest.param({"ready": 1}, 1199, None, id="for as long as pods may take"),
        pytest.param({"ready": 1}, 1200, "undone", id="and no longer"),
        pytest.param({"ready": 1, "newest_since": NOW - timedelta(minutes=19)}, 1200, None, id="one has come since"),
        pytest.param({"ready": 1, "unschedulable": "0/3 nodes"}, 0, Outcome.SUCCEEDED, id="the others have no node"),
    ],
)
def test_a_bake_does_not_succeed_while_most_pods_are_missing(
    pods: dict[str, Any], after: float, ends: Outcome | str | None
) -> None:
    given = change(BAKING, before=(BEFORE,), deadline=NOW - timedelta(seconds=after))
    step = advance(given, world(rollout=rollout(settled=pods == {"ready": 3}, **{"replicas": 3, **pods})))
    if ends == "undone":
        assert (step.change.state, step.change.harmful) == (ROLLING_BACK, False)
        assert "ready at the end of the bake" in step.change.state_reason
    else:
        assert (step.ending and step.ending.outcome) == ends


def quiet(now: datetime) -> Observation:
    """Fresh metrics, and no latency in them: no requests."""
    found = seen(at=now)
    return Observation(at=found.at, window=found.window, engines=found.engines)


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    state: ChangeState
    to: ChangeState | None = None
    """None: it stays where it is."""
    why: str = ""
    harmful: bool | None = None
    ending: Outcome | None = None
    row: int | None = None
    """Bad windows in a row afterwards."""
    change: dict[str, Any] = field(default_factory=dict)
    world: dict[str, Any] = field(default_factory=dict)


LATE = {"deadline": NOW}
JUST_IN_TIME = {"deadline": NOW + timedelta(seconds=1)}
AFTER = NOW - timedelta(minutes=6)


CASES = (
    # Provisioning
    Case(id="pods are still starting", state=PROVISIONING, world={"rollout": rollout(settled=False)}),
    Case(id="the Deployment is still the old one", state=PROVISIONING, world={"rollout": rollout(OLD)}),
    Case(
        id="all pods ready with the new value",
        state=PROVISIONING,
        to=VERIFYING,
        why="1 pod ready with maxNumSeqs=96",
    ),
    Case(
        id="ready at the last moment is ready",
        state=PROVISIONING,
        change=LATE,
        to=VERIFYING,
        why="1 pod ready",
    ),
    Case(
        id="not ready a second before the deadline is waited for",
        state=PROVISIONING,
        change=JUST_IN_TIME,
        world={"rollout": rollout(settled=False)},
    ),
    Case(
        id="pods that do not get ready are taken back, without harm",
        state=PROVISIONING,
        change=LATE,
        world={"rollout": rollout(settled=False)},
        to=ROLLING_BACK,
        why="provisioning timed out after 20m: the new pods did not become ready",
        harmful=False,
    ),
    Case(
        id="several pods had the time of one each",
        state=PROVISIONING,
        change={"replicas": 6, **LATE},
        world={"rollout": rollout(settled=False, ready=6, replicas=6)},
        to=ROLLING_BACK,
        why="provisioning timed out after 2h: the new pods did not become ready",
        harmful=False,
    ),
    Case(
        id="no free GPU is said in the scheduler's words",
        state=PROVISIONING,
        change=LATE,
        world={"rollout": rollout(settled=False, unschedulable="0/3 nodes: Insufficient nvidia.com/gpu")},
        to=ROLLING_BACK,
        why="provisioning timed out after 20m: 0/3 nodes: Insufficient nvidia.com/gpu",
        harmful=False,
    ),
    Case(
        id="no free GPU before the deadline may still come",
        state=PROVISIONING,
        world={"rollout": rollout(settled=False, unschedulable="0/3 nodes")},
    ),
    Case(
        id="a crash at start is harm, at once",
        state=PROVISIONING,
        world={"rollout": rollout(settled=False, crashed="OutOfMemory: CUDA out of memory")},
        to=ROLLING_BACK,
        why="the engine does not start: OutOfMemory: CUDA out of memory",
        harmful=True,
    ),
    Case(
        id="pods that crashed before it are not its fault, while its own are not there yet",
        state=PROVISIONING,
        change={"target": ChangeTarget.START},
        world={"rollout": rollout(OLD, settled=False, crashed="KVCacheTooSmall: 2048 tokens fit", lacked_memory=True)},
    ),
    Case(
        id="starting needs no metrics",
        state=PROVISIONING,
        world={"blind": True, "observation": silent()},
        to=VERIFYING,
        why="ready",
    ),
    # Verifying
    Case(id="the engine confirms", state=VERIFYING, to=WARMING_UP, why="1 pod(s) report maxNumSeqs=96"),
    Case(
        id="the engine runs something else",
        state=VERIFYING,
        world={"verification": NotEffective("chat-0 reports maxNumSeqs=64")},
        to=ROLLING_BACK,
        why="not effective: chat-0 reports maxNumSeqs=64",
        harmful=True,
    ),
    Case(id="the log is not readable yet", state=VERIFYING, world={"verification": Undecided("no log")}),
    Case(
        id="a log that stays unreadable leaves the arguments",
        state=VERIFYING,
        change=LATE,
        world={"verification": Undecided("no log")},
        to=WARMING_UP,
        why="verified by the pods' arguments only: no log",
    ),
    # Warming up
    Case(id="warm-up is not over", state=WARMING_UP, change=JUST_IN_TIME),
    Case(id="warm-up is over", state=WARMING_UP, change=LATE, to=ANALYZING, why="measuring"),
    Case(id="a person pauses in warm-up", state=WARMING_UP, change=LATE, world={"paused": True}, to=HELD, why="paused"),
    # Analyzing
    Case(
        id="a window is not over yet", state=ANALYZING, change={"analysis": analysis(since=NOW - timedelta(seconds=29))}
    ),
    Case(
        id="metrics go missing",
        state=ANALYZING,
        world={"blind": True, "observation": silent()},
        to=HELD,
        why="metrics are missing",
    ),
    Case(id="a person pauses", state=ANALYZING, world={"paused": True}, to=HELD, why="paused"),
    Case(
        id="good windows, but the time is not over",
        state=ANALYZING,
        change={"analysis": analysis(good=7, since=NOW - timedelta(minutes=4))},
    ),
    Case(
        id="ten good windows: kept, and watched",
        state=ANALYZING,
        change={"analysis": analysis(good=9, since=AFTER)},
        to=BAKING,
        why="TTFT improved; TTFT 5.0 s -> 400 ms",
    ),
    Case(
        id="the time that was meant is over, more windows may still tell: a little longer",
        state=ANALYZING,
        change={"analysis": analysis(good=6, since=AFTER)},
    ),
    Case(
        id="time is over, too little was conclusive: a little longer",
        state=ANALYZING,
        change={"analysis": analysis(good=1, since=AFTER)},
    ),
    Case(
        id="longer still, and still too little: undone without harm",
        state=ANALYZING,
        change={"analysis": analysis(good=1, since=AFTER), **LATE},
        to=ROLLING_BACK,
        why="no clear effect",
        harmful=False,
    ),
    Case(
        id="nothing but inconclusive windows: undone without harm",
        state=ANALYZING,
        change={"analysis": analysis(since=AFTER), **LATE},
        world={"observation": seen(ttft=4.9, tpot=0.02, tokens=15_000)},
        to=ROLLING_BACK,
        why="no clear effect",
        harmful=False,
    ),
    Case(
        id="the fourth grossly bad window ends it at once",
        state=ANALYZING,
        change={"analysis": analysis(bad=3, row=3, since=NOW - timedelta(minutes=3), ttft=16.0)},
        world={"observation": seen(ttft=16.0)},
        to=ROLLING_BACK,
        why="TTFT 5.0 s -> 16.0 s",
        harmful=True,
    ),
    Case(
        id="the third grossly bad window does not",
        state=ANALYZING,
        change={"analysis": analysis(bad=2, row=2, since=NOW - timedelta(minutes=3), ttft=16.0)},
        world={"observation": seen(ttft=16.0)},
    ),
    Case(
        id="an inconclusive window between them breaks the row",
        state=ANALYZING,
        change={"analysis": analysis(good=4, bad=2, row=2, since=NOW - timedelta(minutes=3, seconds=30))},
        world={"observation": seen(ttft=4.9, tpot=0.02, tokens=15_000)},
        row=0,
    ),
    Case(
        id="a window without data does not",
        state=ANALYZING,
        change={"analysis": analysis(good=4, bad=2, row=2, since=NOW - timedelta(minutes=3, seconds=30))},
        world={"observation": quiet(NOW)},
        row=2,
    ),
    Case(
        id="worse in every window: harm",
        state=ANALYZING,
        change={"analysis": analysis(bad=9, since=AFTER, ttft=9.0)},
        world={"observation": seen(ttft=9.0)},
        to=ROLLING_BACK,
        why="TTFT",
        harmful=True,
    ),
    # Held
    Case(
        id="metrics are still missing",
        state=HELD,
        change={"resume_state": ANALYZING},
        world={"blind": True, "observation": silent()},
    ),
    Case(
        id="missing for longer than the budget: undone without blame",
        state=HELD,
        change={"resume_state": ANALYZING, "state_reason": "metrics are missing", **LATE},
        world={"blind": True, "observation": silent()},
        to=ROLLING_BACK,
        why="metrics are missing for over 15m",
        harmful=None,
    ),
    Case(id="metrics are back", state=HELD, change={"resume_state": ANALYZING}, to=ANALYZING, why="resumed"),
    Case(
        id="metrics are back at the last moment",
        state=HELD,
        change={"resume_state": ANALYZING, **LATE},
        to=ANALYZING,
        why="resumed",
    ),
    Case(id="the pause is over", state=HELD, change={"resume_state": WARMING_UP}, to=WARMING_UP, why="resumed"),
    Case(
        id="metrics are back, a person has paused meanwhile",
        state=HELD,
        change={"resume_state": ANALYZING},
        world={"paused": True},
    ),
    Case(
        id="paused for longer than a day: undone without blame",
        state=HELD,
        change={"resume_state": ANALYZING, "state_reason": "paused", **LATE},
        world={"paused": True},
        to=ROLLING_BACK,
        why="paused for over 24h",
        harmful=None,
    ),
    Case(id="what was held is not written", state=HELD, change={}, to=ANALYZING, why="resumed"),
    Case(
        id="what was held was edited into nonsense",
        state=HELD,
        change={"resume_state": PROVISIONING},
        to=ANALYZING,
        why="resumed",
    ),
    # Rolling back
    Case(
        id="the old pods are not ready yet",
        state=ROLLING_BACK,
        change={"harmful": True},
        world={"rollout": rollout(OLD, settled=False)},
        harmful=True,
    ),
    Case(id="the Deployment still runs the new value", state=ROLLING_BACK),
    Case(
        id="the old value serves again",
        state=ROLLING_BACK,
        world={"rollout": rollout(OLD)},
        ending=Outcome.ROLLED_BACK,
        why="as it was",
    ),
    Case(
        id="a rollback that is late has failed",
        state=ROLLING_BACK,
        change=LATE,
        world={"rollout": rollout(OLD, settled=False)},
        ending=Outcome.ROLLBACK_FAILED,
        why="does not serve (its pods did not become ready); keeping the pods of both configurations",
    ),
    Case(
        id="the new pods that still serve are left alone, and the old ones given up",
        state=ROLLING_BACK,
        change=LATE,
        world={"rollout": rollout(OLD, settled=False, ready=1, older_ready=1, unschedulable="0/3 nodes")},
        ending=Outcome.ROLLBACK_FAILED,
        why="rollback failed: the old configuration does not serve (0/3 nodes); keeping maxNumSeqs=96. Reason of",
    ),
    Case(
        id="where nothing served before, nothing has to serve again",
        state=ROLLING_BACK,
        change={"target": ChangeTarget.START},
        world={"rollout": rollout(OLD, settled=False, crashed="InsufficientKVCache: 2048 tokens fit")},
        ending=Outcome.ROLLED_BACK,
        why="as it was",
    ),
    Case(
        id="not before the old value is back in the Deployment",
        state=ROLLING_BACK,
        change={"target": ChangeTarget.START},
        world={"rollout": rollout(settled=False, crashed="OutOfMemory: CUDA out of memory")},
    ),
    Case(
        id="pods with the new value that serve are the only ones that can",
        state=ROLLING_BACK,
        change={"target": ChangeTarget.START, **LATE},
        world={"rollout": rollout(OLD, settled=False, ready=1, older_ready=1)},
        ending=Outcome.ROLLBACK_FAILED,
        why="keeping maxNumSeqs=96",
    ),
    Case(
        id="a rollback needs no metrics, no leave and no person",
        state=ROLLING_BACK,
        world={
            "rollout": rollout(OLD),
            "blind": True,
            "observation": silent(),
            "paused": True,
            "abort": "spec.tuning.mode became Off",
        },
        ending=Outcome.ROLLED_BACK,
        why="as it was",
    ),
    Case(
        id="pods that crash while the old value returns do not restart the rollback",
        state=ROLLING_BACK,
        world={"rollout": rollout(OLD, settled=False, crashed="exit code 1")},
    ),
    # Edited by hand
    Case(
        id="starting, with its deadline removed, does not wait for ever",
        state=PROVISIONING,
        change={"deadline": None},
        world={"rollout": rollout(settled=False)},
        to=ROLLING_BACK,
        why="did not become ready",
        harmful=False,
    ),
    Case(
        id="warming up, with its deadline removed, does not wait for ever",
        state=WARMING_UP,
        change={"deadline": None},
        to=ANALYZING,
        why="measuring",
    ),
    Case(
        id="held, with its deadline removed, does not wait for ever",
        state=HELD,
        change={"deadline": None},
        world={"blind": True, "observation": silent()},
        to=ROLLING_BACK,
        why="for over 15m",
    ),
    # From another version
    Case(
        id="what another version only proposed is dropped untouched",
        state=ChangeState.PROPOSED,
        ending=Outcome.REJECTED,
        why="another operator version",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.state}: {case.id}")
def test_one_step(case: Case) -> None:
    given = change(case.state, **case.change)
    step = advance(given, world(**case.world))
    assert step.change.state is (case.to or case.state)
    assert step.change.harmful is case.harmful
    if case.row is not None:
        assert step.change.analysis is not None
        assert step.change.analysis.consecutive_bad == case.row
    assert (step.ending.outcome if step.ending is not None else None) is case.ending
    said = step.ending.reason if step.ending is not None else step.change.state_reason
    assert case.why in said
    assert (step.change.id, step.change.from_, step.change.to, step.change.baseline) == (
        given.id,
        given.from_,
        given.to,
        given.baseline,
    )


@pytest.mark.parametrize("state", UNDER_TEST)
def test_whatever_a_person_wants_undone_is_undone_at_once_and_without_blame(state: ChangeState) -> None:
    for extra in ({}, {"blind": True}, {"paused": True}, {"rollout": rollout(crashed="exit code 1")}):
        step = advance(change(state), world(abort="spec.tuning.mode became Recommend", **extra))
        assert step.change.state is ROLLING_BACK
        assert step.change.state_reason == "spec.tuning.mode became Recommend"
        assert (step.change.harmful, step.ending) == (None, None)


@pytest.mark.parametrize("state", UNDER_TEST)
def test_a_crash_is_harm_in_every_state_also_when_paused_or_blind(state: ChangeState) -> None:
    crashed = rollout(settled=False, crashed="chat-0 ended with exit code 137")
    for blind, paused in ((False, False), (True, False), (False, True)):
        step = advance(change(state), world(rollout=crashed, blind=blind, paused=paused))
        assert (step.change.state, step.change.harmful) == (ROLLING_BACK, True)
        assert "exit code 137" in step.change.state_reason


@pytest.mark.parametrize("what", ["refused", "lacked_memory"])
def test_what_the_crash_says_about_another_attempt_is_kept(what: str) -> None:
    crashed = rollout(settled=False, crashed="the engine's own words")
    kept = advance(
        change(PROVISIONING),
        world(rollout=replace(crashed, refused=what == "refused", lacked_memory=what == "lacked_memory")),
    ).change
    assert {"refused": kept.refused, "lacked_memory": kept.lacked_memory} == {
        each: each == what for each in ("refused", "lacked_memory")
    }


@pytest.mark.parametrize("state", [PROVISIONING, VERIFYING, WARMING_UP, ANALYZING, HELD, BAKING])
def test_an_engine_that_died_between_two_ticks_died_all_the_same(state: ChangeState) -> None:
    step = advance(change(state), world(rollout=rollout(died="chat-0 ended with exit code 137 1 time(s)")))
    assert (step.change.state, step.change.harmful) == (ROLLING_BACK, True)
    assert "exit code 137" in step.change.state_reason
    long_ago = rollout(OLD, died="chat-0 ended with exit code 137 1 time(s)")
    assert advance(change(state), world(rollout=long_ago)).change.state is not ROLLING_BACK, "an old pod is no evidence"


@pytest.mark.parametrize(
    ("last", "goes_on"),
    [
        pytest.param(timedelta(minutes=1), True, id="one came a minute ago"),
        pytest.param(STRATEGY.provisioning_deadline, False, id="none for as long as one may take"),
        pytest.param(None, False, id="none at all"),
    ],
)
def test_a_rollout_in_place_ends_where_no_further_pod_comes(last: timedelta | None, goes_on: bool) -> None:
    """Ten replicas have ten times the time of one; the first that does not come is enough to give up."""
    now = NOW + 2 * STRATEGY.provisioning_deadline
    given = change(PROVISIONING, replicas=10, deadline=NOW + 10 * STRATEGY.provisioning_deadline)
    pods = rollout(settled=False, replicas=10, newest_since=None if last is None else now - last)
    after = advance(given, world(now, rollout=pods)).change
    assert after.state is (PROVISIONING if goes_on else ROLLING_BACK)


OLD_PODS_SERVE = rollout(settled=False, ready=1, older_ready=1)


def started_in_place(given: World, *, windows: int, **changed: Any) -> ActiveChange:
    """Provisioning over so many windows of 30 s; `before` begins with one that ended with the proposal."""
    going = change(PROVISIONING, replicas=1, before=measured(1, ttft=5.0), **changed)
    for number in range(1, windows + 1):
        at = NOW + timedelta(seconds=30 * number)
        going = advance(going, replace(given, now=at, observation=replace(given.observation, at=at.timestamp()))).change
    return going


def test_while_the_new_pod_starts_the_old_one_is_measured() -> None:
    """A change begins as soon as its diagnosis holds: of the load that it is for there is one window by then."""
    still_late = world(rollout=OLD_PODS_SERVE, observation=seen(ttft=5.0))
    going = started_in_place(still_late, windows=6)
    assert going.state is PROVISIONING
    assert len(going.before) == 7
    assert [window.at for window in going.before] == [NOW + timedelta(seconds=30 * number) for number in range(7)]
    assert going.baseline == going.before[-1]
    going = started_in_place(still_late, windows=20, deadline=NOW + timedelta(hours=1))
    assert len(going.before) == MEASUREMENTS_LENGTH
    assert going.before[0].at == NOW, "none goes for another"


def test_a_quiet_start_takes_nothing_from_what_was_measured_before() -> None:
    """No requests for a quarter of an hour: neither the windows of before nor the one that is shown are lost."""
    quiet_start = world(rollout=OLD_PODS_SERVE, observation=quiet(NOW))
    going = started_in_place(quiet_start, windows=40, deadline=NOW + timedelta(hours=1))
    assert going.before == measured(1, ttft=5.0)
    assert going.baseline == change(PROVISIONING).baseline


def test_a_window_with_clearly_less_load_is_none_of_before() -> None:
    """Requests of 2 s TTFT in a burst are not what a change for one of 5 s is compared with once it is over."""
    engines = tuple(replace(one, finished=20.0) for one in seen().engines)
    calmer = world(rollout=OLD_PODS_SERVE, observation=replace(seen(ttft=0.2), engines=engines))
    assert len(started_in_place(calmer, windows=6).before) == 1
    # By the one window that was busy by chance all others would be too light (closed loop, tp-too-high 680).
    assert len(started_in_place(calmer, windows=6, target=ChangeTarget.GPUS).before) == 7


def two_pods() -> Observation:
    found = seen()
    return replace(found, engines=(*found.engines, engine(pod="chat-1", running=0.0)))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(world(rollout=rollout(settled=False, ready=2, older_ready=1)), id="the new pod serves as well"),
        pytest.param(world(rollout=rollout(settled=False, ready=0, older_ready=0)), id="the old pod is gone"),
        pytest.param(world(rollout=OLD_PODS_SERVE, blind=True, observation=silent()), id="metrics are missing"),
        pytest.param(world(rollout=OLD_PODS_SERVE, unreadable=True), id="the spec, and with it the targets, is unread"),
        pytest.param(world(rollout=OLD_PODS_SERVE, observation=two_pods()), id="another pod reports"),
        pytest.param(world(rollout=OLD_PODS_SERVE, observation=quiet(NOW)), id="a window without requests"),
    ],
)
def test_a_window_that_is_not_the_old_pods_alone_is_none_of_before(given: World) -> None:
    assert len(started_in_place(given, windows=6).before) == 1


def test_what_is_measured_before_a_canary_is_left_alone() -> None:
    """Its baseline is measured beside it."""
    given = canary_world(rollout=OLD_PODS_SERVE, variants=Variants())
    assert len(advance(canary_change(PROVISIONING, before=measured(1)), given).change.before) == 1


@pytest.mark.parametrize("state", [VERIFYING, WARMING_UP, ANALYZING, HELD, BAKING, ROLLING_BACK])
def test_every_state_is_entered_with_a_deadline(state: ChangeState) -> None:
    """I4: whatever is entered ends."""
    entered = [
        step.change
        for case in CASES
        if (step := advance(change(case.state, **case.change), world(**case.world))).change.state is state
        and case.to is state
    ]
    assert entered
    assert all(each.deadline is not None and each.deadline >= NOW for each in entered)


def test_held_keeps_the_time_that_was_left() -> None:
    left = timedelta(minutes=3)
    held = advance(change(ANALYZING, deadline=NOW + left), world(blind=True, observation=silent())).change
    assert (held.state, held.resume_state, held.remaining_seconds) == (HELD, ANALYZING, 180)
    later = NOW + timedelta(minutes=10)
    resumed = advance(held, world(later)).change
    assert resumed.deadline == later + left
    assert (resumed.resume_state, resumed.remaining_seconds) == (None, None)


def test_a_pause_may_last_a_day_and_silence_only_its_budget() -> None:
    minutes, day = STRATEGY.data_budget, timedelta(hours=24)
    held = advance(change(ANALYZING), world(paused=True)).change
    assert (held.state_reason, held.deadline) == ("paused", NOW + day)
    later = NOW + timedelta(hours=3)
    blind = advance(held, world(later, paused=True, blind=True)).change
    assert (blind.state_reason, blind.deadline) == ("metrics are missing", later + minutes)
    paused = advance(blind, world(later, paused=True)).change
    assert (paused.state_reason, paused.deadline) == ("paused", later + day)
    assert paused.remaining_seconds == held.remaining_seconds


def test_time_without_a_leader_is_no_part_of_the_analysis() -> None:
    """An operator that was away for an hour goes on where it was, and does not call the candidate unclear."""
    given = change(ANALYZING, analysis=analysis(good=1), deadline=NOW + timedelta(minutes=10))
    back = NOW + timedelta(hours=1)
    worlds = (world(back + timedelta(seconds=15 * tick)) for tick in range(60))
    states, after, ending = run(given, worlds)
    assert (states, ending) == ([ANALYZING, BAKING], None)
    assert after.analysis is not None
    assert after.analysis.windows_good >= 3
    seen_all_along = advance(given, world(NOW + timedelta(seconds=30))).change
    assert seen_all_along.deadline == given.deadline


def run(change: ActiveChange, worlds: Iterator[World]) -> tuple[list[ChangeState], ActiveChange, Ending | None]:
    """Step until the end; return the states passed through."""
    states = [change.state]
    for now in worlds:
        step = advance(change, now)
        change = step.change
        if change.state is not states[-1]:
            states.append(change.state)
        if step.ending is not None:
            return states, change, step.ending
    return states, change, None


def ticks(count: int, **changed: Any) -> Iterator[World]:
    for tick in range(count):
        now = NOW + timedelta(seconds=15 * (tick + 1))
        made = {name: value(now) if callable(value) else value for name, value in changed.items()}
        yield world(now, **made)


def test_windows_do_not_overlap() -> None:
    """One bad minute that is looked at four times is not four bad minutes."""
    bad = lambda now: seen(ttft=9.0, at=now)  # noqa: E731 (one of many)
    _, after, _ = run(change(ANALYZING, analysis=analysis(since=NOW)), ticks(4, observation=bad))
    assert after.analysis is not None
    assert after.analysis.windows_bad == 2


def test_a_change_that_helps_ends_well() -> None:
    states, after, ending = run(change(PROVISIONING), ticks(160, observation=lambda now: seen(at=now)))
    assert states == [PROVISIONING, VERIFYING, WARMING_UP, ANALYZING, BAKING]
    assert ending is not None
    assert ending.outcome is Outcome.SUCCEEDED
    assert after.analysis is not None
    assert (after.analysis.windows_good, after.analysis.windows_bad, after.analysis.no_data) == (10, 0, 0)


def test_a_long_analysis_keeps_the_newest_measurements_only() -> None:
    """The status has room for thirty: one more would be refused by the API server, and the change would never end."""
    states, after, _ = run(change(PROVISIONING), ticks(140, observation=quiet, rollout=rollout()))
    assert states[-1] is ROLLING_BACK
    assert after.analysis is not None
    assert (len(after.analysis.last), after.analysis.no_data > 30) == (30, True)


def test_the_tenth_window_is_the_last_look() -> None:
    undecided = lambda now: seen(ttft=4.9, tpot=0.02, tokens=15_000, at=now)  # noqa: E731
    states, after, _ = run(change(PROVISIONING), ticks(70, observation=undecided, rollout=rollout()))
    assert states[-1] is ROLLING_BACK
    assert after.analysis is not None
    assert (after.harmful, after.analysis.windows_inconclusive) == (False, 10)


@pytest.mark.parametrize("minutes", [0.25, 5.0])
def test_replicas_that_come_leave_as_long_for_a_verdict_as_there_was(minutes: float) -> None:
    """However short the analysis is meant to be: a verdict needs its windows, also the second time."""
    strategy = STRATEGY.updated(analysis=timedelta(minutes=minutes))
    warm = change(ChangeState.WARMING_UP, deadline=NOW)
    begun = advance(warm, world(strategy=strategy)).change
    assert begun.deadline is not None
    came = NOW + timedelta(seconds=20)
    again = world(came, strategy=strategy, rollout=rollout(newest_since=came, ready=2, replicas=2))
    found = advance(begun, again).change
    assert found.deadline is not None
    assert found.deadline - came == begun.deadline - NOW


def test_no_data_is_evidence_for_nothing() -> None:
    """T12: a service without traffic neither passes nor fails."""
    states, after, _ = run(change(ANALYZING, analysis=analysis(since=NOW)), ticks(60, observation=quiet))
    assert after.analysis is not None
    assert (after.analysis.windows_good, after.analysis.windows_bad) == (0, 0)
    assert after.analysis.no_data > 10
    assert (states, after.harmful) == ([ANALYZING, ROLLING_BACK], False)


def test_the_threshold_of_gross_windows_is_reached_exactly() -> None:
    bad = lambda now: seen(ttft=16.0, at=now)  # noqa: E731
    _, after, _ = run(change(ANALYZING, analysis=analysis(since=NOW)), ticks(30, observation=bad))
    assert after.state is ROLLING_BACK
    assert after.analysis is not None
    assert after.analysis.windows_bad == GROSS_WINDOWS


def under(load: float, *, ttft: float) -> Callable[[datetime], Observation]:
    """TTFT where so many times as many requests come as before."""

    def found(now: datetime) -> Observation:
        busy = engine(finished=60.0 * load, generation_tokens=15_000.0 * load)
        return replace(seen(ttft=ttft, at=now), engines=(busy,))

    return found


def ten_windows(load: float) -> tuple[Measurement, ...]:
    found = under(load, ttft=1.5)
    return tuple(measure(found(NOW - timedelta(seconds=30 * age)), targets=TARGETS) for age in range(9, -1, -1))


SERVED = ten_windows(1.0)
"""Ten windows before: inside the objective of 2 s, with 2 requests/s."""


@pytest.mark.parametrize(
    ("load", "harmful"),
    [
        pytest.param(1.0, True, id="as many requests: harm"),
        pytest.param(0.5, True, id="fewer requests: harm all the more"),
        pytest.param(2.0, False, id="twice as many: not judged, rolled back without blame"),
    ],
)
def test_in_place_the_load_is_taken_out(load: float, harmful: bool) -> None:
    given = change(ANALYZING, analysis=analysis(since=NOW), before=SERVED, baseline=SERVED[-1])
    states, after, _ = run(given, ticks(60, observation=under(load, ttft=3.0)))
    assert (states, after.harmful) == ([ANALYZING, ROLLING_BACK], harmful)


@pytest.mark.parametrize(
    ("began_with", "serve", "load", "harmful"),
    [
        pytest.param(1, 2, 0.5, None, id="a replica came and took half of it: nothing is held against the value"),
        pytest.param(1, 2, 1.0, False, id="the load grew as the fleet did: it was seen, and had no clear effect"),
        pytest.param(1, 2, 2.0, False, id="the load grew by more: no replica took it"),
        pytest.param(2, 2, 0.5, False, id="a lull: no requests"),
        pytest.param(3, 2, 0.5, False, id="fewer serve than before"),
        pytest.param(None, 2, 0.5, False, id="an older version began it: unknown"),
    ],
)
def test_a_value_is_not_blamed_for_replicas_that_take_its_load(
    began_with: int | None, serve: int, load: float, *, harmful: bool | None
) -> None:
    """It would rest like one without an effect, although it was never seen under the load that it is for."""
    waited = tuple(one.updated(ttft_seconds=5.0) for one in SERVED)
    given = change(ANALYZING, analysis=analysis(since=NOW), before=waited, baseline=waited[-1], replicas=began_with)
    here = rollout(ready=serve, replicas=serve)
    states, after, _ = run(given, ticks(60, observation=under(load, ttft=4.9), rollout=here))
    assert (states, after.harmful) == ([ANALYZING, ROLLING_BACK], harmful)
    assert ("not judged" in after.state_reason) is (harmful is None)


def test_harm_beside_replicas_that_came_is_harm() -> None:
    given = change(ANALYZING, analysis=analysis(since=NOW), before=SERVED, baseline=SERVED[-1], replicas=1)
    here = rollout(ready=2, replicas=2)
    _, after, _ = run(given, ticks(60, observation=under(0.5, ttft=3.0), rollout=here))
    assert (after.state, after.harmful) == (ROLLING_BACK, True)


def test_harm_in_the_bake_is_told_from_load_as_well() -> None:
    given = change(BAKING, before=SERVED, baseline=SERVED[-1], deadline=NOW + timedelta(minutes=4))
    states, after, _ = run(given, ticks(60, observation=under(1.0, ttft=3.0)))
    assert (states, after.harmful) == ([BAKING, ROLLING_BACK], True)
    states, _, ending = run(given, ticks(60, observation=under(2.0, ttft=3.0)))
    assert states == [BAKING]
    assert ending is not None
    assert ending.outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(
    ("load", "measured_every"),
    [
        pytest.param(1.0, 2, id="every second window has no latency"),
        pytest.param(1.0, 3, id="two of three have none"),
        pytest.param(0.06, 1, id="four requests in a window: of ten windows too few for a verdict"),
    ],
)
def test_harm_in_the_bake_is_found_in_what_windows_there_are(load: float, measured_every: int) -> None:
    before = ten_windows(load)

    def slower(now: datetime) -> Observation:
        found = under(load, ttft=3.0)(now)
        window = round((now - NOW).total_seconds() / 30)
        return found if window % measured_every == 0 else replace(found, ttft=NOT_MEASURED)

    given = change(BAKING, before=before, baseline=before[-1], deadline=NOW + timedelta(minutes=30))
    states, after, _ = run(given, ticks(120, observation=slower))
    assert (states, after.harmful) == ([BAKING, ROLLING_BACK], True)


def test_a_baseline_that_says_nothing_does_not_keep_a_bake_from_being_judged() -> None:
    given = canary_change(BAKING, before=SERVED, deadline=NOW + timedelta(minutes=30))
    lost = Variants(baseline=variant(OLD, observation=silent()))
    states, after, _ = run(given, ticks(120, observation=under(1.0, ttft=3.0), variants=lost))
    assert (states, after.harmful) == ([BAKING, ROLLING_BACK], True)


def test_ten_windows_before_allow_an_earlier_look_than_one() -> None:
    better = lambda now: seen(at=now)  # noqa: E731
    waited = tuple(one.updated(ttft_seconds=5.0) for one in SERVED)
    for before, windows in ((waited, 8), (waited[-1:], 10)):
        given = change(ANALYZING, analysis=analysis(since=NOW), before=before, baseline=before[-1])
        _, after, _ = run(given, ticks(60, observation=better))
        assert after.state is BAKING or after.bake is not None
        assert after.analysis is not None
        assert after.analysis.windows_good == windows


@pytest.mark.parametrize(
    ("load", "state", "windows"),
    [
        pytest.param(1.0, BAKING, 8, id="2 requests/s: as soon as it shows"),
        pytest.param(0.05, BAKING, 16, id="one in 10 s: fifty of them take longer than ten windows"),
        pytest.param(0.015, ROLLING_BACK, 60, id="one in 33 s: sought for half an hour, then undone without blame"),
    ],
)
def test_few_requests_are_waited_for_until_the_deadline_and_no_longer(
    load: float, state: ChangeState, windows: int
) -> None:
    waited = tuple(one.updated(ttft_seconds=5.0, requests_per_second=2.0 * load) for one in SERVED)
    deadline = NOW + longest(STRATEGY, window=timedelta(seconds=30))
    after = change(ANALYZING, analysis=analysis(since=NOW), before=waited, baseline=waited[-1], deadline=deadline)
    passed = 0
    while after.state is ANALYZING and passed < 90:
        passed += 1
        now = NOW + timedelta(seconds=30 * passed)
        after = advance(after, world(now, observation=under(load, ttft=0.4)(now))).change
    assert (after.state, bool(after.harmful), passed) == (state, False, windows)
