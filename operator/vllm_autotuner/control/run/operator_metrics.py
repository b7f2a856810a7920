"""The operator's own Prometheus metrics. Live numbers of services belong here too, not into their status.

Apart from the code that counts, so that names and labels can be read in one place; they are API (alerts use them).
Must not: have a label of unbounded cardinality, except namespace and name of existing services.
"""

from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from time import thread_time
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ActiveChange, Outcome, VLLMServiceStatus
from vllm_autotuner.budgets import exceeded_so_far
from vllm_autotuner.cluster.errors import Conflict
from vllm_autotuner.control.run.effects import Urgency, Waits
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.guardrails.circuit_breaker import circuit_is_open
from vllm_autotuner.overview.gpu_hours import saved_gpus_now

_TICK_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120)

_CHANGE_BUCKETS: Final = (60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
"""Seconds: from a start-up that fails at once to the longest that a paused change may wait."""

HARM, NO_EFFECT, NOT_JUDGED = CAUSES = ("Harm", "NoEffect", "NotJudged")
"""Why a change was rolled back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFigures:
    """What of one status is exported."""

    state: str | None
    """Of its change in progress."""
    held_by: str | None
    """Why its recommendation is not applied."""
    circuit_open: bool
    namespace: str = ""
    name: str = ""
    saved_gpus: float | None = None
    """At this moment; negative where more are asked for. None: not known."""
    gpu_price: float | None = None
    """Of a GPU and hour; None: not known."""
    diagnosis: str | None = None
    """The class that its status names."""
    knob: str | None = None
    """Of its change in progress."""
    targets: Targets | None = None
    """What it is judged against."""


def status_figures(
    status: VLLMServiceStatus,
    *,
    now: datetime,
    namespace: str = "",
    name: str = "",
    gpu_price: float | None = None,
    targets: Targets | None = None,
) -> StatusFigures:
    """Read the figures of one service; apart from their sum, so that one that cannot be read costs no other."""
    change, found = status.active_change, status.recommendation
    return StatusFigures(
        state=None if change is None else change.state.value,
        held_by=None if found is None else found.held_by,
        circuit_open=circuit_is_open(status.circuit, now=now),
        namespace=namespace,
        name=name,
        saved_gpus=saved_gpus_now(status.gpu_steps),
        gpu_price=gpu_price,
        diagnosis=None if status.diagnosis is None else status.diagnosis.class_,
        knob=None if change is None else change.knob,
        targets=targets,
    )


class OperatorMetrics:
    """The operator's metrics in a registry of their own: importing a library must not add to them."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        self.leader = Gauge(
            "vllm_autotuner_leader",
            "1 while this process is the leader and handles the fleet, else 0.",
            registry=registry,
        )
        self.ticks = Counter(
            "vllm_autotuner_ticks",
            "Ticks of the fleet loop, by outcome (Done, Failed).",
            ["outcome"],
            registry=registry,
        )
        self.tick_duration = Histogram(
            "vllm_autotuner_tick_duration_seconds",
            "Duration of one tick for the whole fleet, from the look at its metrics to the last write.",
            buckets=_TICK_BUCKETS,
            registry=registry,
        )
        self.engines = Gauge(
            "vllm_autotuner_engines",
            "Engines whose metrics were seen in the last tick: what an operator's load grows with.",
            registry=registry,
        )
        self.calm_services = Gauge(
            "vllm_autotuner_calm_services",
            "Services that the last tick did not decide, because all is well and nothing has changed.",
            registry=registry,
        )
        self.shards = Gauge(
            "vllm_autotuner_shards",
            "Shards that the fleet is divided into, as configured; each has a leader of its own.",
            registry=registry,
        )
        self.interval = Gauge(
            "vllm_autotuner_interval_seconds",
            "Time between two ticks, as configured: longer ticks mean that the operator has too many engines.",
            registry=registry,
        )
        self.effects_waiting = Gauge(
            "vllm_autotuner_effects_waiting",
            "Services whose decision was not written to the cluster by the end of the last tick, by urgency "
            "(Change, Replicas, Begin, Report).",
            ["urgency"],
            registry=registry,
        )
        self.effects_oldest = Gauge(
            "vllm_autotuner_effects_oldest_seconds",
            "Age of the oldest decision that was not written by the end of the last tick, by urgency; 0 without one.",
            ["urgency"],
            registry=registry,
        )
        self.services = Gauge(
            "vllm_autotuner_services", "VLLMServices by diagnosis class.", ["diagnosis"], registry=registry
        )
        self.changes = Counter(
            "vllm_autotuner_changes", "Finished changes by knob and outcome.", ["knob", "outcome"], registry=registry
        )
        self.change_duration = Histogram(
            "vllm_autotuner_change_duration_seconds",
            "Duration of finished changes, by outcome.",
            ["outcome"],
            buckets=_CHANGE_BUCKETS,
            registry=registry,
        )
        self.rollbacks = Counter(
            "vllm_autotuner_rollbacks",
            "Changes that were rolled back, by knob and cause (Harm, NoEffect, NotJudged).",
            ["knob", "cause"],
            registry=registry,
        )
        self.active_changes = Gauge(
            "vllm_autotuner_active_changes", "Changes in progress, by state.", ["state"], registry=registry
        )
        self.held_recommendations = Gauge(
            "vllm_autotuner_held_recommendations",
            "Recommendations that are not applied, by hold reason.",
            ["reason"],
            registry=registry,
        )
        self.open_circuits = Gauge(
            "vllm_autotuner_open_circuits",
            "Services with an open circuit breaker: changes are stopped after repeated rollbacks.",
            registry=registry,
        )
        self.blind_ticks = Counter(
            "vllm_autotuner_blind_ticks",
            "Ticks in which a service had no fresh metrics, summed over services.",
            registry=registry,
        )
        self.decision_cpu = Counter(
            "vllm_autotuner_decision_cpu_seconds",
            "CPU time spent on decisions, without reading inputs and writing results.",
            registry=registry,
        )
        self.prometheus_errors = Counter(
            "vllm_autotuner_prometheus_errors",
            "Failed Prometheus queries, by source and kind of failure.",
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
            "vllm_autotuner_conflicts", "Writes rejected because the object had changed.", registry=registry
        )
        self.desired_replicas = Gauge(
            "vllm_autotuner_desired_replicas",
            "Replicas that the operator wants for the current load.",
            ["namespace", "name"],
            registry=registry,
        )
        self.saved_gpus = Gauge(
            "vllm_autotuner_saved_gpus",
            "GPUs that a service asks for less than without the operator; negative: more. Absent where not known.",
            ["namespace", "name"],
            registry=registry,
        )
        self.saved_cost = Gauge(
            "vllm_autotuner_saved_cost_per_hour",
            "The same in money per hour, where the catalogue has the price of the GPU.",
            ["namespace", "name"],
            registry=registry,
        )
        self.service_diagnosis = Gauge(
            "vllm_autotuner_service_diagnosis",
            "1 for the diagnosis class of a service.",
            ["namespace", "name", "diagnosis"],
            registry=registry,
        )
        self.service_change = Gauge(
            "vllm_autotuner_service_change",
            "1 while a service has a change in progress, by what it changes and its state.",
            ["namespace", "name", "knob", "state"],
            registry=registry,
        )
        self.objective = Gauge(
            "vllm_autotuner_objective_seconds",
            "Objective of a service (TTFT, TPOT) with its quantile; its profile's default where its spec has none.",
            ["namespace", "name", "objective", "quantile"],
            registry=registry,
        )
        self.loop_lag = Gauge(
            "vllm_autotuner_loop_lag_seconds",
            "Longest delay of an event loop timer in the last minute.",
            registry=registry,
        )
        self.orphans_removed = Counter(
            "vllm_autotuner_orphans_removed",
            "Trial Deployments deleted because they belong to no recorded change.",
            registry=registry,
        )
        self.swept = Counter(
            "vllm_autotuner_swept_objects",
            "Objects whose deletion the watch missed.",
            registry=registry,
        )
        self.budget_exceeded = Counter(
            "vllm_autotuner_budget_exceeded",
            "Times that data of others was larger than a budget allows, by budget (docs/budgets.md).",
            ["budget"],
            registry=registry,
        )
        self._counted, self._counting = Counts[str](), Lock()
        self._told: dict[Gauge, dict[tuple[str, ...], float]] = {}
        """What the gauges that are set as a whole show."""
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Export counters at 0 before the first count: `increase` misses a series that begins at 1."""
        for outcome in ("Done", "Failed"):
            self.ticks.labels(outcome=outcome)
        for knob in set(Knob) - {Knob.REPLICAS}:
            for ending in Outcome:
                self.changes.labels(knob=knob.value, outcome=ending.value)
            for cause in CAUSES:
                self.rollbacks.labels(knob=knob.value, cause=cause)

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format; from any thread, for several scrapes at a time."""
        with self._counting:
            self._count_budgets()
        return generate_latest(self.registry)

    def _count_budgets(self) -> None:
        # Data is read in many places and threads, which know no metrics: their tally is taken over at each scrape.
        for name, count in exceeded_so_far().items():
            self.budget_exceeded.labels(budget=name).inc(count - self._counted[name])
            self._counted[name] = count

    def count_write(self, verb: str, kind: str, outcome: str) -> None:
        """Count one write; fits `Cluster(observe=...)`."""
        self.writes.labels(verb=verb, kind=kind, outcome=outcome).inc()
        if outcome == Conflict.__name__:
            self.conflicts.inc()

    def count_ending(self, change: ActiveChange, outcome: Outcome, *, now: datetime) -> None:
        """Count a change that ended, once its ending is written."""
        self.changes.labels(knob=change.knob, outcome=outcome.value).inc()
        if change.started_at is not None:
            # A clock that was set back must not fail a tick, and a negative duration is none.
            seconds = max(0.0, (now - change.started_at).total_seconds())
            self.change_duration.labels(outcome=outcome.value).observe(seconds)
        if outcome in (Outcome.ROLLED_BACK, Outcome.ROLLBACK_FAILED):
            cause = NOT_JUDGED if change.harmful is None else HARM if change.harmful else NO_EFFECT
            self.rollbacks.labels(knob=change.knob, cause=cause).inc()

    def set_statuses(self, figures: Iterable[StatusFigures]) -> None:
        """Set the gauges derived from the statuses of all services; label values without a service are removed."""
        states, held, circuits = Counts[str](), Counts[str](), 0
        told: dict[Gauge, dict[tuple[str, ...], float]] = {gauge: {} for gauge in self._of_services}
        for each in figures:
            self._tell(each, told)
            states.update([] if each.state is None else [each.state])
            held.update([] if each.held_by is None else [each.held_by])
            circuits += each.circuit_open
        for gauge, values in told.items():
            self._replace(gauge, values)
        self._replace(self.active_changes, {(state,): count for state, count in states.items()})
        self._replace(self.held_recommendations, {(reason,): count for reason, count in held.items()})
        self.open_circuits.set(circuits)

    def _tell(self, each: StatusFigures, told: Mapping[Gauge, dict[tuple[str, ...], float]]) -> None:
        """Add the values of one service, by their labels."""
        of = (each.namespace, each.name)
        if each.saved_gpus is not None:
            told[self.saved_gpus][of] = each.saved_gpus
            if each.gpu_price is not None:
                told[self.saved_cost][of] = each.saved_gpus * each.gpu_price
        if each.diagnosis is not None:
            told[self.service_diagnosis][*of, each.diagnosis] = 1
        if each.knob is not None and each.state is not None:
            told[self.service_change][*of, each.knob, each.state] = 1
        if each.targets is not None:
            for kind, target in (("TTFT", each.targets.ttft), ("TPOT", each.targets.tpot)):
                told[self.objective][*of, kind, f"{target.quantile:g}"] = target.seconds

    def _replace(self, gauge: Gauge, values: dict[tuple[str, ...], float]) -> None:
        """Set what has changed: to build 40,000 series anew in each tick takes half a second of 10,000 services, and a
        scrape, which reads beside the event loop, could see a gauge that is empty for a moment.
        """
        before = self._told.get(gauge, {})
        for labels in before.keys() - values.keys():
            gauge.remove(*labels)
        for labels, value in values.items():
            if before.get(labels) != value:
                gauge.labels(*labels).set(value)
        self._told[gauge] = values

    @property
    def _of_services(self) -> tuple[Gauge, ...]:
        """Gauges with a value for each service, set anew in each tick."""
        return self.saved_gpus, self.saved_cost, self.service_diagnosis, self.service_change, self.objective

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Count the CPU time of a decision."""
        started = thread_time()
        try:
            yield
        finally:
            self.decision_cpu.inc(thread_time() - started)

    def set_waiting(self, waits: Mapping[Urgency, Waits]) -> None:
        """Export what is on its way to the cluster."""
        for urgency, found in waits.items():
            name = urgency.name.capitalize()
            self.effects_waiting.labels(urgency=name).set(found.services)
            self.effects_oldest.labels(urgency=name).set(found.seconds)

    def set_services(self, by_class: Mapping[str, int]) -> None:
        """Set the number of services per diagnosis class; other classes are removed."""
        self._replace(self.services, {(name,): count for name, count in by_class.items()})

    def forget_fleet(self) -> None:
        """Stop exporting the leader's gauges: on a follower they would show outdated values."""
        for gauge in (
            self.services,
            self.active_changes,
            self.held_recommendations,
            self.desired_replicas,
            *self._of_services,
        ):
            gauge.clear()
        self._told.clear()
        self.open_circuits.set(0)

    def forget_service(self, namespace: str, name: str) -> None:
        """Stop exporting the numbers of a deleted service."""
        self.desired_replicas.remove_by_labels({"namespace": namespace, "name": name})
