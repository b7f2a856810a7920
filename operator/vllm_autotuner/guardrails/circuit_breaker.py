"""The circuit breaker: repeated harmful rollbacks of a service stop its tuning for two weeks (G31). Pure.

This file counts rollbacks and opens the circuit; the chain checks whether it is open. Stored in status.circuit, which
users can edit.
"""

from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.status import Circuit, CircuitState

__all__ = ["CIRCUIT_OPEN_FOR", "CIRCUIT_WINDOW", "ROLLBACKS_TO_OPEN", "after_harm", "circuit_is_open", "opened"]

ROLLBACKS_TO_OPEN: Final = 2
"""Harmful rollbacks within `CIRCUIT_WINDOW` that open the circuit. Design, changes.md 6."""
CIRCUIT_WINDOW: Final = timedelta(days=7)
"""How long a harmful rollback counts. Design, changes.md 6."""
CIRCUIT_OPEN_FOR: Final = timedelta(days=14)
"""How long an open circuit stays open. Design, changes.md 6."""


def circuit_is_open(circuit: Circuit | None, *, now: datetime) -> bool:
    """Whether the circuit is open now. Without an end time it stays open until a user requests a retry."""
    if circuit is None or circuit.state is not CircuitState.OPEN:
        return False
    return circuit.until is None or now < circuit.until


def after_harm(circuit: Circuit | None, *, now: datetime) -> Circuit:
    """Count one harmful rollback. While the circuit is closed, `opened_at` holds the first rollback that counts."""
    first = circuit.opened_at if circuit is not None else None
    recent = circuit is not None and first is not None and now - first < CIRCUIT_WINDOW
    count = (max(0, circuit.rollbacks) if circuit is not None and recent else 0) + 1
    if count < ROLLBACKS_TO_OPEN:
        return Circuit(state=CircuitState.CLOSED, opened_at=now, rollbacks=count)
    reason = f"{count} changes were rolled back within {CIRCUIT_WINDOW.days} days"
    return Circuit(state=CircuitState.OPEN, opened_at=now, until=now + CIRCUIT_OPEN_FOR, rollbacks=count, reason=reason)


def opened(reason: str, *, now: datetime) -> Circuit:
    """Open it without an end: a user closes it (`vllm-autotuner.dev/retry`)."""
    return Circuit(state=CircuitState.OPEN, opened_at=now, reason=reason)
