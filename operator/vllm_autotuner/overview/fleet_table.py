"""The table of all services as HTML, the worst first: the same rows as `vllm-autotuner status -o wide`.

Must not: order or judge (`service_row` does), or trust a text.
"""

from collections.abc import Callable, Iterable
from typing import Final

from vllm_autotuner.overview.gpu_hours import Savings
from vllm_autotuner.overview.html_page import LONGEST_NUMBER, badge, cell, safe, table
from vllm_autotuner.overview.savings_text import short_savings
from vllm_autotuner.overview.service_row import NO_DIAGNOSIS, ServiceRow

__all__ = ["fleet_table"]

LONGEST_CELL: Final = 300
"""Characters of a cell: the page of a service has the rest."""
TITLES: Final = ("service", "diagnosis", "mode", "ready", "TTFT", "TPOT", "KV cache", "GPUs", "what it says")


def fleet_table(
    rows: Iterable[tuple[ServiceRow, Savings | None]], *, link: Callable[[ServiceRow], str], caption: str
) -> str:
    """Return the table. `link`: the address of a service's page or section, already safe in an attribute."""
    return table(TITLES, (_row(row, savings, link=link(row)) for row, savings in rows), caption=caption)


def _row(row: ServiceRow, savings: Savings | None, *, link: str) -> str:
    said = "; ".join([*row.conditions, *([row.next] if row.next else []), *([row.message] if row.message else [])])
    diagnosis = badge(row.diagnosis) if row.diagnosis != NO_DIAGNOSIS else safe("not yet")
    saved = "" if savings is None else short_savings(savings)
    cells = (
        f'<a href="{link}">{_short(f"{row.namespace}/{row.name}")}</a>',
        diagnosis,
        *(safe(each or "", longest=LONGEST_NUMBER) for each in (row.mode, row.ready, row.ttft, row.tpot, row.kv_usage)),
        _short(saved),
        _short(said),
    )
    return "".join(cell(content, label=title) for title, content in zip(TITLES, cells, strict=True))


def _short(text: str) -> str:
    return safe(text, longest=LONGEST_CELL)
