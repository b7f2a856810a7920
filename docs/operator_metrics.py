"""Writes `operator-metrics.md` from the metrics themselves: `make docs`.

Apart from the product, because only this repository's documentation needs it. A test holds the page to the registry.
Must not: say anything that a scrape does not say of itself.
"""

from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from vllm_autotuner.control.own_metrics import OperatorMetrics

PAGE = Path(__file__).with_name("operator-metrics.md")

HEAD = """# Metrics of the operator

Generated from the operator's registry by `make docs`; do not edit. Served on `/metrics`; the names and labels are API.
Worth an alert:

| alert | expression | for |
|---|---|---|
| nobody leads | `max(vllm_autotuner_leader) < 1` or absent | 2m |
| the loop fails on an object | `increase(vllm_autotuner_ticks_total{outcome="Failed"}[10m]) > 0` | 0m |
| no tick comes to its end | `increase(vllm_autotuner_ticks_total{outcome="Done"}[5m]) == 0` | 5m |
| a rollback failed | `increase(vllm_autotuner_changes_total{outcome="RollbackFailed"}[1h]) > 0` | 0m |
| changes do harm | `increase(vllm_autotuner_rollbacks_total{cause="Harm"}[1d]) > 3` | 0m |
| services cannot be seen | `vllm_autotuner_services{diagnosis="MetricsBlind"} > 0` | 15m |

| metric | type | labels | what it tells |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(f"{row}\n" for row in sorted(_rows(OperatorMetrics())))


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
