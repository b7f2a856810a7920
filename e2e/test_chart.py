"""The chart on the real API server: every object is accepted, and the rights are what they say."""

import json
from typing import Any

import pytest
import yaml
from tests.chart.test_chart import CHART, run_helm

from e2e.bed import Bed
from e2e.errors import CommandError
from e2e.operator_account import install


@pytest.fixture
def chart(bed: Bed, namespace: str) -> list[dict[str, Any]]:
    """The rendered chart for this namespace; the CRD is there."""
    install(bed)
    result = run_helm(
        "template", "tuner", str(CHART), "--namespace", namespace, values={"watchNamespaces": [namespace]}
    )
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def test_accepts_every_object_of_the_chart(bed: Bed, chart: list[dict[str, Any]]) -> None:
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": chart})
    bed.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", input=manifest)


def test_the_account_may_tune_where_it_serves_and_nothing_else(
    bed: Bed, namespace: str, chart: list[dict[str, Any]]
) -> None:
    bed.apply([document for document in chart if document["kind"] != "Deployment"], server_side=True)
    account = f"--as=system:serviceaccount:{namespace}:tuner-vllm-autotuner"

    def may(verb: str, resource: str, where: str, *arguments: str) -> bool:
        try:
            answer = bed.kubectl("auth", "can-i", verb, resource, f"--namespace={where}", account, *arguments)
        except CommandError:
            return False
        return answer.strip() == "yes"

    assert may("patch", "deployments", namespace)
    assert may("delete", "deployments", namespace), "a canary is deleted; others are kept by ownership, not by rights"
    assert may("update", "vllmservices", namespace, "--subresource=status")
    assert may("get", "pods", namespace, "--subresource=log")
    assert may("update", "leases/tuner-vllm-autotuner", namespace)
    assert may("get", "configmaps/tuner-vllm-autotuner-limits", namespace)
    for verb, resource, where in (
        ("get", "configmaps/other", namespace),
        ("update", "configmaps/tuner-vllm-autotuner-limits", namespace),
        ("get", "secrets", namespace),
        ("delete", "services", namespace),
        ("delete", "pods", namespace),
        ("delete", "deployments", "default"),
        ("update", "vllmservices", namespace),
        ("update", "leases/other", namespace),
        ("patch", "deployments", "default"),
        ("list", "vllmservices", "default"),
    ):
        assert not may(verb, resource, where), f"{verb} {resource} in {where}"
