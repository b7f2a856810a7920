"""The cooldown: how long a service is left alone after a change, and how many changes a day may begin (G11). Pure.

Apart from the chain, which asks whether they are over; here they are set. Both stand in status.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.status import BudgetStatus, HistoryEntry, Outcome

__all__ = ["BUDGET_WINDOW", "MOST_DOUBLINGS", "cooldown_until", "spent"]

BUDGET_WINDOW: Final = timedelta(days=1)
"""Over which spec.tuning.budget.changesPerDay counts; it begins with the first change, not at midnight."""
MOST_DOUBLINGS: Final = 4
"""Of the cooldown, while no GPU is free: 16 times 6 h is four days. Our choice."""


def cooldown_until(
    outcome: Outcome, *, earlier: Iterable[HistoryEntry], cooldown: timedelta, now: datetime
) -> datetime:
    """When the next change may begin. Doubled for each change in a row that found no GPU: no value is to blame (T19).

    `earlier`: finished changes, newest last.
    """
    if outcome is not Outcome.REJECTED:
        return now + cooldown
    rejected = [entry.outcome is Outcome.REJECTED for entry in reversed(tuple(earlier))]
    in_a_row = next((count for count, each in enumerate(rejected) if not each), len(rejected))
    return now + cooldown * (1 << min(in_a_row, MOST_DOUBLINGS))


def spent(budget: BudgetStatus | None, *, now: datetime) -> BudgetStatus:
    """Count one change, in a window of 24 hours."""
    if budget is None or budget.window_start is None or now - budget.window_start >= BUDGET_WINDOW:
        return BudgetStatus(changes_today=1, window_start=now)
    return budget.updated(changes_today=max(0, budget.changes_today) + 1)
