"""When another number of replicas was asked for, as far as a status tells."""

from datetime import UTC, datetime, timedelta

import pytest

from vllm_autotuner.api.status import Effective, HistoryEntry, Outcome, VLLMServiceStatus
from vllm_autotuner.control.decide.scaling_history import replicas_asked_since

ASKED = datetime(2026, 11, 21, 12, tzinfo=UTC)
KEPT = HistoryEntry(id="1", knob="maxNumSeqs", to_value="128", outcome=Outcome.SUCCEEDED, finished_at=ASKED)
BEFORE = KEPT.updated(finished_at=ASKED - timedelta(minutes=5))


@pytest.mark.parametrize(
    ("status", "since"),
    [
        pytest.param(VLLMServiceStatus(), None, id="nothing is known"),
        pytest.param(VLLMServiceStatus(effective=Effective(replicas=2, since=ASKED)), ASKED, id="since the last edit"),
        pytest.param(
            VLLMServiceStatus(effective=Effective(replicas=2, since=ASKED), history=(BEFORE,)),
            ASKED,
            id="a change that ended before is not what was written then",
        ),
        pytest.param(
            VLLMServiceStatus(effective=Effective(replicas=2, since=ASKED), history=(BEFORE, KEPT)),
            None,
            id="what was written is a setting that was kept, and moved no number",
        ),
    ],
)
def test_when_replicas_were_asked_for(status: VLLMServiceStatus, since: datetime | None) -> None:
    assert replicas_asked_since(status) == since
