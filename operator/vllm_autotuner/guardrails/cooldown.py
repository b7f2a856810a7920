"""Cooldown after a change, and the daily change budget of a service (G11, G12). Pure.

This file sets both in status, and says which change need not wait; the chain checks whether they have expired.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.knobs import Knob, knob_value
from vllm_autotuner.api.status import BudgetStatus, HistoryEntry, Outcome

__all__ = ["BUDGET_WINDOW", "MOST_DOUBLINGS", "cooldown_until", "goes_on", "spent"]

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


def goes_on(
    knob: Knob, value: int | str, *, history: Iterable[HistoryEntry], cooldown: timedelta, now: datetime
) -> bool:
    """Whether a change goes on from what was kept, and takes none of it back: its bake was the wait.

    Each change that ended within the cooldown must have been kept, and may not have moved the same knob the other way.
    """
    ended = tuple(history)
    # The last one counts in any case: who lowers the cooldown afterwards does not want to wait longer.
    recent = [
        each for each in ended if each is ended[-1] or each.finished_at is None or now - each.finished_at < cooldown
    ]
    return bool(recent) and all(
        each.outcome is Outcome.SUCCEEDED and (each.knob != knob.value or _is_farther(value, than=each))
        for each in recent
    )


def _is_farther(value: int | str, *, than: HistoryEntry) -> bool:
    """Whether a number moves on in the direction of a change; False where its numbers are not known."""
    start, end = (knob_value(each or "") for each in (than.from_value, than.to_value))
    if isinstance(value, str) or isinstance(start, str) or isinstance(end, str):
        return False
    return (end - start) * (value - end) > 0


def spent(budget: BudgetStatus | None, *, now: datetime) -> BudgetStatus:
    """The budget after one more change, in a window of 24 hours."""
    if budget is None or budget.window_start is None or now - budget.window_start >= BUDGET_WINDOW:
        return BudgetStatus(changes_today=1, window_start=now)
    return budget.updated(changes_today=max(0, budget.changes_today) + 1)
