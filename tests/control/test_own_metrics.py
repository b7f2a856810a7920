"""The operator's metrics: names are API, and series of what is gone are gone."""

from prometheus_client.parser import text_string_to_metric_families

from vllm_autotuner.control.own_metrics import OperatorMetrics


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
        "vllm_autotuner_event_loop_lag_seconds",
        "vllm_autotuner_swept_objects",
    }


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
