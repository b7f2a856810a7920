"""The annotations by which a person tells the operator what to do with one VLLMService.

Apart from the labels of child objects (`workload.labels`), which only the operator writes.
"""

from typing import Final

__all__ = ["APPROVE", "PAUSE", "PREFIX", "REJECT", "RETRY", "ROLLBACK"]

PREFIX: Final = "vllm-autotuner.dev/"

PAUSE: Final = f"{PREFIX}pause"
"""Anything but "false" pauses, including a value that cannot be read."""

APPROVE: Final = f"{PREFIX}approve"
"""The id of the recommendation that a person approves, in mode Approve."""

ROLLBACK: Final = f"{PREFIX}rollback"
"""Ends the change under way and takes it back. Any new value triggers it, such as the time of day."""

REJECT: Final = f"{PREFIX}reject"
"""The id of the recommendation that a person declines."""

RETRY: Final = f"{PREFIX}retry"
"""Clears declined values, cooldown and circuit breaker. Any new value triggers it."""
