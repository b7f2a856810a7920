"""What a status says to people and tools, and when it says it anew."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from tests.builders import NOT_MEASURED, engine, latency, nobody, observation
from tests.control.desk import BLIND, CAPPED, HEALTHY, HELPED, NO_SERIES, OVERLOADED, START, WEDGED, Desk, desk, scaled

from vllm_autotuner.api.annotations import APPROVE, PAUSE
from vllm_autotuner.api.conditions import ConditionStatus, ConditionType, Reason
from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence, Recommendation
from vllm_autotuner.control.decide.inputs import Refusal
from vllm_autotuner.control.decide.recommendation import SAME_RECOMMENDATION, recommended, still_says
from vllm_autotuner.control.decide.tick import decide
from vllm_autotuner.guardrails.chain import Deny, Hold
from vllm_autotuner.guardrails.reasons import HoldReason
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.planning.proposal import Predicted, Proposal

PROPOSAL = Proposal(
    knob=Knob.MAX_NUM_SEQS,
    current=64,
    value=100,
    target=ChangeTarget.TTFT,
    reason="All 64 seats are taken while 41 requests wait.",
    confidence=Confidence.HIGH,
    limited_by="TPOT knee",
    predicted=(Predicted(name="TPOT", unit="s", current=0.0312345, predicted=0.0412345),),
)
MODE = Hold(reason=HoldReason.MODE, message="spec.tuning.mode is Recommend")
COOLDOWN = Hold(reason=HoldReason.COOLDOWN, message="cooling down until noon")
BOUNDS = Deny(reason=HoldReason.OUT_OF_BOUNDS, message="100 is outside")


def shown(
    proposal: Proposal | None = PROPOSAL,
    held: tuple[Hold | Deny, ...] = (MODE,),
    *,
    before: Recommendation | None = None,
    later: timedelta = timedelta(),
) -> Recommendation | None:
    inputs = replace(desk().inputs(HEALTHY), now=START + later)
    return recommended(proposal, held, before=before, inputs=inputs)


STANDING = shown()
assert STANDING is not None


def test_a_recommendation_says_what_why_and_what_holds_it() -> None:
    assert STANDING is not None
    assert (STANDING.knob, STANDING.current, STANDING.recommended) == ("maxNumSeqs", "64", "100")
    assert STANDING.reason == (
        "All 64 seats are taken while 41 requests wait. Not applied: spec.tuning.mode is Recommend."
    )
    assert (STANDING.limited_by, STANDING.confidence, STANDING.first_seen) == ("TPOT knee", Confidence.HIGH, START)
    assert [(each.current, each.predicted) for each in STANDING.predicted] == [(0.0312, 0.0412)]


def test_the_engines_default_has_no_number() -> None:
    found = shown(replace(PROPOSAL, current=None))
    assert found is not None
    assert found.current is None


@pytest.mark.parametrize(
    ("proposal", "held", "same"),
    [
        pytest.param({}, (MODE,), True, id="nothing moved"),
        pytest.param({"value": 120}, (MODE,), True, id="a fifth more is the same"),
        pytest.param({"value": 80}, (MODE,), True, id="a fifth less is the same"),
        pytest.param({"reason": "All 64 seats are taken while 57 requests wait."}, (MODE,), True, id="figures moved"),
        pytest.param({"confidence": Confidence.MEDIUM}, (MODE,), True, id="a little less sure"),
        pytest.param({"value": 121}, (MODE,), False, id="more than that is another"),
        pytest.param({"value": 79}, (MODE,), False, id="less than that is another"),
        pytest.param({"current": 80}, (MODE,), False, id="from another start is another"),
        pytest.param({"max_model_len": 8192}, (MODE,), False, id="with another flag is another"),
        pytest.param({"knob": Knob.REPLICAS}, (MODE,), False, id="another knob is another"),
        pytest.param({}, (COOLDOWN,), False, id="held for another cause is told"),
        pytest.param({}, (), False, id="no longer held is told"),
    ],
)
def test_when_a_recommendation_is_told_anew(
    proposal: dict[str, Any], held: tuple[Hold | Deny, ...], same: bool
) -> None:
    found = shown(replace(PROPOSAL, **proposal), held, before=STANDING, later=timedelta(hours=1))
    assert (found == STANDING) is same


def test_another_cause_does_not_make_it_another_recommendation() -> None:
    """Who approved it has approved it: only the text moves."""
    assert STANDING is not None
    found = shown(held=(COOLDOWN,), before=STANDING, later=timedelta(hours=1))
    assert found is not None
    assert (found.id, found.first_seen, found.recommended) == (STANDING.id, START, "100")
    assert found.reason.endswith("Not applied: cooling down until noon.")


def test_what_forbids_is_named_before_what_delays() -> None:
    found = shown(held=(MODE, COOLDOWN, BOUNDS))
    assert found is not None
    assert found.reason.endswith("Not applied: 100 is outside.")


def test_each_time_of_asking_has_an_id_of_its_own() -> None:
    """Who approved it an hour ago has not approved it when it comes back (G41)."""
    assert STANDING is not None
    for again in (shown(later=timedelta(hours=1)), shown(replace(PROPOSAL, value=180))):
        assert again is not None
        assert again.id != STANDING.id
    decided_again = shown()
    assert decided_again is not None
    assert decided_again.id == STANDING.id


def test_a_length_that_goes_with_it_is_part_of_what_is_approved() -> None:
    with_length = replace(PROPOSAL, max_model_len=8192)
    first = shown(with_length)
    assert first is not None
    assert first.max_model_len == 8192
    same = shown(with_length, before=first)
    shorter = shown(replace(with_length, max_model_len=4096), before=first)
    without = shown(PROPOSAL, before=first)
    assert same is not None
    assert shorter is not None
    assert without is not None
    assert same.id == first.id
    assert len({first.id, shorter.id, without.id}) == 3
    assert (shorter.max_model_len, without.max_model_len) == (4096, None)


def test_as_many_slots_as_were_approved_are_enough_where_fewer_are_wanted_by_now() -> None:
    """They follow the load from tick to tick: an approval would rarely find what it is for."""
    with_slots = replace(PROPOSAL, max_num_seqs=200)
    first = shown(with_slots)
    assert first is not None
    assert first.told.endswith("with maxNumSeqs 200")
    fewer = shown(replace(with_slots, max_num_seqs=150), before=first)
    assert fewer is not None
    assert (fewer.id, fewer.max_num_seqs) == (first.id, 200)
    for wanted in (220, None):
        other = shown(replace(with_slots, max_num_seqs=wanted), before=first)
        assert other is not None
        assert (other.id != first.id, other.max_num_seqs) == (True, wanted)
    assert STANDING is not None
    assert not still_says(STANDING.updated(max_num_seqs=8), with_slots), "nobody may slip in fewer"


def test_a_window_that_never_opens_is_told_before_a_change_waits_for_it() -> None:
    desk = Desk()
    desk.edit(tuning__windows=[{"schedule": "0 2 * * *", "timeZone": "Mars/Phobos", "duration": "4h"}])
    desk.tick(HEALTHY)
    told = desk.condition(ConditionType.RECOMMENDATION_AVAILABLE)
    assert told is not None
    assert told.message.startswith("nothing to recommend; spec.tuning.windows[0] never opens: unknown time zone")


def test_nothing_to_propose_takes_it_back() -> None:
    assert shown(None, (), before=STANDING) is None


def test_an_edited_recommendation_is_not_taken_for_ours() -> None:
    assert STANDING is not None
    for text in ("", "many", "-100", "1e2"):
        assert not still_says(STANDING.updated(recommended=text), PROPOSAL)
    assert not still_says(STANDING.updated(max_model_len=8192), PROPOSAL), "nobody may slip in another flag"
    assert still_says(STANDING, PROPOSAL)
    assert SAME_RECOMMENDATION < 1


# Conditions


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    kind: ConditionType
    state: str | None
    """None: absent."""
    reason: Reason | None = None
    says: str = ""
    seen: Observation = HEALTHY
    rollout: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)


READY, RECONCILING, METRICS = ConditionType.READY, ConditionType.RECONCILING, ConditionType.METRICS_AVAILABLE
TWO_OF_THREE = {"ready": 2, "settled": False}
PARTLY = observation(expected=4, silent=("chat-1", "chat-2", "chat-3"))

CASES = (
    Case(id="serving", kind=READY, state="True", reason=Reason.SERVING, says="1 of 1 replicas ready"),
    Case(id="serving is nothing to worry about", kind=RECONCILING, state=None),
    Case(
        id="one of three is missing",
        kind=READY,
        state="False",
        reason=Reason.REPLICAS_UNAVAILABLE,
        says="2 of 3",
        spec={"replicas": 3},
        rollout=TWO_OF_THREE,
    ),
    Case(id="and is being replaced", kind=RECONCILING, state="True", spec={"replicas": 3}, rollout=TWO_OF_THREE),
    Case(
        id="scaled out, the promised minimum serves",
        kind=READY,
        state="True",
        says="2 of 1",
        spec={"replicas": ..., "scaling": {"minReplicas": 1, "maxReplicas": 4}},
        rollout=TWO_OF_THREE,
    ),
    Case(
        id="no Deployment yet",
        kind=READY,
        state="False",
        reason=Reason.PROGRESSING,
        rollout={"config_hash": None, "settled": False, "rolled_out": False, "ready": 0},
    ),
    Case(
        id="the Deployment is of an older spec",
        kind=RECONCILING,
        state="True",
        reason=Reason.PROGRESSING,
        rollout={"config_hash": "older"},
    ),
    Case(id="pods of an older spec are left", kind=READY, state="False", rollout={"rolled_out": False}),
    Case(id="no replicas were asked for", kind=READY, state="True", spec={"replicas": 0}, rollout={"ready": 0}),
    Case(
        id="a crash is said in the engine's words",
        kind=READY,
        state="False",
        says="0 of 1 replicas ready; OutOfMemory: CUDA",
        rollout={"settled": False, "ready": 0, "crashed": "OutOfMemory: CUDA"},
    ),
    Case(
        id="a missing GPU is said in the scheduler's words",
        kind=READY,
        state="False",
        says="0 of 1 replicas ready; 0/3 nodes",
        rollout={"settled": False, "ready": 0, "unschedulable": "0/3 nodes"},
    ),
    Case(id="fresh metrics", kind=METRICS, state="True", reason=Reason.METRICS_FRESH),
    Case(
        id="Prometheus does not answer",
        kind=METRICS,
        state="False",
        reason=Reason.PROVIDER_ERROR,
        says="connection refused. No change starts until metrics return.",
        seen=BLIND,
    ),
    Case(
        id="nobody scrapes it",
        kind=METRICS,
        state="False",
        reason=Reason.METRICS_MISSING,
        says="No vLLM engine reports fresh metrics.",
        seen=NO_SERIES,
    ),
    Case(
        id="the only engine went silent",
        kind=METRICS,
        state="False",
        reason=Reason.METRICS_STALE,
        says="No vLLM engine reports fresh metrics.",
        seen=nobody(silent=("chat-0",)),
    ),
    Case(
        id="most engines are silent",
        kind=METRICS,
        state="False",
        reason=Reason.METRICS_STALE,
        says="1 of 4 ready pods",
        seen=PARTLY,
    ),
    Case(id="not paused", kind=ConditionType.PAUSED, state=None),
    Case(
        id="paused in the spec",
        kind=ConditionType.PAUSED,
        state="True",
        reason=Reason.PAUSED_BY_SPEC,
        says="spec.paused is true",
        spec={"paused": True},
    ),
    Case(
        id="paused by annotation",
        kind=ConditionType.PAUSED,
        state="True",
        reason=Reason.PAUSED_BY_ANNOTATION,
        says="vllm-autotuner.dev/pause",
        annotations={PAUSE: "true"},
    ),
    Case(
        id="an annotation that nobody can read pauses",
        kind=ConditionType.PAUSED,
        state="True",
        annotations={PAUSE: ""},
    ),
    Case(id="an annotation that says no", kind=ConditionType.PAUSED, state=None, annotations={PAUSE: " False "}),
    Case(id="no change was ever made", kind=ConditionType.LAST_CHANGE_SUCCEEDED, state=None),
    Case(id="nothing is tuned", kind=ConditionType.TUNING_IN_PROGRESS, state=None),
    Case(
        id="something is tuned",
        kind=ConditionType.TUNING_IN_PROGRESS,
        state="True",
        reason=Reason.CHANGE_ACTIVE,
        says="maxNumSeqs 64 -> 128: Provisioning",
        seen=CAPPED,
    ),
    Case(
        id="nothing to recommend",
        kind=ConditionType.RECOMMENDATION_AVAILABLE,
        state="False",
        reason=Reason.NOTHING_TO_IMPROVE,
    ),
    Case(
        id="something to recommend",
        kind=ConditionType.RECOMMENDATION_AVAILABLE,
        state="True",
        reason=Reason.RECOMMENDED,
        says="maxNumSeqs 64 -> 128",
        seen=CAPPED,
        spec={"tuning__mode": "Recommend"},
    ),
    Case(
        id="something to approve",
        kind=ConditionType.RECOMMENDATION_AVAILABLE,
        state="True",
        reason=Reason.AWAITING_APPROVAL,
        says="approve: kubectl annotate --overwrite -n prod vllm chat vllm-autotuner.dev/approve=",
        seen=CAPPED,
        spec={"tuning__mode": "Approve"},
    ),
    Case(
        id="what was approved is another one",
        kind=ConditionType.RECOMMENDATION_AVAILABLE,
        state="True",
        reason=Reason.AWAITING_APPROVAL,
        says=" (approved recommendation 0a1b2c3d is outdated)",
        seen=CAPPED,
        spec={"tuning__mode": "Approve"},
        annotations={APPROVE: "0a1b2c3d"},
    ),
    Case(id="the circuit is closed", kind=ConditionType.CIRCUIT_OPEN, state=None, status={"circuit": {"rollbacks": 1}}),
    Case(
        id="the circuit is open",
        kind=ConditionType.CIRCUIT_OPEN,
        state="True",
        reason=Reason.REPEATED_ROLLBACKS,
        says="2 changes were rolled back; recommendations only",
        status={"circuit": {"state": "Open", "reason": "2 changes were rolled back"}},
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.id}")
def test_conditions(case: Case) -> None:
    found = desk(**case.spec)
    found.annotations.update(case.annotations)
    found.status = dict(case.status)
    found.tick(case.seen, rollout=found.rollout(**case.rollout))
    condition = found.condition(case.kind)
    if case.state is None:
        assert condition is None
        return
    assert condition is not None
    assert condition.status.value == case.state
    assert case.reason is None or condition.reason == case.reason
    assert case.says in condition.message
    assert condition.observed_generation == found.generation


def test_every_condition_moves_its_time_only_when_it_flips() -> None:
    found = desk()
    found.tick(HEALTHY)
    first = {one.type: one.last_transition_time for one in found.read.conditions}
    found.edit(replicas=2)
    found.tick(BLIND)
    after = {one.type: one for one in found.read.conditions}
    assert after[METRICS].last_transition_time != first[METRICS]
    assert after[READY].last_transition_time == first[READY]
    assert after[READY].observed_generation == 2


def test_what_the_api_server_refuses_stalls_and_is_no_fault_of_tuning() -> None:
    found = desk()
    refusal = Refusal(Reason.FORBIDDEN, "PATCH deployments/chat: forbidden")
    inputs = found.inputs(HEALTHY)
    status = decide(replace(inputs, workload=replace(inputs.workload, refusal=refusal))).status
    states = {one.type: (one.status, one.reason) for one in status.conditions}
    assert states[ConditionType.STALLED] == (ConditionStatus.TRUE, Reason.FORBIDDEN)
    assert states[READY] == (ConditionStatus.FALSE, Reason.FORBIDDEN)
    assert RECONCILING not in states


# Texts


def summary(found: Desk) -> dict[str, Any]:
    written: dict[str, Any] = found.status["summary"]
    return written


def test_the_short_texts() -> None:
    found = desk()
    found.tick(CAPPED)
    assert summary(found) == {
        "effective": "seqs=128",
        "ttft": "6.0s/2.0s",
        "tpot": "18ms/50ms",
        "kvUsage": "32%",
        "change": "maxNumSeqs=128 Provisioning",
    }


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"engine__maxNumSeqs": ...}, "engine defaults"),
        ({"engine__maxModelLen": 4096, "engine__kvCacheDtype": "fp8"}, "seqs=64 len=4096 kv=fp8"),
        ({"engine__tensorParallelSize": 2}, "seqs=64 tp=2"),
    ],
)
def test_the_effective_values_in_short(spec: dict[str, Any], text: str) -> None:
    found = desk(**spec)
    found.tick(HEALTHY)
    assert summary(found)["effective"] == text


def test_what_is_not_measured_is_not_shown() -> None:
    found = desk()
    found.tick(
        observation(engine(kv=None), ttft=NOT_MEASURED, tpot=NOT_MEASURED, itl=NOT_MEASURED),
    )
    assert set(summary(found)) == {"effective"}


def test_the_fullest_engine_is_shown() -> None:
    found = desk(replicas=2)
    found.tick(observation(engine(pod="chat-0", kv=0.2), engine(pod="chat-1", kv=0.7)))
    assert summary(found)["kvUsage"] == "70%"


def test_figures_are_taken_anew_only_with_something_that_changed() -> None:
    found = desk(tuning__mode="Recommend")
    found.tick(observation(ttft=latency(0.1)))
    found.tick(observation(ttft=latency(0.5)))
    assert summary(found)["ttft"] == "100ms/2.0s"
    found.edit(tuning__cooldown="1h")
    found.tick(observation(ttft=latency(0.5)))
    assert summary(found)["ttft"] == "500ms/2.0s"


def test_a_diagnosis_is_told_with_its_evidence() -> None:
    found = desk()
    found.tick(WEDGED)
    diagnosis = found.read.diagnosis
    assert diagnosis is not None
    assert (diagnosis.class_, diagnosis.since) == ("Wedged", found.now)
    assert [(one.name, one.value, one.unit, one.threshold) for one in diagnosis.evidence] == [
        ("time without a token", 200, "s", 120)
    ]
    assert "restart it" in diagnosis.message


def test_a_class_that_is_not_confirmed_is_not_told() -> None:
    found = desk()
    found.tick(HEALTHY)
    found.tick(WEDGED)
    assert found.read.diagnosis is not None
    assert found.read.diagnosis.class_ == "Healthy"
    found.tick(WEDGED)
    assert found.read.diagnosis.class_ == "Wedged"


def test_the_numbers_of_the_scale_subresource() -> None:
    found = scaled()
    found.tick(OVERLOADED, rollout=found.rollout(ready=1))
    assert (found.read.ready_replicas, found.read.replicas) == (1, 1)
    assert found.read.selector == "vllm-autotuner.dev/service=chat"


def test_how_a_change_ended_stays_until_the_next() -> None:
    found = desk()
    found.until("Provisioning", CAPPED)
    found.until(None, HELPED)
    found.ticks(50, HEALTHY)
    condition = found.condition(ConditionType.LAST_CHANGE_SUCCEEDED)
    assert condition is not None
    assert (condition.status.value, condition.reason) == ("True", Reason.SUCCEEDED)
    assert condition.message.startswith("maxNumSeqs=128: TTFT improved; TTFT 6.0 s -> 400 ms")
