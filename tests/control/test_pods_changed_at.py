"""When pods last came or went by decision, as far as a status tells."""

from datetime import UTC, datetime, timedelta

import pytest

from vllm_autotuner.api.status import Effective, HistoryEntry, Outcome, VLLMServiceStatus
from vllm_autotuner.control.decide.scaling_history import pods_changed_at

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
ENDED = HistoryEntry(id="1", knob="maxNumSeqs", to_value="128", outcome=Outcome.ROLLED_BACK, finished_at=AT)
BEFORE = ENDED.updated(finished_at=AT - timedelta(minutes=5))


@pytest.mark.parametrize(
    ("status", "at"),
    [
        pytest.param(VLLMServiceStatus(), None, id="nothing is known"),
        pytest.param(VLLMServiceStatus(effective=Effective(replicas=2, since=AT)), AT, id="since the last edit"),
        pytest.param(
            VLLMServiceStatus(effective=Effective(replicas=2, since=AT), history=(BEFORE,)),
            AT,
            id="replicas were set after the last change",
        ),
        pytest.param(
            VLLMServiceStatus(effective=Effective(replicas=2, since=AT - timedelta(hours=1)), history=(BEFORE, ENDED)),
            AT,
            id="the pods of a trial went: what they served is not in the metrics of the rest",
        ),
        pytest.param(
            VLLMServiceStatus(
                effective=Effective(replicas=2, since=AT),
                history=(ENDED.updated(outcome=Outcome.SUCCEEDED),),
            ),
            AT,
            id="replicas were set in the moment in which a change ended",
        ),
    ],
)
def test_when_pods_changed(status: VLLMServiceStatus, at: datetime | None) -> None:
    assert pods_changed_at(status) == at
