"""What the operator tells Prometheus about itself. Live numbers of services belong here too, not into their status.

Apart from the places that count, so that names and labels can be read in one piece; they are API (alerts use them).
Must not: have a label whose values users or time can multiply, except namespace and name of existing services.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vllm_autotuner.cluster.errors import Conflict

_TICK_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120)


class OperatorMetrics:
    """The operator's metrics in a registry of their own: importing a library must not add to them."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        self.leader = Gauge(
            "vllm_autotuner_leader", "1 while this process holds the lease and may write.", registry=registry
        )
        self.ticks = Counter(
            "vllm_autotuner_ticks",
            "Ticks of the fleet loop, by outcome (Done, Failed).",
            ["outcome"],
            registry=registry,
        )
        self.tick_duration = Histogram(
            "vllm_autotuner_tick_duration_seconds",
            "Duration of one tick for the whole fleet.",
            buckets=_TICK_BUCKETS,
            registry=registry,
        )
        self.services = Gauge(
            "vllm_autotuner_services", "VLLMServices by diagnosis class.", ["diagnosis"], registry=registry
        )
        self.changes = Counter(
            "vllm_autotuner_changes", "Finished changes by knob and outcome.", ["knob", "outcome"], registry=registry
        )
        self.prometheus_errors = Counter(
            "vllm_autotuner_prometheus_errors",
            "Queries that gave no usable answer, by source and kind of failure.",
            ["source", "kind"],
            registry=registry,
        )
        self.writes = Counter(
            "vllm_autotuner_writes",
            "Writes to the Kubernetes API, by verb, kind and outcome (Done, or the error's class).",
            ["verb", "kind", "outcome"],
            registry=registry,
        )
        self.conflicts = Counter(
            "vllm_autotuner_conflicts", "Writes refused because the object had changed.", registry=registry
        )
        self.desired_replicas = Gauge(
            "vllm_autotuner_desired_replicas",
            "Replicas that demand and capacity ask for.",
            ["namespace", "name"],
            registry=registry,
        )
        self.loop_lag = Gauge(
            "vllm_autotuner_event_loop_lag_seconds",
            "How late the last timer of the event loop came.",
            registry=registry,
        )
        self.orphans_removed = Counter(
            "vllm_autotuner_orphans_removed",
            "Deployments of a trial that were deleted because no change knows them.",
            registry=registry,
        )
        self.swept = Counter(
            "vllm_autotuner_swept_objects", "Deleted objects that no watch had reported.", registry=registry
        )

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def count_write(self, verb: str, kind: str, outcome: str) -> None:
        """Count one write; fits `Cluster(observe=...)`."""
        self.writes.labels(verb=verb, kind=kind, outcome=outcome).inc()
        if outcome == Conflict.__name__:
            self.conflicts.inc()

    def set_services(self, by_class: Mapping[str, int]) -> None:
        """Set the number of services per diagnosis class; classes that are not named have none any more."""
        self.services.clear()
        for name, count in by_class.items():
            self.services.labels(diagnosis=name).set(count)

    def forget_service(self, namespace: str, name: str) -> None:
        """Stop exporting the numbers of a deleted service."""
        self.desired_replicas.remove_by_labels({"namespace": namespace, "name": name})
