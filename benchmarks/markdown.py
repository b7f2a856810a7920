"""Markdown for docs/benchmarks.md: tables, and figures with their limits. Must not: round a figure across a limit."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["Result", "flat", "held", "plain", "table", "told"]

Result: TypeAlias = Mapping[str, Any]
"""One results file, or a part of it."""


def plain(result: Result) -> list[str]:
    """Render the figures of the summary unchanged."""
    rows = [(name.replace("_", " "), told(value)) for name, value in flat(result.get("summary", result))]
    return table(("figure", "value"), rows)


def held(name: str, value: float | None, most: float | None) -> tuple[str, ...]:
    """Return a row: title, value, limit, and whether the value is within it."""
    if most is None or value is None:
        return name, told(value), "" if most is None else f"{most:g}", ""
    return name, told(value), f"{most:g}", "holds" if value <= most else "**missed**"


def flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Return the figures of nested mappings with their joined names; lists are left out."""
    if isinstance(value, Mapping):
        return [pair for name, each in value.items() for pair in flat(each, f"{prefix} {name}".strip())]
    return [] if isinstance(value, list) else [(prefix, value)]


def told(value: object) -> str:
    """Return a figure as text, with three digits."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        case _:
            return str(value)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], f"|{'---|' * len(header)}", *lines[1:]]
