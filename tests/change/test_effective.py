"""The effective configuration, for every possible status."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.change.worlds import canary_change, change, knobs
from tests.workload.services import service

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import ChangeState, Effective, Source, VLLMServiceStatus
from vllm_autotuner.change.effective import effective_knobs, is_tuned, serving_knobs, settled_knobs, spec_knobs

SMALL = {
    "engine.maxModelLen": ...,
    "engine.kvCacheDtype": ...,
    "engine.tensorParallelSize": ...,
    "engine.maxNumSeqs": 64,
}


def spec(**changes: Any) -> VLLMServiceSpec:
    return service({**SMALL, **{name.replace("__", "."): value for name, value in changes.items()}}).spec


def tuned(seats: int | None, *, basis: int | None = 64, source: Source = Source.TUNED) -> VLLMServiceStatus:
    return VLLMServiceStatus(effective=Effective(max_num_seqs=seats, source=source, basis=knobs(basis)))


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    runs: int | None
    status: VLLMServiceStatus = field(default_factory=VLLMServiceStatus)
    spec: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case(id="a fresh service runs its spec", runs=64),
    Case(id="a tuned value stands on the value it was found with", status=tuned(96), runs=96),
    Case(
        id="an edit of that value makes the tuned one void", status=tuned(96), spec={"engine__maxNumSeqs": 32}, runs=32
    ),
    Case(id="so does leaving it to the engine", status=tuned(96), spec={"engine__maxNumSeqs": ...}, runs=None),
    Case(id="so does an edit of another knob", status=tuned(96), spec={"engine__maxModelLen": 4096}, runs=64),
    Case(
        id="bounds that still hold it change nothing",
        status=tuned(96),
        spec={"tuning__maxNumSeqs": {"min": 64, "max": 96}},
        runs=96,
    ),
    Case(
        id="a lowered maximum makes it void",
        status=tuned(96),
        spec={"tuning__maxNumSeqs": {"min": 32, "max": 80}},
        runs=64,
    ),
    Case(
        id="a raised minimum makes it void",
        status=tuned(48),
        spec={"tuning__maxNumSeqs": {"min": 64, "max": 80}},
        runs=64,
    ),
    Case(id="taking the bounds away changes nothing", status=tuned(96), spec={"tuning": {}}, runs=96),
    Case(id="a status that only repeats the spec", status=tuned(64, source=Source.SPEC), runs=64),
    Case(
        id="a repeated spec is not tuned when the spec moves on",
        status=tuned(64, source=Source.SPEC),
        spec={"engine__maxNumSeqs": 80},
        runs=80,
    ),
    Case(
        id="tuned values without a basis",
        status=VLLMServiceStatus(effective=Effective(max_num_seqs=96, source=Source.TUNED)),
        runs=64,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_without_a_change(case: Case) -> None:
    given = spec(**case.spec)
    assert settled_knobs(given, case.status).max_num_seqs == case.runs
    assert effective_knobs(given, case.status) == settled_knobs(given, case.status)
    assert is_tuned(given, case.status) is (settled_knobs(given, case.status) != spec_knobs(given))


STABLE_RUNS = [
    (ChangeState.PROPOSED, 64, 64),
    (ChangeState.PROVISIONING, 96, 64),
    (ChangeState.VERIFYING, 96, 64),
    (ChangeState.WARMING_UP, 96, 64),
    (ChangeState.ANALYZING, 96, 64),
    (ChangeState.HELD, 96, 64),
    (ChangeState.PROMOTING, 96, 96),
    (ChangeState.BAKING, 96, 96),
    (ChangeState.ROLLING_BACK, 64, 64),
]


@pytest.mark.parametrize(("state", "in_place", "beside_a_canary"), STABLE_RUNS)
def test_with_a_change(state: ChangeState, in_place: int, beside_a_canary: int) -> None:
    status = VLLMServiceStatus(active_change=change(state))
    assert effective_knobs(spec(), status) == knobs(in_place)
    assert settled_knobs(spec(), status) == knobs(64)
    status = VLLMServiceStatus(active_change=canary_change(state))
    assert effective_knobs(spec(), status) == knobs(beside_a_canary)
    assert settled_knobs(spec(), status) == knobs(64)


@pytest.mark.parametrize("state", list(ChangeState))
def test_metrics_are_read_by_the_old_value_until_new_pods_serve(state: ChangeState) -> None:
    status = VLLMServiceStatus(active_change=change(state))
    starting = state in (ChangeState.PROVISIONING, ChangeState.PROMOTING)
    assert serving_knobs(spec(), status) == (knobs(64) if starting else effective_knobs(spec(), status))


def test_every_state_is_in_the_table() -> None:
    assert {state for state, _, _ in STABLE_RUNS} == set(ChangeState)


def test_a_service_that_adopts_a_deployment_has_no_values() -> None:
    adopting = service(
        {"model": ..., "engine": ..., "replicas": ..., "accelerator": ..., "targetRef": {"name": "chat"}}
    )
    assert spec_knobs(adopting.spec) == settled_knobs(adopting.spec, VLLMServiceStatus()) == EngineKnobs()


def test_for_an_unread_deployment_the_status_tells_what_runs() -> None:
    adopting = service(
        {"model": ..., "engine": ..., "replicas": ..., "accelerator": ..., "targetRef": {"name": "chat"}},
        status={"effective": {"maxNumSeqs": 64, "source": "Observed"}},
    )
    assert settled_knobs(adopting.spec, adopting.status) == EngineKnobs(max_num_seqs=64)
