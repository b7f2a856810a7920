"""Each invariant is violated by one small modification of a run without any violation."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.invariants.catalogue import INVARIANTS
from tests.invariants.changes import MOVES
from tests.invariants.moment import Seen
from tests.invariants.witness import Witness

from vllm_autotuner.api.status import ChangeState
from vllm_autotuner.change.edges import EDGES

NOON = "2026-11-20T12:00:00Z"
LATER = "2026-11-20T12:20:00Z"
LONG_AGO = "2026-11-20T11:00:00Z"
Body = dict[str, Any]
OLD: Body = {"maxNumSeqs": 64, "configHash": "h64"}
NEW: Body = {"maxNumSeqs": 128, "configHash": "h128"}
MEASURED: Body = {"at": NOON, "ttftSeconds": 0.4, "tpotSeconds": 0.03}


def condition(kind: str, status: str = "True", *, at: str = NOON) -> Body:
    return {"type": kind, "status": status, "reason": "Test", "lastTransitionTime": at, "observedGeneration": 1}


def body(**status: Any) -> Body:
    """A service that serves its spec, but for what is named; None removes."""
    found: Body = {
        "observedGeneration": 1,
        "effective": OLD,
        "lastKnownGood": OLD,
        "budget": {"changesToday": 0, "windowStart": NOON},
        "conditions": [condition("Ready")],
    }
    found |= status
    return {
        "metadata": {"name": "chat", "namespace": "prod", "uid": "u-1", "generation": 1},
        "spec": {
            "model": {"name": "example/tiny"},
            "engine": {"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 64},
            "replicas": 2,
            "tuning": {
                "mode": "Automatic",
                "maxNumSeqs": {"min": 16, "max": 256},
                "kvCacheDtype": {"allowed": ["auto", "fp8"]},
            },
        },
        "status": {name: value for name, value in found.items() if value is not None},
    }


def change(state: str = "Provisioning", **fields: Any) -> Body:
    found: Body = {
        "id": "c1",
        "generation": 1,
        "knob": "maxNumSeqs",
        "toValue": "128",
        "from": OLD,
        "to": NEW,
        "state": state,
        "stateSince": NOON,
        "startedAt": NOON,
        "deadline": LATER,
    }
    return {name: value for name, value in (found | fields).items() if value is not None}


def entry(outcome: str = "Succeeded", **fields: Any) -> Body:
    found: Body = {"id": "c1", "knob": "maxNumSeqs", "toValue": "128", "outcome": outcome}
    return found | {"before": MEASURED, "after": MEASURED} | fields


def seen(found: Body, **rest: Any) -> Seen:
    facts: Body = {"at": datetime(2026, 11, 20, 12, tzinfo=UTC), "ready": 2, "runs": {"maxNumSeqs": 64}}
    return Seen(service=found, **(facts | {"trials": {}, "told": {}} | rest))


ONE: Body = {"changesToday": 1, "windowStart": NOON}
IDLE = seen(body())
JUDGED = {"windowsGood": 6}
WELL: Sequence[Seen] = [
    IDLE,
    *(
        seen(body(activeChange=change(state), budget=ONE), ready=3, runs={"maxNumSeqs": 128})
        for state in ("Provisioning", "Verifying", "WarmingUp")
    ),
    *(
        seen(body(activeChange=change(state, analysis=JUDGED), budget=ONE), runs={"maxNumSeqs": 128})
        for state in ("Analyzing", "Baking")
    ),
    seen(body(history=[entry()], effective=NEW, lastKnownGood=NEW, budget=ONE), runs={"maxNumSeqs": 128}),
    seen(
        body(history=[entry()], effective=NEW, lastKnownGood=NEW, budget=ONE),
        runs={"maxNumSeqs": 128},
        told={"ChangeSucceeded": 1},
        settled=True,
    ),
]
"""A successful change, from the first moment to the last Event."""


def status(number: int, **changes: Any) -> Callable[[list[Seen]], object]:
    """Modify the status of one moment."""

    def twist(story: list[Seen]) -> None:
        found = copy.deepcopy(dict(story[number].service))
        for name, value in changes.items():
            found["status"].pop(name, None)
            if value is not ...:
                found["status"][name] = value
        story[number] = replace(story[number], service=found)

    return twist


def facts(number: int, **changes: Any) -> Callable[[list[Seen]], object]:
    """Modify the other observations of one moment."""

    def twist(story: list[Seen]) -> None:
        story[number] = replace(story[number], **changes)

    return twist


def spec(number: int, **changes: Any) -> Callable[[list[Seen]], object]:
    """Modify the spec of one moment."""

    def twist(story: list[Seen]) -> None:
        found = copy.deepcopy(dict(story[number].service))
        found["spec"] |= changes
        story[number] = replace(story[number], service=found)

    return twist


def approves(word: str, *, value: str = "128") -> Callable[[list[Seen]], object]:
    """The user approves a recommendation in mode Approve; r1 recommends max-num-seqs 128."""

    def twist(story: list[Seen]) -> None:
        status(0, recommendation={"id": "r1", "knob": "maxNumSeqs", "recommended": value})(story)
        spec(1, tuning=story[1].spec["tuning"] | {"mode": "Approve"})(story)
        metadata(1, annotations={"vllm-autotuner.dev/approve": word})(story)

    return twist


def metadata(number: int, **changes: Any) -> Callable[[list[Seen]], object]:
    def twist(story: list[Seen]) -> None:
        found = copy.deepcopy(dict(story[number].service))
        found["metadata"] |= changes
        story[number] = replace(story[number], service=found)

    return twist


def remembers(**fields: Any) -> Callable[[list[Seen]], object]:
    """The value that the change tries has failed before in this environment."""
    failed = {"candidate": "maxNumSeqs=128", "knob": "maxNumSeqs", "value": "128", "environment": "e"}
    return status(0, failureMemory=[failed | {"retryAfter": LATER} | fields])


def then(*moments: Seen) -> Callable[[list[Seen]], object]:
    return lambda story: story.extend(moments)


@dataclass(frozen=True, kw_only=True)
class Broken:
    id: str
    what: str
    twist: Callable[[list[Seen]], object]
    says: str = field(default="")


NO_EVENT = seen(
    body(history=[entry()], effective=NEW, lastKnownGood=NEW, budget=ONE), runs={"maxNumSeqs": 128}, settled=True
)
BACK = [
    seen(body(activeChange=change("RollingBack"), budget=ONE)),
    seen(body(history=[entry("RolledBack")], budget=ONE)),
]
CASES = (
    Broken(id="I1", what="one takes the place of another", twist=status(2, activeChange=change(id="c2"))),
    Broken(id="I1", what="not counted in the budget", twist=status(1, budget=...), says="0 counted"),
    Broken(id="I1", what="more than the cluster allows", twist=facts(1, others=2, most_at_once=2), says="3 changes"),
    Broken(id="I2", what="a pod too few", twist=facts(3, ready=1), says="1 of 2 pod(s) serve"),
    Broken(id="I3", what="effective beyond the bounds", twist=status(6, effective=NEW | {"maxNumSeqs": 512})),
    Broken(id="I3", what="a knob without bounds", twist=status(6, effective=NEW | {"maxModelLen": 4096})),
    Broken(id="I3", what="a value that is not listed", twist=status(6, effective=NEW | {"kvCacheDtype": "int4"})),
    Broken(id="I3", what="a change begins below", twist=status(1, activeChange=change(to=NEW | {"maxNumSeqs": 8}))),
    Broken(id="I3", what="the Deployment requests more", twist=facts(2, runs={"maxNumSeqs": 300})),
    Broken(id="I4", what="no deadline", twist=status(2, activeChange=change("Verifying", deadline=None))),
    Broken(id="I4", what="no last known good", twist=status(3, lastKnownGood=...)),
    Broken(id="I4", what="from elsewhere", twist=status(1, lastKnownGood=OLD | {"configHash": "h"}), says="starts"),
    Broken(id="I5", what="in the middle", twist=status(3, lastKnownGood=NEW), says="while change c1 was WarmingUp"),
    Broken(id="I5", what="to something else", twist=status(6, lastKnownGood=OLD | {"configHash": "h"})),
    Broken(
        id="I5",
        what="without a change",
        twist=then(seen(body(history=[entry()], effective=NEW, lastKnownGood=OLD, budget=ONE))),
    ),
    Broken(
        id="I6",
        what="written by the operator",
        twist=metadata(4, managedFields=[{"manager": "vllm-autotuner", "fieldsV1": {"f:spec": {}}}]),
    ),
    Broken(id="I7", what="a state is left out", twist=status(2, activeChange=change("WarmingUp"))),
    Broken(id="I7", what="backwards", twist=status(4, activeChange=change("Verifying"))),
    Broken(id="I7", what="a late beginning", twist=status(1, activeChange=change("Analyzing"))),
    Broken(id="I7", what="another value under way", twist=status(3, activeChange=change("WarmingUp", to=OLD))),
    Broken(
        id="I7",
        what="resumed elsewhere",
        twist=lambda story: story.insert(
            4, seen(body(activeChange=change("Held", resumeState="WarmingUp"), budget=ONE), runs={"maxNumSeqs": 128})
        ),
        says="Held -> Analyzing",
    ),
    Broken(id="I7", what="succeeded before it was measured", twist=lambda story: story.pop(5), says="Analyzing ->"),
    Broken(id="I8", what="no entry", twist=status(6, history=...), says="not in the history"),
    Broken(id="I8", what="two entries", twist=status(6, history=[entry(), entry()]), says="twice"),
    Broken(id="I8", what="begins again", twist=then(WELL[1]), says="a second time"),
    Broken(id="I8", what="an entry of no change", twist=status(6, history=[entry(), entry(id="c9")]), says="c9"),
    Broken(id="I8", what="forgotten", twist=then(seen(body(history=[entry(id="c7")], budget=ONE))), says="forgotten"),
    Broken(id="I8", what="no Event", twist=lambda story: story.append(NO_EVENT), says="0 Event(s)"),
    Broken(id="I8", what="two Events", twist=facts(7, told={"ChangeSucceeded": 2}), says="2 Event(s)"),
    Broken(id="I8", what="the wrong Event", twist=facts(7, told={"ChangeRolledBack": 1}), says="1 Event(s)"),
    Broken(id="I9", what="without Ready", twist=status(2, conditions=[]), says="FAIL0002"),
    Broken(
        id="I9", what="a time moves", twist=status(2, conditions=[condition("Ready", at=LATER)]), says="without a flip"
    ),
    Broken(id="I10", what="what failed", twist=remembers(), says="must not be retried until"),
    Broken(id="I10", what="without end", twist=remembers(retryAfter=None), says="must not be retried until"),
    Broken(id="I10", what="declined", twist=remembers(retryAfter=None, declinedAt=LATER, failures=0)),
    Broken(id="I10", what="rejected after its retry time", twist=remembers(retryAfter=LONG_AGO, declinedAt=LATER)),
    Broken(
        id="I11",
        what="no window with data",
        twist=status(5, activeChange=change("Baking")),
        says="0 window(s) with data",
    ),
    Broken(
        id="I11",
        what="no TPOT",
        twist=status(6, history=[entry(after={"at": NOON, "ttftSeconds": 1.0})]),
        says="tpotSeconds",
    ),
    Broken(id="I12", what="left behind", twist=facts(7, trials={"chat-t-c1": "c1"}), says="without a change under way"),
    Broken(id="I12", what="of another change", twist=facts(2, trials={"chat-t-c0": "c0"}, settled=True), says="c0"),
    Broken(id="G01", what="only to be recommended", twist=spec(1, tuning={"mode": "Recommend"}), says="Recommend"),
    Broken(id="G01", what="nothing was approved", twist=approves(""), says="nothing was approved"),
    Broken(id="G01", what="something else was approved", twist=approves("r0"), says="r0 was approved"),
    Broken(id="G01", what="another value is tried", twist=approves("r1", value="96"), says="128 is tried"),
    Broken(id="G03", what="paused by the spec", twist=spec(1, paused=True)),
    Broken(id="G03", what="paused unreadably", twist=metadata(1, annotations={"vllm-autotuner.dev/pause": "flase"})),
    Broken(id="G11", what="too soon", twist=status(0, cooldownUntil=LATER), says="before 2026"),
    Broken(
        id="G11",
        what="too soon after one that was not kept",
        twist=status(0, cooldownUntil=LATER, history=[entry("RolledBack", finishedAt=NOON, fromValue="32")]),
        says="before 2026",
    ),
    Broken(
        id="G11",
        what="back within the cooldown",
        twist=status(0, cooldownUntil=LATER, history=[entry(finishedAt=NOON, fromValue="128", toValue="64")]),
        says="goes back on maxNumSeqs",
    ),
    Broken(
        id="G11",
        what="back, with another change between",
        twist=status(
            0,
            cooldownUntil=LATER,
            history=[
                entry(finishedAt=NOON, fromValue="256", toValue="64"),
                entry(finishedAt=NOON, knob="kvCacheDtype", fromValue="auto", toValue="fp8"),
            ],
        ),
        says="goes back on maxNumSeqs",
    ),
    Broken(id="G12", what="the third of a day", twist=status(1, budget={"changesToday": 3, "windowStart": NOON})),
    Broken(id="G31", what="an open circuit", twist=status(0, circuit={"state": "Open", "until": LATER})),
    Broken(id="G31", what="open without end", twist=status(0, circuit={"state": "Open"}), says="closed manually"),
    Broken(id="T35", what="too large", twist=status(2, summary={"effective": "x" * 70_000}), says="bytes"),
)


def told(story: Sequence[Seen]) -> list[str]:
    witness = Witness()
    for moment in story:
        witness.look(moment)
    return witness.found


def test_a_story_where_all_is_well_breaks_nothing() -> None:
    assert told(WELL) == []
    assert told([*WELL[:4], *BACK]) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id} {case.what}")
def test_what_is_broken_is_named(case: Broken) -> None:
    story = list(WELL)
    case.twist(story)
    found = told(story)
    assert any(text.startswith(f"{case.id} ") and case.says in text for text in found), found


def test_every_invariant_is_broken_by_some_story() -> None:
    assert {case.id for case in CASES} == {each.id for each in INVARIANTS}
    assert len({each.id for each in INVARIANTS}) == len(INVARIANTS)


def test_a_service_that_never_started_has_no_last_known_good_to_return_to() -> None:
    def never_good(target: str) -> list[str]:
        story = list(WELL[:4])
        for number, each in enumerate(WELL[:4]):
            begun = each.service["status"].get("activeChange")
            aimed = {"activeChange": begun | {"target": target}} if begun else {}
            status(number, lastKnownGood=..., **aimed)(story)
        return [text for text in told(story) if "lastKnownGood" in text]

    assert never_good("TTFT")
    assert never_good("Start") == []


def test_engines_that_did_not_start_have_nothing_to_be_compared_with() -> None:
    def unmeasured(target: str) -> list[str]:
        story = list(WELL)
        for number, each in enumerate(WELL):
            begun = each.service["status"].get("activeChange")
            if begun:
                status(number, activeChange=begun | {"target": target, "analysis": {"windowsGood": 1}})(story)
        return [text for text in told(story) if text.startswith("I11 ")]

    assert unmeasured("TTFT")
    assert unmeasured("Start") == []


def test_a_pod_that_was_taken_away_is_not_held_against_the_operator() -> None:
    assert told([*WELL[:3], replace(WELL[3], ready=0, harmed=True), replace(WELL[4], ready=0)]) == []


def test_a_trial_may_run_with_its_change_and_one_tick_longer() -> None:
    trial = {"chat-t-c1": "c1"}
    assert told([WELL[0], *(replace(each, trials=trial) for each in WELL[1:7]), WELL[7]]) == []
    assert told([*WELL, replace(WELL[7], trials=trial)])


def test_what_failed_elsewhere_or_long_ago_may_be_tried() -> None:
    story = list(WELL)
    remembers(retryAfter=LONG_AGO)(story)
    assert not [text for text in told(story) if text.startswith("I10")]
    story = list(WELL)
    remembers()(story)
    elsewhere = copy.deepcopy(dict(story[0].service))
    elsewhere["spec"]["engine"]["image"] = "vllm/vllm-openai:v0.31.0"
    assert not [text for text in told([replace(story[0], service=elsewhere), *story]) if text.startswith("I10")]


def test_what_was_declined_may_be_tried_once_a_person_asks_to_retry() -> None:
    story = list(WELL)
    remembers(retryAfter=None, declinedAt=LATER, failures=0)(story)
    status(1, handledRequests=[{"kind": "retry", "nonce": "1"}])(story)
    assert not [text for text in told(story) if text.startswith("I10")]
    story = list(WELL)
    remembers(declinedAt=LATER, failures=1)(story)
    status(1, handledRequests=[{"kind": "retry", "nonce": "1"}])(story)
    assert [text for text in told(story) if text.startswith("I10")], "it failed besides"


def test_a_status_that_a_user_wrote_breaks_no_invariant() -> None:
    odd = seen(body(activeChange=change("Verifying", deadline=None), budget=ONE), edited=True)
    assert told([IDLE, odd]) == []
    assert told([seen(body(history="nonsense")), *WELL]) == []


def test_what_a_person_approved_may_begin() -> None:
    story = list(WELL)
    approves("r1")(story)
    assert not [text for text in told(story) if text.startswith("G01")]


def test_a_status_that_the_operator_cannot_read_is_not_its_own() -> None:
    assert told([IDLE, seen(body(history="nonsense"))]) == ["the operator wrote a status that it cannot read"]


def test_the_moves_of_the_product_are_moves_of_the_design() -> None:
    """The transitions are defined twice on purpose; one that only the product has is a mistake in one of the two."""
    rolling_back = ChangeState.ROLLING_BACK
    extra = {
        (before.value, after.value)
        for before, afters in EDGES.items()
        for after in afters
        if after is not rolling_back and after.value not in MOVES[before.value]
    }
    assert not extra
