"""What tuning saved or spent, by hand: the arithmetic stands beside each assert."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from vllm_autotuner.api.gpu_steps import GpuCause, GpuStep
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import parse_service
from vllm_autotuner.api.status import HistoryEntry, Outcome, VLLMServiceStatus
from vllm_autotuner.engine.catalogue import read_catalogue
from vllm_autotuner.overview.gpu_hours import (
    RECORDED,
    GpuHours,
    Prices,
    Savings,
    Unknown,
    fleet_savings,
    gpu_hours,
    saved_gpus_now,
    savings_of,
    step_effects,
)
from vllm_autotuner.overview.savings_text import (
    fleet_lines,
    savings_json,
    short_savings,
    told_change,
    told_fleet,
    told_savings,
    told_step,
)

START = datetime(2026, 11, 1, tzinfo=UTC)
H100 = Prices(catalogue=read_catalogue({"prices": {"H100": 2.5}, "currency": "USD"}))
SPEC: dict[str, Any] = {
    "model": {"name": "m"},
    "engine": {"image": "i"},
    "accelerator": {"product": "NVIDIA-H100-80GB-HBM3"},
    "scaling": {"minReplicas": 1, "maxReplicas": 8},
}


def hour(hours: float) -> datetime:
    return START + timedelta(hours=hours)


def step(
    hours: float,
    gpus: float | None,
    cause: GpuCause = GpuCause.SCALING,
    *,
    reference: float | None = 3,
    change_id: str | None = None,
) -> GpuStep:
    return GpuStep(at=hour(hours), gpus=gpus, reference=reference, cause=cause, change_id=change_id)


NIGHT = (step(0, 3, GpuCause.START), step(10, 2), step(18, 3), step(20, 4))
"""Three GPUs at first; two for eight hours, three for two, then four."""


def entry(**changes: Any) -> HistoryEntry:
    given: dict[str, Any] = {
        "id": "c1",
        "knob": "maxNumSeqs",
        "from_value": "64",
        "to_value": "128",
        "outcome": Outcome.SUCCEEDED,
        "started_at": hour(9),
        "finished_at": hour(10),
        "extra_gpus": 1,
    }
    return HistoryEntry(**{**given, **changes})


def service(*steps: GpuStep, history: tuple[HistoryEntry, ...] = (), **spec: Any) -> dict[str, Any]:
    status = to_wire(VLLMServiceStatus(gpu_steps=steps, history=history))
    return {"metadata": {"namespace": "prod", "name": "chat"}, "spec": SPEC | spec, "status": status}


def saved(body: dict[str, Any], *, until: float = 24, since: datetime = RECORDED, prices: Prices = H100) -> Savings:
    return savings_of(parse_service(body), since=since, until=hour(until), prices=prices)


def test_a_day_is_summed_up() -> None:
    found = gpu_hours(NIGHT, since=RECORDED, until=hour(24))
    # 3 * 10 + 2 * 8 + 3 * 2 + 4 * 4 = 68 of 3 * 24 = 72
    assert found == GpuHours(since=START, until=hour(24), used=68, reference=72)
    assert found.saved == 4


def test_a_period_cuts_steps() -> None:
    # From hour 12 to 22: 2 * 6 + 3 * 2 + 4 * 2 = 26 of 30
    found = gpu_hours(NIGHT, since=hour(12), until=hour(22))
    assert found == GpuHours(since=hour(12), until=hour(22), used=26, reference=30)


def test_the_effects_of_the_steps_add_up_to_the_sum() -> None:
    effects = step_effects(NIGHT, until=hour(24))
    assert [each.saved for each in effects] == [0, 8, 0, -4]
    assert [each.before for each in effects] == [None, 3, 2, 3]


@pytest.mark.parametrize(
    ("steps", "since", "says"),
    [
        pytest.param((), START, "has not recorded", id="an object of an older operator"),
        pytest.param((step(0, None, reference=None),), START, "does not cover", id="an autoscaler has the replicas"),
        pytest.param((step(30, 2),), START, "does not cover", id="the record begins later"),
    ],
)
def test_what_is_not_known_is_not_zero(steps: tuple[GpuStep, ...], since: datetime, says: str) -> None:
    found = gpu_hours(steps, since=since, until=hour(24))
    assert isinstance(found, Unknown)
    assert says in found.why
    assert short_savings(saved(service(*steps))) == "not known"
    assert savings_json(saved(service(*steps)))["gpuHoursSaved"] is None


def test_a_gap_is_left_out_and_told() -> None:
    found = saved(service(step(0, 3), step(4, None, reference=None), step(10, 2)), until=12)
    assert isinstance(found.hours, GpuHours)
    # 3 * 4 + 2 * 2 = 16 of 18; six hours are not known
    assert (found.hours.used, found.hours.saved, found.hours.unknown) == (16, 2, 6)
    assert "6 h not known" in told_savings(found)


def test_trials_are_a_cost() -> None:
    found = saved(service(*NIGHT, history=(entry(),)))
    assert (found.net, found.money, found.kept) == (3, 7.5, 1)  # 4 saved, 1 for an hour of one more pod, 2.50 each
    assert told_savings(found) == (
        "saved 3 GPU-hours (7.50 USD) since 2026-11-01 00:00Z: it asked for 68 GPU-hours instead of 72; "
        "trials took at most 1 GPU-hour"
    )


def test_a_change_of_an_older_operator_has_no_known_cost() -> None:
    found = saved(service(*NIGHT, history=(entry(extra_gpus=None),)))
    assert isinstance(found.trials, Unknown)
    assert found.net is None
    assert "trials not counted (not known)" in told_savings(found)


def test_more_gpus_than_before_are_spent() -> None:
    found = saved(service(step(0, 3, GpuCause.START), step(12, 5)))
    assert short_savings(found) == "spent 24 GPU-hours (60.00 USD)"


def test_without_a_price_there_is_no_money() -> None:
    assert short_savings(saved(service(*NIGHT), prices=Prices())) == "saved 4 GPU-hours"
    assert short_savings(saved(service(*NIGHT, accelerator={"product": "MI300X"}))) == "saved 4 GPU-hours"
    assert short_savings(saved(service(*NIGHT), prices=Prices(flat=1.0))) == "saved 4 GPU-hours (4.00)"


def test_the_price_of_an_adopted_service_is_that_of_the_gpu_found() -> None:
    body = service(*NIGHT)
    body["spec"] = {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}}
    assert short_savings(saved(body)) == "saved 4 GPU-hours"
    body["status"]["gpuProduct"] = "NVIDIA-H100-80GB-HBM3"
    assert short_savings(saved(body)) == "saved 4 GPU-hours (10.00 USD)"
    body["spec"]["accelerator"] = {"product": "MI300X"}
    assert short_savings(saved(body)) == "saved 4 GPU-hours", "what the spec says counts"


def test_a_step_says_what_it_saves_a_day_and_came_to() -> None:
    told = [told_step(each) for each in step_effects(NIGHT, until=hour(24))]
    assert told == [
        "3 GPUs (the record begins); 10 h: saved and spent nothing",
        "3 -> 2 GPUs (scaled by the operator), saves 24 GPU-hours a day; 8 h: saved 8 GPU-hours",
        "2 -> 3 GPUs (scaled by the operator); 2 h: saved and spent nothing",
        "3 -> 4 GPUs (scaled by the operator), costs 24 GPU-hours a day; 4 h: spent 4 GPU-hours",
    ]


def test_a_kept_change_says_what_it_did_to_the_gpus() -> None:
    split = entry(id="c2", knob="tensorParallelSize", from_value="2", to_value="1")
    steps = (step(0, 4, reference=4), step(10, 2, GpuCause.CHANGE, reference=4, change_id="c2"))
    assert told_change(to_wire(split), steps) == (
        "4 -> 2 GPUs, saves 48 GPU-hours a day; trying it took at most 1 GPU-hour"
    )
    assert told_change(to_wire(split), ()) == "effect on GPUs not known; trying it took at most 1 GPU-hour"
    assert told_change(to_wire(entry()), steps).startswith("the same GPUs; ")
    undone = entry(outcome=Outcome.ROLLED_BACK, extra_gpus=None)
    assert told_change(to_wire(undone), steps) == "GPUs of its pods not known"
    assert told_change({"id": "c"}, steps) == "not known: this entry cannot be read"


def test_a_fleet_says_what_its_sum_lacks() -> None:
    found = fleet_savings([saved(service(*NIGHT)), saved(service(*NIGHT), prices=Prices()), saved(service())])
    assert (found.services, found.known, found.priced) == (3, 2, 1)
    assert told_fleet(found) == "saved 8 GPU-hours (10.00 USD)"
    assert list(fleet_lines(found)) == [
        "asked for 136 GPU-hours instead of 144 GPU-hours",
        "not known for 1 of 3 services, which are not in the sum",
        "the money is of 1 service; the price of a GPU is not known for the others",
    ]
    assert told_fleet(fleet_savings([])) == "not known: no service has a record of its GPUs"


def test_changes_of_the_period_are_counted_and_a_full_history_says_so() -> None:
    history = tuple(entry(id=str(index), finished_at=hour(10 + index)) for index in range(10))
    found = saved(service(*NIGHT, history=history), since=hour(15))
    assert (found.kept, found.all_changes) == (5, True)
    assert not saved(service(*NIGHT, history=history)).all_changes


def test_this_moment() -> None:
    assert saved_gpus_now(NIGHT) == -1
    assert saved_gpus_now(()) is None
    assert saved_gpus_now((step(0, None, reference=None),)) is None


def test_an_object_that_cannot_be_read_is_not_known() -> None:
    broken = {"metadata": {"namespace": "prod", "name": "chat"}, "spec": {}, "status": {"gpuSteps": "many"}}
    assert told_savings(saved(broken)) == "not known: the status cannot be read"
