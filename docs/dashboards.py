"""Writes the Grafana dashboards of the chart: `make docs`. Plain JSON, of panels described here in a line each.

Apart from the chart, because a dashboard by hand drifts from the metrics; a test holds each query to names that exist.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from vllm_autotuner.engine.metric_names import NAMES, Meaning

FOLDER: Final = Path(__file__).resolve().parents[1] / "charts" / "vllm-autotuner" / "files" / "dashboards"
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
WIDTH: Final = 24
"""Columns of Grafana's grid."""
HEIGHT: Final = 8
BANDS: Final = "bands"
"""In place of a unit: one row for each series, with a bar for as long as it is there."""
PODS: Final = 'namespace=~"$namespace",pod=~"$pod"'


def _of_service(metric: str, matchers: str = "") -> str:
    """A metric of one service, with that service's namespace.

    A scrape that sets `namespace` itself, as a PodMonitor does, sets the operator's and renames the metric's own.
    """
    return f'label_replace({metric}{matchers}, "namespace", "$1", "exported_namespace", "(.+)")'


FLEET: Final = (
    ("Services by diagnosis", "sum by (diagnosis) (vllm_autotuner_services)", "{{diagnosis}}", "short"),
    ("Changes in progress, by state", "sum by (state) (vllm_autotuner_active_changes)", "{{state}}", "short"),
    (
        "Finished changes in a day, by outcome",
        "sum by (knob, outcome) (increase(vllm_autotuner_changes_total[1d]))",
        "{{knob}} {{outcome}}",
        "short",
    ),
    (
        "Rollbacks in a day, by cause",
        "sum by (cause) (increase(vllm_autotuner_rollbacks_total[1d]))",
        "{{cause}}",
        "short",
    ),
    (
        "Recommendations that are not applied, by reason",
        "sum by (reason) (vllm_autotuner_held_recommendations)",
        "{{reason}}",
        "short",
    ),
    (
        "Wanted replicas",
        f"max by (namespace, name) ({_of_service('vllm_autotuner_desired_replicas')})",
        "{{namespace}}/{{name}}",
        "short",
    ),
    ("Open circuit breakers", "sum(vllm_autotuner_open_circuits)", "services", "short"),
    (
        "Tick of the fleet loop, p95",
        "histogram_quantile(0.95, sum by (le) (rate(vllm_autotuner_tick_duration_seconds_bucket[5m])))",
        "p95",
        "s",
    ),
    ("Longest delay of the event loop", "max(vllm_autotuner_loop_lag_seconds)", "lag", "s"),
    (
        "Failed queries of Prometheus",
        "sum by (kind) (rate(vllm_autotuner_prometheus_errors_total[5m]))",
        "{{kind}}",
        "ops",
    ),
    (
        "Writes to the Kubernetes API",
        "sum by (verb, outcome) (rate(vllm_autotuner_writes_total[5m]))",
        "{{verb}} {{outcome}}",
        "ops",
    ),
    (
        "Budgets that were exceeded in an hour",
        "sum by (budget) (increase(vllm_autotuner_budget_exceeded_total[1h]))",
        "{{budget}}",
        "short",
    ),
)


def _name(meaning: Meaning) -> str:
    return NAMES[meaning].names[0]


def _quantile(meaning: Meaning) -> str:
    return f"histogram_quantile(0.95, sum by (le) (rate({_name(meaning)}_bucket{{{PODS}}}[2m])))"


def _chosen(metric: str, by: str, *matchers: str) -> str:
    """A metric of the services that are chosen, whichever of the operator's replicas it comes from."""
    only = ",".join(('name=~"$service"', *matchers))
    return f"max by (namespace, name, {by}) ({_of_service(metric, f'{{{only}}}')})"


def _objective(kind: str) -> tuple[str, str]:
    asked = _chosen("vllm_autotuner_objective_seconds", "quantile", f'objective="{kind}"')
    return asked, "objective of {{namespace}}/{{name}}, quantile {{quantile}}"


CLASSES: Final = _chosen("vllm_autotuner_service_diagnosis", "diagnosis")
CHANGES: Final = _chosen("vllm_autotuner_service_change", "knob, state")
SERVICE: Final = (
    ("Diagnosis", CLASSES, "{{namespace}}/{{name}} {{diagnosis}}", BANDS),
    ("TTFT, p95", _quantile(Meaning.TTFT), "p95", "s", _objective("TTFT")),
    ("Time between tokens, p95", _quantile(Meaning.ITL), "p95", "s", _objective("TPOT")),
    ("Running requests", f"sum by (pod) ({_name(Meaning.RUNNING)}{{{PODS}}})", "{{pod}}", "short"),
    ("Waiting requests", f"sum by (pod) ({_name(Meaning.WAITING)}{{{PODS}}})", "{{pod}}", "short"),
    ("KV cache usage", f"max by (pod) ({_name(Meaning.KV_USAGE)}{{{PODS}}})", "{{pod}}", "percentunit"),
    (
        "Preempted requests",
        f"sum by (pod) (rate({_name(Meaning.PREEMPTIONS)}{{{PODS}}}[2m]))",
        "{{pod}}",
        "ops",
    ),
    (
        "Output tokens per second",
        f"sum by (pod) (rate({_name(Meaning.GENERATION_TOKENS)}{{{PODS}}}[2m]))",
        "{{pod}}",
        "short",
    ),
    (
        "Finished requests, by reason",
        f"sum by (finished_reason) (rate({_name(Meaning.FINISHED)}{{{PODS}}}[2m]))",
        "{{finished_reason}}",
        "ops",
    ),
)


def dashboards() -> dict[str, dict[str, Any]]:
    """Every dashboard, by the name of its file."""
    of_source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    running = _name(Meaning.RUNNING)
    namespace = _variable("namespace", f"label_values({running}, namespace)")
    pod = _variable("pod", f'label_values({running}{{namespace=~"$namespace"}}, pod)')
    service = _variable("service", "label_values(vllm_autotuner_service_diagnosis, name)")
    return {
        "fleet.json": _dashboard("vllm-autotuner: fleet and operator", "vllm-autotuner-fleet", FLEET, [of_source]),
        "service.json": _dashboard(
            "vllm-autotuner: one service",
            "vllm-autotuner-service",
            SERVICE,
            [of_source, service, namespace, pod],
            [_annotation(CHANGES, title="Change", text="{{namespace}}/{{name}}: {{knob}}, {{state}}")],
        ),
    }


def _dashboard(
    title: str, uid: str, panels: Any, variables: list[dict[str, Any]], annotations: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    return {
        "title": title,
        "uid": uid,
        "tags": ["vllm", "vllm-autotuner"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "annotations": {"list": list(annotations)},
        "panels": _panels(panels),
    }


def _panels(panels: Any) -> list[dict[str, Any]]:
    """Two in a row; bands take one of their own, above all, so that what is below is read against them."""
    bands = [each for each in panels if each[3] == BANDS]
    others = [each for each in panels if each[3] != BANDS]
    return [_panel(number, *each) for number, each in enumerate(bands)] + [
        _panel(number, *each, above=len(bands)) for number, each in enumerate(others)
    ]


def _panel(
    number: int, title: str, expression: str, legend: str, unit: str, *limits: tuple[str, str], above: int = 0
) -> dict[str, Any]:
    half, queries, wide = WIDTH // 2, ((expression, legend), *limits), unit == BANDS
    place = (
        {"x": 0, "y": HEIGHT * number, "w": WIDTH, "h": HEIGHT}
        if wide
        else {"x": half * (number % 2), "y": HEIGHT * (number // 2 + above), "w": half, "h": HEIGHT}
    )
    return {
        "id": number + above + 1,
        "type": "state-timeline" if wide else "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {} if wide else {"unit": unit, "min": 0}, "overrides": []},
        **({"options": {"showValue": "never", "legend": {"showLegend": False}}} if wide else {}),
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": name}
            for index, (query, name) in enumerate(queries)
        ],
    }


def _annotation(expression: str, *, title: str, text: str) -> dict[str, Any]:
    return {
        "name": title,
        "enable": True,
        "datasource": SOURCE,
        "iconColor": "orange",
        "expr": expression,
        "step": "30s",
        "titleFormat": title,
        "textFormat": text,
        "useValueForTime": False,
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def text_of(dashboard: dict[str, Any]) -> str:
    """As it is kept in the chart."""
    return json.dumps(dashboard, indent=2) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, dashboard in dashboards().items():
        (FOLDER / name).write_text(text_of(dashboard), encoding="utf-8")
