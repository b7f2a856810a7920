"""Writes `operator-metrics.md` from the metrics themselves: `make docs`.

Apart from the product, because only this repository's documentation needs it. A test holds the page to the registry.
Must not: say anything that a scrape does not say of itself.
"""

from collections.abc import Iterator
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from e2e.tool_catalogue import PROMETHEUS_MODULE, PROMETHEUS_OPERATOR_MODULE, TOOLS
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
Where the scrape sets the label `namespace`, as a PodMonitor does, it is the operator's, and the namespace of a service
is `exported_namespace`. The dashboards of the chart read both.

| metric | type | labels | what it tells |
|---|---|---|---|
"""

TAIL = """
## With the Prometheus Operator

```yaml
# values of the chart; the labels are those by which your Prometheus selects (kube-prometheus-stack: its release)
podMonitor: {{enabled: true, labels: {{release: kube-prometheus-stack}}}}
enginePodMonitor: {{enabled: true, labels: {{release: kube-prometheus-stack}}}}
prometheusRule: {{enabled: true, labels: {{release: kube-prometheus-stack}}}}
dashboards: {{enabled: true}}
```

With `enforcedNamespaceLabel` one exemption is needed: [multi-tenancy](multi-tenancy.md#metrics).

Tested by `make prometheus-operator`: Prometheus Operator {operator}, installed by its own manifest, and the Prometheus
{server} that it runs for a `Prometheus` which enforces the namespace label. Monitors and rules are accepted and
generated, every target is up, every rule is evaluated, services are diagnosed and tuned by that Prometheus, and every
panel of both dashboards has data. All pods run as processes of the test bed, and the engines are simulated. Not tested:
the container images, the kube-prometheus-stack chart, Grafana and Alertmanager.

The pictures are no screenshots of Grafana, which the project does not build: that run draws each panel from the
dashboard's file and what its Prometheus answers, in ticks of a second. Coloured spans are changes in progress.

<!-- picture: dashboard-fleet, The dashboard of fleet and operator -->

<!-- picture: dashboard-service, The dashboard of one service -->
"""


def page() -> str:
    """The whole page."""
    metrics = "".join(f"{row}\n" for row in sorted(_rows(OperatorMetrics())))
    return HEAD + "".join(f"{row}\n" for row in _alerts()) + METRICS_HEAD + metrics + _tail()


def _tail() -> str:
    versions = {tool.module: tool.version() for tool in TOOLS}
    return TAIL.format(operator=versions[PROMETHEUS_OPERATOR_MODULE], server=versions[PROMETHEUS_MODULE])


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
