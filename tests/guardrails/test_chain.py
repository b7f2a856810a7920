"""Each guardrail alone, allowing and objecting, and the chain as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.situations import diagnosis
from tests.workload.services import service

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import Mode
from vllm_autotuner.api.status import ChangeTarget, Confidence, parse_status
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.guardrails import chain
from vllm_autotuner.guardrails.chain import GUARDRAILS, Allow, Context, Deny, Hold, Policy, objections, strictest
from vllm_autotuner.guardrails.mode_ceiling import Limits
from vllm_autotuner.guardrails.reasons import HoldReason
from vllm_autotuner.planning.placement import FreeGpus
from vllm_autotuner.planning.proposal import Proposal

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
BOUNDED = {"tuning.mode": "Automatic", "tuning.maxNumSeqs": {"min": 16, "max": 256}}
LISTED = {
    "tuning.tensorParallelSize": {"allowed": [1, 2]},
    "tuning.kvCacheDtype": {"allowed": ["auto", "fp8"]},
    "tuning.maxModelLen": {"min": 4096, "max": 8192},
    "engine.tensorParallelSize": ...,
    "engine.kvCacheDtype": ...,
    "engine.maxModelLen": ...,
}
SCALED = {"replicas": ..., "scaling": {"minReplicas": 1, "maxReplicas": 4}}
CHANGE = {
    "id": "c1",
    "generation": 1,
    "knob": "maxNumSeqs",
    "toValue": "96",
    "from": {"maxNumSeqs": 128},
    "to": {"maxNumSeqs": 96},
    "state": "Analyzing",
}


def at(**ago: float) -> str:
    """A time before now, as a status has it; negative is later."""
    return (NOW - timedelta(**ago)).isoformat()


def ended(start: str, end: str, *, outcome: str = "Succeeded") -> dict[str, Any]:
    """An entry of the history, an hour old."""
    entry = {"id": "c0", "knob": "maxNumSeqs", "fromValue": start, "toValue": end, "outcome": outcome}
    return entry | {"finishedAt": at(hours=1)}


def goes_on(
    id: str,  # noqa: A002 (as in the table)
    *,
    spare: int,
    held: bool = False,
    named: DiagnosisClass = DiagnosisClass.HEALTHY,
) -> "Case":
    """The next step of a kept change, with so many replicas that scaling will remove."""
    return Case(
        id=id,
        link=chain.cooled_down,
        status={"cooldownUntil": at(hours=-5), "history": [ended("64", "128")]},
        changed={"diagnosis": diagnosis(named), "spare_replicas": spare},
        reason=HoldReason.COOLDOWN if held else None,
        says=f"does not need {spare} replica" if held else "",
    )


def proposal(**changed: Any) -> Proposal:
    given = Proposal(
        knob=Knob.MAX_NUM_SEQS,
        current=128,
        value=192,
        target=ChangeTarget.TTFT,
        reason="All running-sequence slots are taken.",
        confidence=Confidence.HIGH,
    )
    return replace(given, **changed)


def context(spec: Mapping[str, Any] | None = None, status: Mapping[str, Any] | None = None, **changed: Any) -> Context:
    """In which everything is allowed, but for what is named."""
    given = Context(
        now=NOW,
        spec=service({**BOUNDED, **(spec or {})}).spec,
        status=parse_status(status),
        diagnosis=diagnosis(DiagnosisClass.CONCURRENCY_CAPPED),
        paused=False,
        settled=True,
        watching_since=NOW - timedelta(hours=1),
        window=timedelta(seconds=30),
    )
    return replace(given, **changed)


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    link: Policy
    reason: HoldReason | None = None
    """None: it allows."""
    says: str = ""
    kind: type[Hold] | type[Deny] = Hold
    proposal: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)
    changed: Mapping[str, Any] = field(default_factory=dict)


def mode(id: str, mode: str, *, allowed: bool, approved: bool = False) -> Case:  # noqa: A002 (as in the table)
    return Case(
        id=id,
        link=chain.mode_applies,
        reason=None if allowed else HoldReason.MODE,
        says="" if allowed else f"mode is {mode}",
        spec={"tuning.mode": mode},
        changed={"approved": approved},
    )


def used(id: str, *, changes: int, start: str | None, held: bool) -> Case:  # noqa: A002
    budget = {"changesToday": changes} | ({"windowStart": start} if start else {})
    return Case(
        id=id,
        link=chain.within_budget,
        reason=HoldReason.BUDGET if held else None,
        says=f"{changes} of 2" if held else "",
        status={"budget": budget},
    )


def circuit(id: str, *, held: bool, **fields: Any) -> Case:  # noqa: A002
    return Case(
        id=id,
        link=chain.circuit_closed,
        reason=HoldReason.CIRCUIT_OPEN if held else None,
        says=fields.get("reason", "too many rollbacks") if held else "",
        status={"circuit": fields},
    )


CASES = (
    mode("Automatic changes by itself", "Automatic", allowed=True),
    mode("Recommend changes nothing", "Recommend", allowed=False),
    mode("Off changes nothing", "Off", allowed=False),
    mode("Approve waits for a person", "Approve", allowed=False),
    mode("Approve acts on a person's word", "Approve", allowed=True, approved=True),
    mode("a person's word does not turn Recommend into Approve", "Recommend", allowed=False, approved=True),
    mode("a person's word does not turn Off into Approve", "Off", allowed=False, approved=True),
    *(
        Case(
            id=f"{asked} under the ceiling {ceiling.value}" + (", approved" if approved else ""),
            link=chain.under_the_ceiling,
            spec={"tuning.mode": asked},
            changed={"limits": Limits(ceiling=ceiling, why="the ceiling"), "approved": approved},
            reason=HoldReason.CLUSTER_CEILING if held else None,
            says="the ceiling" if held else "",
        )
        for asked, ceiling, approved, held in (
            ("Automatic", Mode.AUTOMATIC, False, False),
            ("Automatic", Mode.APPROVE, False, True),
            ("Automatic", Mode.APPROVE, True, False),
            ("Automatic", Mode.RECOMMEND, True, True),
            ("Automatic", Mode.OFF, True, True),
            ("Approve", Mode.APPROVE, False, False),
            ("Approve", Mode.RECOMMEND, True, True),
            ("Recommend", Mode.RECOMMEND, False, False),
            ("Recommend", Mode.OFF, False, True),
            ("Off", Mode.OFF, False, False),
        )
    ),
    Case(id="not paused", link=chain.not_paused),
    Case(id="a person said stop", link=chain.not_paused, changed={"paused": True}, reason=HoldReason.PAUSED),
    Case(id="a knob with bounds may be applied", link=chain.may_be_applied),
    Case(
        id="a knob without bounds is recommended only",
        link=chain.may_be_applied,
        proposal={"recommend_only": "spec.tuning.maxNumSeqs sets no bounds"},
        reason=HoldReason.RECOMMEND_ONLY,
        says="maxNumSeqs sets no bounds",
    ),
    Case(id="a value within its bounds", link=chain.inside_bounds),
    Case(id="a value at the lower bound", link=chain.inside_bounds, proposal={"value": 16}),
    Case(id="a value at the upper bound", link=chain.inside_bounds, proposal={"value": 256}),
    Case(
        id="a value above its bounds is never applied",
        link=chain.inside_bounds,
        proposal={"value": 257},
        reason=HoldReason.OUT_OF_BOUNDS,
        kind=Deny,
        says="257 is outside spec.tuning.maxNumSeqs (16 to 256)",
    ),
    Case(
        id="a value below its bounds is never applied",
        link=chain.inside_bounds,
        proposal={"value": 15},
        reason=HoldReason.OUT_OF_BOUNDS,
        kind=Deny,
        says="15 is outside",
    ),
    Case(
        id="a length that goes with it and is below its bounds is never applied",
        link=chain.inside_bounds,
        spec={"tuning.maxModelLen": {"min": 1024, "max": 65_536}},
        proposal={"max_model_len": 512},
        reason=HoldReason.OUT_OF_BOUNDS,
        kind=Deny,
        says="512 is outside spec.tuning.maxModelLen (1024 to 65536)",
    ),
    Case(
        id="without bounds this link has nothing to say",
        link=chain.inside_bounds,
        spec={"tuning.maxNumSeqs": ...},
        proposal={"value": 100_000},
    ),
    Case(
        id="replicas within scaling",
        link=chain.inside_bounds,
        spec=SCALED,
        proposal={"knob": Knob.REPLICAS, "value": 4},
    ),
    Case(
        id="replicas past scaling are never applied",
        link=chain.inside_bounds,
        spec=SCALED,
        proposal={"knob": Knob.REPLICAS, "value": 5},
        reason=HoldReason.OUT_OF_BOUNDS,
        kind=Deny,
        says="5 is outside spec.scaling (1 to 4)",
    ),
    *(
        Case(id=f"{value} is listed", link=chain.inside_bounds, spec=LISTED, proposal={"knob": knob, "value": value})
        for knob, value in ((Knob.TENSOR_PARALLEL_SIZE, 2), (Knob.KV_CACHE_DTYPE, "fp8"), (Knob.MAX_MODEL_LEN, 8192))
    ),
    *(
        Case(
            id=f"{value} is not listed",
            link=chain.inside_bounds,
            spec=LISTED,
            proposal={"knob": knob, "value": value},
            reason=HoldReason.OUT_OF_BOUNDS,
            kind=Deny,
            says=f"{value} is outside spec.tuning.{knob.value}",
        )
        for knob, value in (
            (Knob.TENSOR_PARALLEL_SIZE, 4),
            (Knob.KV_CACHE_DTYPE, "fp8_e5m2"),
            (Knob.MAX_MODEL_LEN, 8193),
            (Knob.MAX_MODEL_LEN, "fp8"),
        )
    ),
    Case(
        id="a knob without bounds is not ours, whatever the proposal says",
        link=chain.may_be_applied,
        proposal={"knob": Knob.KV_CACHE_DTYPE, "value": "fp8"},
        reason=HoldReason.RECOMMEND_ONLY,
        says="kvCacheDtype has no bounds",
    ),
    Case(
        id="no other field manager declares the flags",
        link=chain.free_to_write,
        changed={"locked": {Knob.REPLICAS: "an HPA"}},
    ),
    Case(
        id="somebody else declares the flags",
        link=chain.free_to_write,
        changed={"locked": {Knob.MAX_NUM_SEQS: "argocd-controller declares them"}},
        reason=HoldReason.OWNED_ELSEWHERE,
    ),
    Case(
        id="outside the window",
        link=chain.in_window,
        spec={"tuning.windows": [{"schedule": "0 2 * * *", "duration": "2h"}]},
        reason=HoldReason.OUTSIDE_WINDOW,
        says="2026-11-22T02:00:00Z",
    ),
    Case(
        id="inside the window",
        link=chain.in_window,
        spec={"tuning.windows": [{"schedule": "0 11 * * *", "duration": "2h"}]},
    ),
    Case(id="no windows", link=chain.in_window),
    Case(
        id="replicas come in a cooldown",
        link=chain.cooled_down,
        status={"cooldownUntil": at(hours=-5)},
        proposal={"knob": Knob.REPLICAS, "value": 4},
    ),
    Case(
        id="replicas come when the budget is used up",
        link=chain.within_budget,
        status={"budget": {"changesToday": 2, "windowStart": at(hours=5)}},
        proposal={"knob": Knob.REPLICAS, "value": 4},
    ),
    Case(
        id="replicas come while the circuit breaker is open",
        link=chain.circuit_closed,
        status={"circuit": {"state": "Open", "until": at(days=-1)}},
        proposal={"knob": Knob.REPLICAS, "value": 4},
    ),
    Case(id="there are metrics", link=chain.metrics_fresh),
    Case(
        id="no evidence, no change",
        link=chain.metrics_fresh,
        changed={"diagnosis": diagnosis(DiagnosisClass.METRICS_BLIND)},
        reason=HoldReason.METRICS_MISSING,
        says="A sentence.",
    ),
    Case(id="there is something to compare with", link=chain.measured_before),
    Case(
        id="without a before there is no verdict",
        link=chain.measured_before,
        changed={"measured": False},
        reason=HoldReason.NOT_MEASURED,
        says="no baseline to compare with",
    ),
    Case(id="enough requests come", link=chain.enough_requests),
    Case(
        id="a handful of requests allows no verdict",
        link=chain.enough_requests,
        changed={"too_few_requests": "too few requests: about 12 per pod"},
        reason=HoldReason.TOO_FEW_REQUESTS,
        says="about 12 per pod",
    ),
    Case(
        id="replicas need no verdict",
        link=chain.enough_requests,
        proposal={"knob": Knob.REPLICAS, "current": 1, "value": 2},
        changed={"too_few_requests": "too few requests: about 12 per pod"},
    ),
    Case(id="high confidence in both", link=chain.confident),
    Case(id="medium is enough", link=chain.confident, proposal={"confidence": Confidence.MEDIUM}),
    Case(
        id="a guess is shown, not applied",
        link=chain.confident,
        proposal={"confidence": Confidence.LOW},
        reason=HoldReason.LOW_CONFIDENCE,
        says="confidence is Low",
    ),
    Case(
        id="a proposal is no surer than its diagnosis",
        link=chain.confident,
        changed={"diagnosis": diagnosis(DiagnosisClass.PAST_TPOT_KNEE, confidence=Confidence.LOW)},
        reason=HoldReason.LOW_CONFIDENCE,
        says="confidence is Low",
    ),
    Case(id="no change is under way", link=chain.one_at_a_time),
    Case(
        id="two changes at once cannot be judged",
        link=chain.one_at_a_time,
        status={"activeChange": CHANGE},
        reason=HoldReason.CHANGE_ACTIVE,
        says="maxNumSeqs -> 96 is in progress (Analyzing)",
    ),
    Case(id="never changed before", link=chain.cooled_down),
    Case(id="the cooldown is over", link=chain.cooled_down, status={"cooldownUntil": at(seconds=0)}),
    Case(
        id="the cooldown is not over",
        link=chain.cooled_down,
        status={"cooldownUntil": at(seconds=-1)},
        reason=HoldReason.COOLDOWN,
        says="2026-11-21T12:00:01Z",
    ),
    Case(
        id="the next step in the direction that was kept",
        link=chain.cooled_down,
        status={"cooldownUntil": at(hours=-5), "history": [ended("64", "128")]},
    ),
    Case(
        id="the way back from what was kept",
        link=chain.cooled_down,
        status={"cooldownUntil": at(hours=-5), "history": [ended("256", "128")]},
        reason=HoldReason.COOLDOWN,
    ),
    Case(
        id="the next step after one that was not kept",
        link=chain.cooled_down,
        status={"cooldownUntil": at(hours=-5), "history": [ended("64", "128", outcome="RolledBack")]},
        reason=HoldReason.COOLDOWN,
    ),
    Case(
        id="a cooldown that the user wrote holds for the next step as well",
        link=chain.cooled_down,
        spec={"tuning.cooldown": "8h"},
        status={"cooldownUntil": at(hours=-5), "history": [ended("64", "128")]},
        reason=HoldReason.COOLDOWN,
        says="2026-11-21T17:00:00Z",
    ),
    goes_on("a step to save GPUs while replicas are to go", spare=2, held=True),
    goes_on("a step to save GPUs when they have gone", spare=0),
    goes_on("a step for missed objectives", spare=1, named=DiagnosisClass.CONCURRENCY_CAPPED),
    Case(id="no budget was ever touched", link=chain.within_budget),
    used("a change is left today", changes=1, start=at(hours=2), held=False),
    used("today's changes are used", changes=2, start=at(hours=23, minutes=59), held=True),
    used("more than that, edited", changes=99, start=at(hours=2), held=True),
    used("yesterday's changes do not count", changes=2, start=at(hours=24), held=False),
    used("a negative count is none", changes=-5, start=at(hours=2), held=False),
    used("a count without a time is none", changes=9, start=None, held=False),
    Case(
        id="a larger budget counts further",
        link=chain.within_budget,
        spec={"tuning.budget": {"changesPerDay": 3}},
        status={"budget": {"changesToday": 2, "windowStart": at(hours=2)}},
    ),
    Case(id="nothing was ever rolled back", link=chain.circuit_closed),
    circuit("one rollback leaves it closed", state="Closed", rollbacks=1, openedAt=at(days=1), held=False),
    circuit("an open one holds", state="Open", until=at(days=-1), reason="2 changes were rolled back", held=True),
    circuit("an open one closes by itself", state="Open", until=at(seconds=0), held=False),
    circuit("one that was opened without an end waits for a person", state="Open", held=True),
    circuit("a negative count opens nothing", state="Closed", rollbacks=-3, held=False),
    Case(id="the workload is settled", link=chain.settled),
    Case(
        id="a moving workload is no baseline",
        link=chain.settled,
        changed={"settled": False},
        reason=HoldReason.NOT_SETTLED,
        says="not ready",
    ),
    Case(id="what a change is for goes on", link=chain.backlog_stays),
    Case(
        id="what ends by itself needs no change",
        link=chain.backlog_stays,
        changed={"drains": "the queue of 18 ends in 40 s at its present pace"},
        reason=HoldReason.ENDS_BY_ITSELF,
        says="the queue of 18 ends in 40 s at its present pace, before a change",
    ),
    Case(
        id="replicas ask themselves what ends",
        link=chain.backlog_stays,
        changed={"drains": "the queue has just ended"},
        proposal={"knob": Knob.REPLICAS, "current": 1, "value": 2},
    ),
    Case(
        id="one whole window was watched",
        link=chain.watched_long_enough,
        changed={"watching_since": NOW - timedelta(seconds=30)},
    ),
    Case(
        id="a fresh leader looks first",
        link=chain.watched_long_enough,
        changed={"watching_since": NOW - timedelta(seconds=29)},
        reason=HoldReason.STARTING,
        says="just started",
    ),
    Case(
        id="a clock that jumped back is no watching",
        link=chain.watched_long_enough,
        changed={"watching_since": NOW + timedelta(hours=2)},
        reason=HoldReason.STARTING,
        says="just started",
    ),
    Case(id="the operator is well", link=chain.operator_well),
    Case(
        id="the operator is in trouble",
        link=chain.operator_well,
        changed={"trouble": "the API server failed"},
        reason=HoldReason.OPERATOR_UNWELL,
        says="degraded: the API server failed",
    ),
    Case(id="another value was rolled back", link=chain.not_blocked, changed={"blocked": (("maxNumSeqs", "256"),)}),
    Case(
        id="the value was rolled back",
        link=chain.not_blocked,
        changed={"blocked": (("maxNumSeqs", "192"),)},
        reason=HoldReason.RESTING,
        says="192 was rolled back or declined before",
    ),
    Case(
        id="more than was asked for never found too little",
        link=chain.fits_in_memory,
        changed={"infeasible": (EngineKnobs(max_num_seqs=256),)},
    ),
    Case(
        id="less than this found too little memory",
        link=chain.fits_in_memory,
        changed={"infeasible": (EngineKnobs(max_num_seqs=160),)},
        reason=HoldReason.INFEASIBLE,
        says="not enough memory for maxNumSeqs=160",
        kind=Deny,
    ),
    Case(
        id="a replica more needs no memory of another",
        link=chain.fits_in_memory,
        changed={"infeasible": (EngineKnobs(),)},
        proposal={"knob": Knob.REPLICAS, "value": 3},
        spec=SCALED,
    ),
    Case(id="nobody else writes the workload", link=chain.uncontested),
    Case(
        id="somebody else writes the workload",
        link=chain.uncontested,
        status={"contest": {"manager": "argocd", "fields": "args", "generation": 1}},
        reason=HoldReason.CONTESTED,
        says="argocd also writes args",
    ),
    Case(id="nobody looked for GPUs", link=chain.finds_gpus),
    Case(
        id="a GPU for one pod more",
        link=chain.finds_gpus,
        changed={"free_gpus": FreeGpus(free=(2,), largest_node=8, devices=2)},
    ),
    Case(
        id="GPUs, but not enough on one node",
        link=chain.finds_gpus,
        changed={"free_gpus": FreeGpus(free=(1, 1), largest_node=8, devices=2)},
        reason=HoldReason.NO_FREE_GPUS,
        says="no node has 2 free GPUs: at most 1 free on one",
    ),
    Case(
        id="the quota is used up",
        link=chain.finds_gpus,
        changed={"free_gpus": FreeGpus(free=(8,), largest_node=8, quota=0)},
        reason=HoldReason.NO_FREE_GPUS,
        says="ResourceQuota leaves 0 GPUs (1 needed)",
    ),
    Case(
        id="a larger degree needs its own number",
        link=chain.finds_gpus,
        changed={"free_gpus": FreeGpus(free=(3,), largest_node=8, devices=2)},
        proposal={"knob": Knob.TENSOR_PARALLEL_SIZE, "value": 4},
        reason=HoldReason.NO_FREE_GPUS,
        says="no node has 4 free GPUs",
    ),
    Case(
        id="replicas say so themselves",
        link=chain.finds_gpus,
        changed={"free_gpus": FreeGpus(free=(), largest_node=8)},
        proposal={"knob": Knob.REPLICAS, "value": 3},
        spec=SCALED,
    ),
    Case(id="its turn", link=chain.fleet_allows),
    Case(
        id="others are before it",
        link=chain.fleet_allows,
        changed={"queue": "waiting for its turn"},
        reason=HoldReason.QUEUED,
        says="its turn",
    ),
    Case(
        id="replicas ask nobody",
        link=chain.fleet_allows,
        changed={"queue": "waiting for its turn"},
        proposal={"knob": Knob.REPLICAS, "value": 3},
        spec=SCALED,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.link.__name__}: {case.id}")
def test_each_link_alone(case: Case) -> None:
    answer = case.link(proposal(**case.proposal), context(case.spec, case.status, **case.changed))
    if case.reason is None:
        assert answer == Allow()
    else:
        assert isinstance(answer, case.kind)
        assert answer.reason is case.reason
        assert case.says in answer.message


def test_every_link_is_in_the_table_with_both_answers() -> None:
    allowing = {case.link for case in CASES if case.reason is None}
    objecting = {case.link for case in CASES if case.reason is not None}
    assert allowing == objecting == set(GUARDRAILS)


def test_every_reason_is_given_by_some_link() -> None:
    assert {case.reason for case in CASES if case.reason is not None} == set(HoldReason)


def test_where_everything_allows_there_is_no_objection() -> None:
    assert objections(proposal(), context()) == ()


def test_all_objections_are_listed_in_the_order_of_the_chain() -> None:
    everything = context(
        {
            "tuning.mode": "Recommend",
            "tuning.windows": [{"schedule": "0 2 * * *", "duration": "2h"}],
        },
        {
            "activeChange": CHANGE,
            "cooldownUntil": at(hours=-1),
            "budget": {"changesToday": 2, "windowStart": at(hours=1)},
            "circuit": {"state": "Open"},
            "contest": {"manager": "argocd", "generation": 1},
        },
        paused=True,
        settled=False,
        measured=False,
        too_few_requests="a handful of requests",
        locked={Knob.MAX_NUM_SEQS: "somebody declares it"},
        diagnosis=diagnosis(DiagnosisClass.METRICS_BLIND),
        watching_since=NOW,
        limits=Limits(ceiling=Mode.OFF, why="the ceiling"),
        drains="the queue has just ended",
        trouble="the API server failed",
        queue="waiting for its turn",
        blocked=(("maxNumSeqs", "1"),),
        infeasible=(EngineKnobs(max_num_seqs=1),),
        free_gpus=FreeGpus(free=(), largest_node=8),
    )
    found = objections(proposal(recommend_only="no", value=1, confidence=Confidence.LOW), everything)
    assert len(found) == len(GUARDRAILS)
    assert [answer.reason for answer in found] == [
        HoldReason.MODE,
        HoldReason.CLUSTER_CEILING,
        HoldReason.PAUSED,
        HoldReason.RECOMMEND_ONLY,
        HoldReason.OUT_OF_BOUNDS,
        HoldReason.OWNED_ELSEWHERE,
        HoldReason.OUTSIDE_WINDOW,
        HoldReason.METRICS_MISSING,
        HoldReason.NOT_MEASURED,
        HoldReason.TOO_FEW_REQUESTS,
        HoldReason.LOW_CONFIDENCE,
        HoldReason.STARTING,
        HoldReason.OPERATOR_UNWELL,
        HoldReason.NOT_SETTLED,
        HoldReason.ENDS_BY_ITSELF,
        HoldReason.CHANGE_ACTIVE,
        HoldReason.COOLDOWN,
        HoldReason.BUDGET,
        HoldReason.CIRCUIT_OPEN,
        HoldReason.RESTING,
        HoldReason.INFEASIBLE,
        HoldReason.CONTESTED,
        HoldReason.NO_FREE_GPUS,
        HoldReason.QUEUED,
    ]
    assert strictest(found).strictness == Deny(reason=HoldReason.OUT_OF_BOUNDS, message="").strictness


@given(
    st.lists(
        st.sampled_from(
            [Allow(), Hold(reason=HoldReason.PAUSED, message="p"), Deny(reason=HoldReason.MODE, message="m")]
        )
    )
)
def test_the_strictest_answer_decides(answers: list[Allow | Hold | Deny]) -> None:
    decided = strictest(answers)
    assert all(decided.strictness >= answer.strictness for answer in answers)
    assert decided in (*answers, Allow())


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "budget": st.fixed_dictionaries(
                {},
                optional={
                    "changesToday": st.integers(-9, 9),
                    "windowStart": st.sampled_from([at(hours=1), at(days=-400)]),
                },
            ),
            "circuit": st.fixed_dictionaries(
                {},
                optional={
                    "state": st.sampled_from(["Open", "Closed"]),
                    "until": st.sampled_from([at(hours=1), at(hours=-1)]),
                    "rollbacks": st.integers(-9, 9),
                    "fromANewerVersion": st.booleans(),
                },
            ),
            "cooldownUntil": st.sampled_from([at(hours=1), at(hours=-1)]),
            "conditions": st.just([]),
            "fromANewerVersion": st.just({"a": 1}),
        },
    )
)
def test_no_edited_status_breaks_the_chain(status: dict[str, Any]) -> None:
    for answer in objections(proposal(), context(status=status)):
        assert answer.message
