"""Validates numbers in profiles: rejects values that are impossible for an engine, with the field's name.

Separate from the values, so that each declares its range in one line. Must not: correct a number.
"""

import math
from collections.abc import Callable, Iterable


def check_numbers(
    owner: object,
    *,
    positive: Iterable[str] = (),
    not_negative: Iterable[str] = (),
    fractions: Iterable[str] = (),
) -> None:
    """Raise ValueError for the first field that is no such number; None is left alone. `fractions`: 0 to 1."""
    rules: tuple[tuple[Iterable[str], Callable[[float], bool], str], ...] = (
        (positive, lambda value: value > 0, "above 0"),
        (not_negative, lambda value: value >= 0, "0 or more"),
        (fractions, lambda value: 0 <= value <= 1, "from 0 to 1"),
    )
    for names, fits, expected in rules:
        for name in names:
            value = getattr(owner, name)
            if value is not None and not (math.isfinite(value) and fits(value)):
                raise ValueError(f"{type(owner).__name__}.{name}: {value!r} is not a number {expected}")
