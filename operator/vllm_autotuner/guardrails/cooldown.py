"""Cooldown after a change, and the daily change budget of a service (G11, G12). Pure.

This file sets both in status; the chain checks whether they have expired.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.status import BudgetStatus, HistoryEntry, Outcome

__all__ = ["BUDGET_WINDOW", "MOST_DOUBLINGS", "cooldown_until", "spent"]

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


def spent(budget: BudgetStatus | None, *, now: datetime) -> BudgetStatus:
    """The budget after one more change, in a window of 24 hours."""
    if budget is None or budget.window_start is None or now - budget.window_start >= BUDGET_WINDOW:
        return BudgetStatus(changes_today=1, window_start=now)
    return budget.updated(changes_today=max(0, budget.changes_today) + 1)
