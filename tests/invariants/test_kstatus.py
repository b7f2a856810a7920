"""The kstatus rules: every situation of the design complies, and every misleading status is reported."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.invariants.kstatus import ABNORMAL, NEGATIVE, RULES, misleading

from vllm_autotuner.api.conditions import ABNORMAL_TRUE

T, F, U = "True", "False", "Unknown"


def status(conditions: Mapping[str, str], *, observed: int | None = 2, judged: int = 2) -> dict[str, Any]:
    listed = [
        {
            "type": kind,
            "status": value,
            "reason": "Test",
            "lastTransitionTime": "2026-03-01T12:00:00Z",
            "observedGeneration": judged,
        }
        for kind, value in conditions.items()
    ]
    return {"observedGeneration": observed, "conditions": listed}


@pytest.mark.parametrize(
    "conditions",
    [
        pytest.param({"Ready": U, "Reconciling": T}, id="first apply"),
        pytest.param({"Ready": F, "Reconciling": T}, id="the workload rolls"),
        pytest.param({"Ready": T, "MetricsAvailable": T}, id="serving, idle"),
        pytest.param({"Ready": T, "TuningInProgress": T}, id="a canary under way"),
        pytest.param({"Ready": T, "LastChangeSucceeded": F}, id="a change rolled back"),
        pytest.param({"Ready": T, "MetricsAvailable": F}, id="metrics gone"),
        pytest.param({"Ready": T, "Paused": T, "CircuitOpen": T}, id="paused by a user"),
        pytest.param({"Ready": F, "Stalled": T}, id="an invalid spec"),
        pytest.param({"Ready": F, "Stalled": T, "RollbackFailed": T}, id="the rollback failed"),
    ],
)
def test_every_situation_of_the_design_is_conformant(conditions: dict[str, str]) -> None:
    assert misleading(status(conditions), generation=2) == []


MISLEADING = [
    pytest.param("FAIL0001", status({"Ready": T, "Stalled": T}), id="FAIL0001"),
    pytest.param("FAIL0002", status({"MetricsAvailable": T}), id="FAIL0002"),
    pytest.param("FAIL0003", status({"Ready": T, "Reconciling": T}), id="FAIL0003"),
    pytest.param("FAIL0004", status({"Ready": U, "Stalled": T}), id="FAIL0004"),
    pytest.param("FAIL0005", status({"Ready": F, "Stalled": T, "Reconciling": T}), id="FAIL0005"),
    pytest.param("FAIL0006", status({"Ready": F, "Reconciling": T}, observed=3), id="FAIL0006"),
    pytest.param("FAIL0007", status({"Ready": T}, observed=1, judged=1), id="FAIL0007"),
    pytest.param("FAIL0007", status({"Ready": T}, observed=None), id="FAIL0007 never observed"),
    pytest.param("FAIL0008", status({"Ready": T}, judged=1), id="FAIL0008"),
    pytest.param("FAIL0011", status({"Ready": U}), id="FAIL0011"),
    pytest.param("once", {"conditions": status({"Ready": F})["conditions"] * 2}, id="twice"),
    pytest.param("abnormal-true", status({"Ready": T, "Paused": F}), id="abnormal but False"),
    pytest.param("stalls", status({"Ready": F, "RollbackFailed": T}), id="a failed rollback that hopes"),
    pytest.param(
        "reason", {"conditions": [{**status({"Ready": F})["conditions"][0], "reason": "no reason"}]}, id="not CamelCase"
    ),
    pytest.param(
        "reason", {"conditions": [{**status({"Ready": F})["conditions"][0], "lastTransitionTime": None}]}, id="no time"
    ),
]


@pytest.mark.parametrize(("rule", "written"), MISLEADING)
def test_what_would_mislead_is_named(rule: str, written: dict[str, Any]) -> None:
    assert any(text.startswith(f"{rule}: ") for text in misleading(written, generation=2))


def test_every_rule_is_broken_by_some_status() -> None:
    assert {case.values[0] for case in MISLEADING} == {rule.id for rule in RULES}


def test_the_abnormal_conditions_are_those_of_the_product() -> None:
    assert {kind.value for kind in ABNORMAL_TRUE} == ABNORMAL
    assert NEGATIVE < ABNORMAL
