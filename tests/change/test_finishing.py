"""What the history shows of a change that ended."""

import pytest
from tests.api.cases import SMALLEST
from tests.change.worlds import BEFORE, NOW, change, measured

from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import Analysis, ChangeState, HistoryEntry, Measurement, Outcome, VLLMServiceStatus
from vllm_autotuner.change.finishing import finished
from vllm_autotuner.change.world import Ending

NOTHING = measured(1)[0].updated(ttft_seconds=None)
"""A window in which no request got its first token."""
SLOW, FAST = measured(2, ttft=3.0), measured(2, ttft=0.3)


def entry_of(analysis: Analysis | None) -> HistoryEntry:
    spec = VLLMServiceSpec.model_validate(dict(SMALLEST))
    ended = change(ChangeState.BAKING, analysis=analysis)
    status = finished(
        VLLMServiceStatus(), ended, Ending(outcome=Outcome.SUCCEEDED, reason="better"), spec=spec, now=NOW
    )
    return status.history[-1]


@pytest.mark.parametrize(
    ("last", "reference", "before", "after"),
    [
        pytest.param((*FAST, NOTHING), (), BEFORE, FAST[1], id="in place, the last window without requests"),
        pytest.param(FAST, (), BEFORE, FAST[1], id="in place, all complete"),
        pytest.param((*FAST, NOTHING), (*SLOW, SLOW[0]), SLOW[1], FAST[1], id="the canary's last without requests"),
        pytest.param((*FAST, FAST[0]), (*SLOW, NOTHING), SLOW[1], FAST[1], id="the baseline's last without requests"),
        pytest.param((NOTHING,), (), BEFORE, NOTHING, id="none complete"),
        pytest.param((), SLOW, None, None, id="an edited status"),
    ],
)
def test_the_history_shows_the_newest_window_with_data_of_both_sides(
    last: tuple[Measurement, ...],
    reference: tuple[Measurement, ...],
    before: Measurement | None,
    after: Measurement | None,
) -> None:
    entry = entry_of(Analysis(last=last, reference=reference))
    assert (entry.before, entry.after) == (before, after)


def test_a_change_without_windows_has_only_its_baseline() -> None:
    entry = entry_of(None)
    assert (entry.before, entry.after) == (BEFORE, None)
