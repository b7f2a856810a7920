"""Whether the request rate before a change is high enough for a verdict."""

from dataclasses import dataclass
from datetime import timedelta

import pytest
from tests.change.worlds import BEFORE, STRATEGY, canary_change, change

from vllm_autotuner.api.status import ActiveChange, ChangeState
from vllm_autotuner.change.analysis import longest
from vllm_autotuner.change.foreseen import lacks_requests

WINDOW = timedelta(seconds=30)
"""Thirty of them are kept: 15 minutes. Fifty requests in them are one in eighteen seconds."""


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    change: ActiveChange
    rates: tuple[float | None, ...]
    """Requests per second of a pod in each window before."""
    enough: bool
    replicas: int = 1
    window: timedelta = WINDOW


IN_PLACE = change(ChangeState.PROVISIONING)
CANARY = canary_change(ChangeState.PROVISIONING, baseline=False)
FRESH = canary_change(ChangeState.PROVISIONING)
CASES = (
    Case(id="fifty in a quarter of an hour", change=IN_PLACE, rates=(50 / 900 + 1e-9,), enough=True),
    Case(id="one fewer", change=IN_PLACE, rates=(49 / 900,), enough=False),
    Case(id="no requests", change=IN_PLACE, rates=(0.0, 0.0), enough=False),
    Case(id="the mean counts", change=IN_PLACE, rates=(0.02, 0.1), enough=True),
    Case(id="windows that do not tell are no zeros", change=IN_PLACE, rates=(None, 0.1), enough=True),
    Case(id="the rate is unknown", change=IN_PLACE, rates=(None, None), enough=False),
    Case(id="nothing was measured", change=IN_PLACE, rates=(), enough=False),
    Case(
        id="longer windows hold more: half an hour",
        change=IN_PLACE,
        rates=(0.03,),
        window=timedelta(minutes=1),
        enough=True,
    ),
    Case(
        id="longer windows hold more: an hour",
        change=IN_PLACE,
        rates=(0.014,),
        window=timedelta(minutes=2),
        enough=True,
    ),
    Case(id="a canary takes a third of two pods' requests", change=CANARY, replicas=2, rates=(0.084,), enough=True),
    Case(id="and so needs more of them", change=CANARY, replicas=2, rates=(0.083,), enough=False),
    Case(id="with a fresh pod beside it they are five", change=FRESH, replicas=3, rates=(0.093,), enough=True),
    Case(id="and each gets less", change=FRESH, replicas=3, rates=(0.092,), enough=False),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}: {case.enough}")
def test_requests_are_foreseen(case: Case) -> None:
    before = tuple(BEFORE.updated(requests_per_second=rate) for rate in case.rates)
    given = case.change.updated(before=before)
    why = lacks_requests(given, replicas=case.replicas, window=case.window)
    assert (why == "") is case.enough, why


def test_it_says_how_many() -> None:
    given = IN_PLACE.updated(before=(BEFORE.updated(requests_per_second=0.04),))
    why = lacks_requests(given, replicas=1, window=WINDOW)
    assert why == "too few requests: about 36 per pod within the 15 min of a trial, a verdict needs 50"


@pytest.mark.parametrize(("analysis", "minutes"), [(10, 15), (300, 30)], ids=["a short one", "a long one"])
def test_an_analysis_has_time_for_the_windows_that_are_kept(analysis: int, minutes: int) -> None:
    strategy = STRATEGY.updated(analysis=timedelta(seconds=analysis))
    assert longest(strategy, window=WINDOW) == timedelta(minutes=minutes)
