"""The dashboards of the chart: each query asks for metrics that exist, and the sidecar of Grafana gets them."""

import json
import re
from typing import Any

import pytest
import yaml
from tests.chart.test_chart import CHART, run_helm

from docs import dashboards, operator_metrics
from vllm_autotuner.engine.metric_names import NAMES

PAGE = operator_metrics.PAGE.read_text(encoding="utf-8")
OPERATOR = set(re.findall(r"`(vllm_autotuner_\w+)`", PAGE))
ENGINE = {name for names in NAMES.values() for name in names.names}
QUERIES = [
    pytest.param(target["expr"], id=f"{name}: {panel['title']}")
    for name, dashboard in dashboards.dashboards().items()
    for panel in dashboard["panels"]
    for target in panel["targets"]
] + [
    pytest.param(annotation["expr"], id=f"{name}: {annotation['name']}")
    for name, dashboard in dashboards.dashboards().items()
    for annotation in dashboard["annotations"]["list"]
]


@pytest.mark.parametrize("name", dashboards.dashboards())
def test_the_chart_has_what_is_generated(name: str) -> None:
    stored = (dashboards.FOLDER / name).read_text(encoding="utf-8")
    assert stored == dashboards.text_of(dashboards.dashboards()[name]), "run: make docs"


@pytest.mark.parametrize("query", QUERIES)
def test_each_query_asks_for_a_metric_that_exists(query: str) -> None:
    asked = {name.removesuffix("_bucket") for name in re.findall(r"(?:vllm:|vllm_autotuner_)\w+", query)}
    assert asked
    assert asked <= OPERATOR | ENGINE


@pytest.mark.parametrize("query", QUERIES)
def test_services_of_one_name_in_two_namespaces_are_two(query: str) -> None:
    """Where the scrape sets `namespace`, as a PodMonitor does, the metric's own is `exported_namespace`."""
    of_services = set(re.findall(r"`(vllm_autotuner_\w+)` \| \w+ \| namespace, name", PAGE))
    assert of_services
    for name in of_services & set(re.findall(r"vllm_autotuner_\w+", query)):
        renamed = re.escape(', "namespace", "$1", "exported_namespace", "(.+)")')
        assert re.search(rf"label_replace\({name}({{[^}}]*}})?{renamed}", query)


def test_one_service_is_shown_with_its_class_its_objectives_and_its_changes() -> None:
    service = dashboards.dashboards()["service.json"]
    asked = " ".join(target["expr"] for panel in service["panels"] for target in panel["targets"])
    assert "vllm_autotuner_service_diagnosis" in asked
    assert asked.count("vllm_autotuner_objective_seconds") == 2
    assert ["vllm_autotuner_service_change" in each["expr"] for each in service["annotations"]["list"]] == [True]


@pytest.mark.parametrize("dashboard", dashboards.dashboards().values(), ids=lambda each: each["uid"])
def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    places = [
        (each["gridPos"]["x"] + x, each["gridPos"]["y"] + y)
        for each in dashboard["panels"]
        for x in range(each["gridPos"]["w"])
        for y in range(each["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < dashboards.WIDTH


def test_grafanas_sidecar_finds_them_when_asked_for() -> None:
    values = {"dashboards": {"enabled": True, "labels": {"team": "a"}}}
    result = run_helm("template", "vllm-autotuner", str(CHART), values=values)
    assert result.returncode == 0, result.stderr
    maps = [
        each for each in yaml.safe_load_all(result.stdout) if each and each["metadata"]["labels"].get("team") == "a"
    ]
    found = {name: json.loads(text) for each in maps for name, text in each["data"].items()}
    assert found == {f"vllm-autotuner-{name}": body for name, body in dashboards.dashboards().items()}
