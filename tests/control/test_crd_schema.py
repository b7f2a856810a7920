"""The stand-in for the API server refuses what the CRD refuses."""

from typing import Any

import pytest
from tests.api.cases import CASES
from tests.control.crd_schema import cel_messages, pruned, violation

from vllm_autotuner.api.status import HISTORY_LENGTH

CONDITION = {"type": "Ready", "status": "True", "reason": "Serving", "lastTransitionTime": "2026-11-23T00:00:00Z"}
ENTRY = {"id": "c1", "knob": "maxNumSeqs", "toValue": "8", "outcome": "Succeeded"}


@pytest.mark.parametrize(
    ("status", "refused"),
    [
        pytest.param({}, "", id="an empty status"),
        pytest.param({"conditions": [CONDITION], "history": [ENTRY] * HISTORY_LENGTH}, "", id="as long as it may be"),
        pytest.param({"history": [ENTRY] * (HISTORY_LENGTH + 1)}, "status.history: Too many: 11", id="too long"),
        pytest.param({"replicas": "3"}, "must be of type integer", id="another type"),
        pytest.param({"conditions": [{"type": "Ready"}]}, "status: Required value", id="required fields are missing"),
        pytest.param({"conditions": [CONDITION, CONDITION]}, "Duplicate value", id="one key twice"),
        pytest.param({"unknown": 1}, "", id="an unknown field is pruned"),
    ],
)
def test_what_the_schema_refuses(status: dict[str, Any], refused: str) -> None:
    found = violation("status", status)
    assert (refused in found) if refused else found == ""


TOO_LONG = {"history": [ENTRY] * (HISTORY_LENGTH + 1), "replicas": 3}


@pytest.mark.parametrize(
    ("after", "refused"),
    [
        pytest.param({**TOO_LONG, "replicas": 4}, "", id="what was too long already stays as it is"),
        pytest.param({**TOO_LONG, "history": [ENTRY] * (HISTORY_LENGTH + 2)}, "Too many: 12", id="and grows no more"),
        pytest.param({**TOO_LONG, "history": [ENTRY] * HISTORY_LENGTH}, "", id="it may be cut"),
        pytest.param({**TOO_LONG, "replicas": "4"}, "of type integer", id="nothing else may be wrong"),
    ],
)
def test_what_was_invalid_before_may_stay_and_grow_no_worse(after: dict[str, Any], refused: str) -> None:
    found = violation("status", after, stored=TOO_LONG)
    assert (refused in found) if refused else found == ""


def test_a_field_that_the_crd_does_not_know_is_pruned_and_a_pod_template_is_kept() -> None:
    template = {"metadata": {"lables": {}}, "spec": {"nodeSelectr": {"a": "b"}, "containers": [{"name": "x", "y": 1}]}}
    assert pruned("spec", {"replicas": 1, "podTemplate": template, "newer": 1, "tuning": {"mode": "Off", "n": 1}}) == {
        "replicas": 1,
        "podTemplate": template,
        "tuning": {"mode": "Off"},
    }


def test_every_rule_of_the_crd_about_a_spec_has_an_object_that_breaks_it() -> None:
    """The same objects are put to the models, to the stand-in and to the real API server."""
    told = [case.refused.lower() for case in CASES if case.refused is not None]
    assert [each for each in sorted(cel_messages("spec")) if not any(part in each.lower() for part in told)] == []
