"""The stand-in for the API server refuses what the CRD refuses."""

from typing import Any

import pytest
from tests.control.crd_schema import violation

from vllm_autotuner.api.status import HISTORY_LENGTH

CONDITION = {"type": "Ready", "status": "True", "reason": "Serving", "lastTransitionTime": "2026-11-23T00:00:00Z"}
ENTRY = {"id": "c1", "knob": "maxNumSeqs", "toValue": "8", "outcome": "Succeeded"}


@pytest.mark.parametrize(
    ("status", "refused"),
    [
        pytest.param({}, "", id="an empty status"),
        pytest.param({"conditions": [CONDITION], "history": [ENTRY] * HISTORY_LENGTH}, "", id="as long as it may be"),
        pytest.param({"history": [ENTRY] * (HISTORY_LENGTH + 1)}, "history must contain less than", id="too long"),
        pytest.param({"replicas": "3"}, "replicas must be integer", id="another type"),
        pytest.param({"conditions": [{"type": "Ready"}]}, "must contain", id="required fields are missing"),
        pytest.param({"conditions": [CONDITION, CONDITION]}, "duplicate type", id="one key twice"),
        pytest.param({"unknown": 1}, "", id="an unknown field is pruned"),
    ],
)
def test_what_the_schema_refuses(status: dict[str, Any], refused: str) -> None:
    found = violation("status", status)
    assert (refused in found) if refused else found == ""
