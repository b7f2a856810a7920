"""Cooldown after a change, and the daily change budget of a service (G11, G12). Pure.

This file sets both in status; the chain checks whether they have expired.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.status import BudgetStatus, ChangeTarget, HistoryEntry, Outcome
from vllm_autotuner.planning.bounds import value_of
from vllm_autotuner.planning.proposal import Proposal

__all__ = ["BUDGET_WINDOW", "MOST_DOUBLINGS", "cooldown_until", "is_next_step", "spent"]

BUDGET_WINDOW: Final = timedelta(days=1)
"""Period of spec.tuning.budget.changesPerDay; it begins with the first change, not at midnight."""
MOST_DOUBLINGS: Final = 4
"""Limit for doubling the cooldown while no GPU is free: 16 times 6 h is four days. Our choice."""


def cooldown_until(
    outcome: Outcome, *, earlier: Iterable[HistoryEntry], cooldown: timedelta, now: datetime
) -> datetime:
    """When the next change may begin. Doubled for each change in a row that found no GPU (T19).

    `earlier`: finished changes, newest last.
    """
    if outcome is not Outcome.REJECTED:
        return now + cooldown
    rejected = [entry.outcome is Outcome.REJECTED for entry in reversed(tuple(earlier))]
    in_a_row = next((count for count, each in enumerate(rejected) if not each), len(rejected))
    return now + cooldown * (1 << min(in_a_row, MOST_DOUBLINGS))


def is_next_step(
    proposal: Proposal, *, history: Sequence[HistoryEntry], knobs: EngineKnobs, cooldown: timedelta, now: datetime
) -> bool:
    """Whether it goes on from a kept change that was not enough: the cooldown is for churn, and this is none.

    The last change was kept, so it was watched for its whole bake, it still runs (`knobs`), and an objective is missed
    all the same. No change within the cooldown has moved this knob, unless in the same direction. The daily budget
    holds. `history`: finished changes, newest last.
    """
    last = history[-1] if history else None
    if last is None or last.outcome is not Outcome.SUCCEEDED or proposal.target is ChangeTarget.GPUS:
        return False
    runs = any(knob.value == last.knob and str(value_of(knob, knobs)) == last.to_value for knob in Knob)
    recent = (each for each in history if each.finished_at is None or now < each.finished_at + cooldown)
    return runs and all(_goes_on(proposal, earlier=each) for each in recent if each.knob == proposal.knob.value)


def _goes_on(proposal: Proposal, *, earlier: HistoryEntry) -> bool:
    """Whether both are kept numbers that move in the same direction."""
    numbers = [str(each) for each in (earlier.from_value, earlier.to_value, proposal.current, proposal.value)]
    if earlier.outcome is not Outcome.SUCCEEDED or not all(each.isdecimal() for each in numbers):
        return False
    before, after, current, value = map(int, numbers)
    return (after > before) == (value > current)


def spent(budget: BudgetStatus | None, *, now: datetime) -> BudgetStatus:
    """The budget after one more change, in a window of 24 hours."""
    if budget is None or budget.window_start is None or now - budget.window_start >= BUDGET_WINDOW:
        return BudgetStatus(changes_today=1, window_start=now)
    return budget.updated(changes_today=max(0, budget.changes_today) + 1)
