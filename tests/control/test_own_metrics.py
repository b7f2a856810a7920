"""The operator's metrics: names are API, and series of what is gone are gone."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.builders import no_answer
from tests.change.worlds import NOW, change
from tests.control.desk import SCALED
from tests.control.loop_bed import bed, queueing, slow_beyond_64

from docs import budgets
from docs.operator_metrics import PAGE, page
from vllm_autotuner.api.gpu_steps import GpuCause, GpuStep
from vllm_autotuner.api.spec import Objective, Objectives
from vllm_autotuner.api.status import (
    ChangeState,
    Circuit,
    CircuitState,
    Confidence,
    DiagnosisStatus,
    Outcome,
    Recommendation,
    VLLMServiceStatus,
)
from vllm_autotuner.budgets import POD_TEMPLATE_BYTES
from vllm_autotuner.control.run import fleet_export, fleet_loop
from vllm_autotuner.control.run.operator_metrics import OperatorMetrics, StatusFigures, status_figures
from vllm_autotuner.diagnosis.objectives import targets_of


def series(metrics: OperatorMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.page().decode())
        for sample in family.samples
    }


def test_the_names_that_alerts_use() -> None:
    names = {family.name for family in text_string_to_metric_families(OperatorMetrics().page().decode())}
    assert names >= {
        "vllm_autotuner_leader",
        "vllm_autotuner_ticks",
        "vllm_autotuner_tick_duration_seconds",
        "vllm_autotuner_services",
        "vllm_autotuner_changes",
        "vllm_autotuner_prometheus_errors",
        "vllm_autotuner_writes",
        "vllm_autotuner_conflicts",
        "vllm_autotuner_desired_replicas",
        "vllm_autotuner_loop_lag_seconds",
        "vllm_autotuner_swept_objects",
        "vllm_autotuner_budget_exceeded",
    }


def test_a_budget_that_bites_is_counted_by_every_operator_of_the_process() -> None:
    name = ("vllm_autotuner_budget_exceeded_total", (("budget", POD_TEMPLATE_BYTES.name),))
    one, other = OperatorMetrics(), OperatorMetrics()
    before = series(one)[name]
    POD_TEMPLATE_BYTES.exceeded()
    assert (series(one)[name], series(one)[name], series(other)[name]) == (before + 1, before + 1, before + 1)


async def test_the_duration_of_a_tick_includes_the_look_at_its_metrics() -> None:
    """It is the longest part of a tick where a Prometheus is slow or its answers are large."""
    found = bed("chat")
    look = found.api.look

    async def late(*arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(0.05)
        return await look(*arguments, **named)

    found.api.look = late  # type: ignore[method-assign]
    await found.tick()
    assert series(found.metrics)["vllm_autotuner_tick_duration_seconds_sum", ()] >= 0.05


def test_the_page_of_budgets_is_what_the_code_says() -> None:
    assert budgets.PAGE.read_text(encoding="utf-8") == budgets.page(), "run `make docs`"


def test_what_alerts_count_is_there_before_it_happens() -> None:
    """Prometheus sees no growth in a series that is born with its first event."""
    found = series(OperatorMetrics())
    for name, labels in (
        ("ticks", (("outcome", "Failed"),)),
        ("changes", (("knob", "maxNumSeqs"), ("outcome", "RollbackFailed"))),
        ("rollbacks", (("cause", "Harm"), ("knob", "tensorParallelSize"))),
    ):
        assert found[f"vllm_autotuner_{name}_total", labels] == 0


async def test_who_no_longer_leads_says_nothing_of_the_fleet() -> None:
    """A figure that stands still would be taken for the present, by alerts and by an autoscaler."""
    found = bed(load=slow_beyond_64, spec=SCALED)
    await found.ticks(6)
    fleet = ("services", "active_changes", "held_recommendations", "desired_replicas")
    assert {name for name, _ in series(found.metrics)} & {f"vllm_autotuner_{each}" for each in fleet}
    found.leader.is_leader = False
    await found.tick()
    assert not {name for name, _ in series(found.metrics)} & {f"vllm_autotuner_{each}" for each in fleet}
    found.leader.is_leader, found.leader.epoch = True, 2
    await found.ticks(2)
    assert ("vllm_autotuner_desired_replicas", (("name", "chat"), ("namespace", "prod"))) in series(found.metrics)


def test_a_write_is_counted_and_a_conflict_twice() -> None:
    metrics = OperatorMetrics()
    metrics.count_write("status", "VLLMService", "Done")
    metrics.count_write("status", "VLLMService", "Conflict")
    found = series(metrics)
    labels = (("kind", "VLLMService"), ("outcome", "Conflict"), ("verb", "status"))
    assert found["vllm_autotuner_writes_total", labels] == 1
    assert found["vllm_autotuner_conflicts_total", ()] == 1


def test_a_class_without_services_and_a_deleted_service_disappear() -> None:
    metrics = OperatorMetrics()
    metrics.set_services({"Healthy": 2, "Idle": 1})
    metrics.set_services({"Healthy": 3})
    metrics.desired_replicas.labels(namespace="prod", name="chat").set(4)
    metrics.forget_service("prod", "chat")
    metrics.forget_service("prod", "never-seen")
    found = series(metrics)
    assert found["vllm_autotuner_services", (("diagnosis", "Healthy"),)] == 3
    assert ("vllm_autotuner_services", (("diagnosis", "Idle"),)) not in found
    assert not [name for name, _ in found if name == "vllm_autotuner_desired_replicas"]


@pytest.mark.parametrize(
    ("outcome", "harmful", "cause"),
    [
        pytest.param(Outcome.ROLLED_BACK, True, "Harm", id="it did harm"),
        pytest.param(Outcome.ROLLED_BACK, False, "NoEffect", id="it did not help"),
        pytest.param(Outcome.ROLLED_BACK, None, "NotJudged", id="it was never judged"),
        pytest.param(Outcome.ROLLBACK_FAILED, True, "Harm", id="and could not be undone"),
        pytest.param(Outcome.SUCCEEDED, None, None, id="it helped"),
    ],
)
def test_an_ending_is_counted_with_its_duration_and_cause(
    outcome: Outcome, harmful: bool | None, cause: str | None
) -> None:
    metrics = OperatorMetrics()
    ended = change(ChangeState.ROLLING_BACK, harmful=harmful, started_at=NOW - timedelta(minutes=4))
    metrics.count_ending(ended, outcome, now=NOW)
    found = series(metrics)
    by_outcome = (("outcome", outcome.value),)
    assert found["vllm_autotuner_changes_total", (("knob", "maxNumSeqs"), *by_outcome)] == 1
    assert found["vllm_autotuner_change_duration_seconds_sum", by_outcome] == 240
    rollbacks = {labels: value for (name, labels), value in found.items() if name == "vllm_autotuner_rollbacks_total"}
    counted = {labels: value for labels, value in rollbacks.items() if value}
    assert counted == ({} if cause is None else {(("cause", cause), ("knob", "maxNumSeqs")): 1})


def test_what_no_status_says_any_more_is_gone() -> None:
    metrics = OperatorMetrics()
    held = Recommendation(id="r", knob="maxNumSeqs", recommended="96", held_by="Cooldown")
    stopped = Circuit(state=CircuitState.OPEN, until=NOW + timedelta(days=1))
    told = (
        VLLMServiceStatus(active_change=change(ChangeState.HELD)),
        VLLMServiceStatus(recommendation=held, circuit=stopped),
        VLLMServiceStatus(recommendation=held.updated(held_by=None)),
    )
    metrics.set_statuses(status_figures(each, now=NOW) for each in told)
    found = series(metrics)
    assert found["vllm_autotuner_active_changes", (("state", "Held"),)] == 1
    assert found["vllm_autotuner_held_recommendations", (("reason", "Cooldown"),)] == 1
    assert found["vllm_autotuner_open_circuits", ()] == 1
    metrics.set_statuses([status_figures(VLLMServiceStatus(circuit=stopped), now=NOW + timedelta(days=2))])
    found = series(metrics)
    assert not [name for name, _ in found if name.endswith(("active_changes", "held_recommendations"))]
    assert found["vllm_autotuner_open_circuits", ()] == 0


async def test_a_story_is_told_by_the_metrics() -> None:
    found = bed(load=slow_beyond_64)
    await found.ticks(6)
    during = series(found.metrics)
    assert [labels for name, labels in during if name == "vllm_autotuner_active_changes"]
    assert during["vllm_autotuner_decision_cpu_seconds_total", ()] > 0
    await found.ticks(20)
    after = series(found.metrics)
    assert after["vllm_autotuner_rollbacks_total", (("cause", "Harm"), ("knob", "maxNumSeqs"))] == 1
    assert not [labels for name, labels in after if name == "vllm_autotuner_active_changes"]


async def test_a_status_whose_figures_cannot_be_read_costs_no_other_service_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = bed("chat", "odd", load=queueing)

    def defective(status: VLLMServiceStatus, **given: Any) -> StatusFigures:
        if status == found.status("odd"):
            raise OverflowError("date value out of range")
        return status_figures(status, **given)

    while not found.state("chat"):
        await found.tick()
    monkeypatch.setattr(fleet_export, "status_figures", defective)
    failed = ("vllm_autotuner_ticks_total", (("outcome", "Failed"),))
    await found.ticks(2)
    after = series(found.metrics)
    changes = {labels: value for (name, labels), value in after.items() if name == "vllm_autotuner_active_changes"}
    assert changes == {(("state", found.state("chat")),): 1}
    assert after[failed] == 2
    assert sum(value for (name, _), value in after.items() if name == "vllm_autotuner_services") == 2


async def test_services_without_metrics_are_counted_each_tick() -> None:
    found = bed(load=queueing)
    await found.ticks(3)
    before = series(found.metrics)["vllm_autotuner_blind_ticks_total", ()]
    found.api.silent = no_answer()
    await found.ticks(fleet_loop.HELD_LOOKS + 1)
    assert series(found.metrics)["vllm_autotuner_blind_ticks_total", ()] > before


def test_the_page_is_what_the_registry_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_savings_are_shown_where_they_are_known_in_money_where_a_price_is() -> None:
    metrics = OperatorMetrics()
    metrics.set_statuses(
        [
            StatusFigures(
                state=None,
                held_by=None,
                circuit_open=False,
                namespace="prod",
                name="chat",
                saved_gpus=2.0,
                gpu_price=2.5,
            ),
            StatusFigures(state=None, held_by=None, circuit_open=False, namespace="prod", name="more", saved_gpus=-1.0),
            StatusFigures(state=None, held_by=None, circuit_open=False, namespace="prod", name="new"),
        ]
    )
    chat, more = ((("name", name), ("namespace", "prod")) for name in ("chat", "more"))
    found = {key: value for key, value in series(metrics).items() if "saved" in key[0]}
    assert found == {
        ("vllm_autotuner_saved_gpus", chat): 2.0,
        ("vllm_autotuner_saved_gpus", more): -1.0,
        ("vllm_autotuner_saved_cost_per_hour", chat): 5.0,
    }
    metrics.set_statuses([])
    assert not [key for key in series(metrics) if "saved" in key[0]]


def test_the_saved_gpus_of_a_status_are_those_of_its_last_step() -> None:
    steps = (
        GpuStep(at=NOW, cause=GpuCause.START, gpus=3, reference=3),
        GpuStep(at=NOW, cause=GpuCause.SCALING, gpus=2, reference=3),
    )
    assert status_figures(VLLMServiceStatus(gpu_steps=steps), now=NOW).saved_gpus == 1
    assert status_figures(VLLMServiceStatus(), now=NOW).saved_gpus is None


def test_a_dashboard_of_one_service_gets_its_class_change_and_objectives() -> None:
    metrics = OperatorMetrics()
    found = change(ChangeState.HELD)
    status = VLLMServiceStatus(
        diagnosis=DiagnosisStatus(class_="PastTPOTKnee", confidence=Confidence.HIGH, since=NOW), active_change=found
    )
    spec = Objectives(ttft=Objective(target=timedelta(seconds=3), quantile="0.9"))
    told = status_figures(status, now=NOW, namespace="prod", name="chat", targets=targets_of(spec))
    metrics.set_statuses([told])
    chat = (("name", "chat"), ("namespace", "prod"))

    def of_service() -> dict[tuple[str, ...], float]:
        return {
            (
                name.removeprefix("vllm_autotuner_"),
                *(text for label, text in labels if (label, text) not in chat),
            ): value
            for (name, labels), value in series(metrics).items()
            if chat[0] in labels
        }

    assert of_service() == {
        ("service_diagnosis", "PastTPOTKnee"): 1,
        ("service_change", found.knob, "Held"): 1,
        ("objective_seconds", "TTFT", "0.9"): 3,
        ("objective_seconds", "TPOT", "0.95"): 0.05,
    }
    metrics.set_statuses([])
    assert of_service() == {}
    metrics.set_statuses([told])
    metrics.forget_fleet()
    assert of_service() == {}
