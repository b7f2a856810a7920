"""Writes `operator-metrics.md` from the metrics themselves: `make docs`.

Apart from the product, because only this repository's documentation needs it. A test holds the page to the registry.
Must not: say anything that a scrape does not say of itself.
"""

from collections.abc import Iterator
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from vllm_autotuner.control.run.operator_metrics import OperatorMetrics

PAGE = Path(__file__).with_name("operator-metrics.md")
ALERTS = Path(__file__).resolve().with_name("alerts.yaml")

HEAD = """# Metrics of the operator

Generated from the operator's registry by `make docs`; do not edit. Served on `/metrics`; the names and labels are API.
Worth an alert; [alerts.yaml](alerts.yaml) has these as rules for Prometheus, tested in one:

| alert | expression | for |
|---|---|---|
"""

METRICS_HEAD = """
| metric | type | labels | what it tells |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    metrics = "".join(f"{row}\n" for row in sorted(_rows(OperatorMetrics())))
    return HEAD + "".join(f"{row}\n" for row in _alerts()) + METRICS_HEAD + metrics


def _alerts() -> Iterator[str]:
    for rule in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]:
        yield f"| {rule['alert']} | `{rule['expr']}` | {rule.get('for', '0m')} |"


def _rows(metrics: OperatorMetrics) -> Iterator[str]:
    for metric in vars(metrics).values():
        if isinstance(metric, CollectorRegistry) or not isinstance(metric, MetricWrapperBase):
            continue
        [family] = metric.describe()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(metric._labelnames) or "-"
        yield f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
