"""Figures in words that people read in statuses, Events and answers alike.

Here, at the bottom, because the diagnosis, the plan and the verdict all tell of the same times.
Must not: turn what is unknown into a number, or be read back by anybody.
"""

from typing import Final

__all__ = ["told_seconds"]

WHOLE: Final = 10
"""Milliseconds from which no decimals are told; below two digits are, for an objective may be less than one."""


def told_seconds(seconds: float) -> str:
    """A time as people say it. Worked: 2.4 s, 508 ms, 4.2 ms, 0.45 ms."""
    thousandths = seconds * 1000
    if round(thousandths) >= 1000:
        return f"{seconds:.1f} s"
    return f"{thousandths:.0f} ms" if thousandths >= WHOLE else f"{thousandths:.2g} ms"
