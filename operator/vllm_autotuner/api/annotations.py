"""The annotations that users set on a VLLMService to pause, approve, reject, roll back or retry, and numbers in them.

Labels of child objects, which only the operator writes, are in `workload.labels`.
"""

from typing import Final

__all__ = ["APPROVE", "PAUSE", "PREFIX", "REJECT", "RETRY", "ROLLBACK", "whole_number"]

PREFIX: Final = "vllm-autotuner.dev/"

PAUSE: Final = f"{PREFIX}pause"
"""Pauses tuning. Every value except "false" pauses, including an unreadable one."""

APPROVE: Final = f"{PREFIX}approve"
"""Approves the recommendation with this id, in mode Approve."""

ROLLBACK: Final = f"{PREFIX}rollback"
"""Rolls the active change back. Any new value triggers it, such as the time of day."""

REJECT: Final = f"{PREFIX}reject"
"""Rejects the recommendation with this id."""

RETRY: Final = f"{PREFIX}retry"
"""Clears declined values, cooldown and circuit breaker. Any new value triggers it."""

MOST_DIGITS: Final = 18


def whole_number(text: object) -> int | None:
    """Read a whole number that anybody may have written; None for what is none, and beyond 18 digits.

    Python refuses to read or print a number of more than 4,300 digits, with an error where nobody expects one.
    """
    digits = text if isinstance(text, str) else ""
    return int(digits) if digits.isdecimal() and len(digits) <= MOST_DIGITS else None
