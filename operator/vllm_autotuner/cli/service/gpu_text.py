"""What tuning of one service saved or spent, as lines for the terminal.

Must not: compute, or word it in another way than the report: `overview` does both.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from vllm_autotuner.api.service import parse_service
from vllm_autotuner.api.status import StatusUnreadable, VLLMServiceStatus, parse_status
from vllm_autotuner.cli.terminal import printable
from vllm_autotuner.overview.gpu_hours import RECORDED, Prices, Savings, savings_of, step_effects
from vllm_autotuner.overview.number_format import moment
from vllm_autotuner.overview.savings_text import told_savings, told_step

__all__ = ["gpu_lines", "recorded_savings", "stored_status"]

SHOWN: Final = 3
"""Steps that are shown beside the rest of a status; `history` has all of them."""


def recorded_savings(body: Mapping[str, Any], *, now: datetime, prices: Prices) -> Savings:
    """The savings of an object over all that its status records."""
    return savings_of(parse_service(body), since=RECORDED, until=now, prices=prices)


def stored_status(body: Mapping[str, Any]) -> VLLMServiceStatus:
    """The status as a value; empty where it cannot be read, which the savings say then."""
    try:
        return parse_status(body.get("status"))
    except StatusUnreadable:
        return VLLMServiceStatus()


def gpu_lines(body: Mapping[str, Any], *, now: datetime, prices: Prices, most: int = SHOWN) -> Iterator[Text | Table]:
    """Yield the sum and the newest steps, newest first."""
    yield Text.assemble(("GPUs: ", "bold"), printable(told_savings(recorded_savings(body, now=now, prices=prices))))
    effects = step_effects(stored_status(body).gpu_steps, until=now)
    rows = Table.grid(padding=(0, 2))
    for effect in reversed(effects[-most:]):
        rows.add_row(f"  {moment(effect.step.at.isoformat())}", Text(printable(told_step(effect))))
    if rows.row_count:
        yield rows
