"""The state table of a change: which state may follow which. A transition that is not in the table raises.

Both strategies use the same table: in place there is nothing to promote, so Baking follows Analyzing; a canary is
promoted first. Approval happens earlier, on the recommendation, so every change begins with Provisioning.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.status import ActiveChange, ChangeState

__all__ = ["EDGES", "IllegalMove", "late", "moved"]

EDGES: Final[Mapping[ChangeState, frozenset[ChangeState]]] = {
    ChangeState.PROVISIONING: frozenset({ChangeState.VERIFYING, ChangeState.ROLLING_BACK}),
    ChangeState.VERIFYING: frozenset({ChangeState.WARMING_UP, ChangeState.ROLLING_BACK}),
    # Straight to Baking where nothing served before, so that nothing can be compared.
    ChangeState.WARMING_UP: frozenset(
        {ChangeState.ANALYZING, ChangeState.BAKING, ChangeState.HELD, ChangeState.ROLLING_BACK}
    ),
    ChangeState.ANALYZING: frozenset(
        {ChangeState.HELD, ChangeState.PROMOTING, ChangeState.BAKING, ChangeState.ROLLING_BACK}
    ),
    ChangeState.HELD: frozenset({ChangeState.WARMING_UP, ChangeState.ANALYZING, ChangeState.ROLLING_BACK}),
    ChangeState.PROMOTING: frozenset({ChangeState.BAKING, ChangeState.ROLLING_BACK}),
    ChangeState.BAKING: frozenset({ChangeState.ROLLING_BACK}),
    ChangeState.ROLLING_BACK: frozenset(),
}


class IllegalMove(AssertionError):
    """The table has no such edge."""

    def __init__(self, before: ChangeState, to: ChangeState) -> None:
        super().__init__(f"{before.value} -> {to.value}")


def moved(change: ActiveChange, to: ChangeState, *, why: str, now: datetime, limit: timedelta) -> ActiveChange:
    """Return the change in state `to`, with a deadline `limit` from now. Raises IllegalMove and changes nothing."""
    if to not in EDGES.get(change.state, frozenset()):
        raise IllegalMove(change.state, to)
    return change.updated(state=to, state_reason=why, state_since=now, deadline=now + limit)


def late(change: ActiveChange, *, now: datetime) -> bool:
    """Whether the deadline of the current state has passed."""
    # Every state is entered with a deadline. If an edited status lost it, the state must not last for ever.
    return change.deadline is None or now >= change.deadline
