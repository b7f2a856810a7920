"""The annotations that users set on a VLLMService to pause, approve, reject, roll back or retry.

Labels of child objects, which only the operator writes, are in `workload.labels`.
"""

from typing import Final

__all__ = ["APPROVE", "PAUSE", "PREFIX", "REJECT", "RETRY", "ROLLBACK"]

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
