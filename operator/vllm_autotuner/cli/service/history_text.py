"""A finished change for the terminal.

Must not: word it in another way than the report and the web page: `overview.history_rows` has the words.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from vllm_autotuner.api.gpu_steps import GpuStep
from vllm_autotuner.cli.terminal import printable
from vllm_autotuner.overview.history_rows import entry_rows, entry_took, entry_values
from vllm_autotuner.overview.number_format import moment

__all__ = ["entry_lines"]

_STYLES: Final = {"Succeeded": "green", "RolledBack": "yellow", "RollbackFailed": "bold red"}


def entry_lines(entry: Mapping[str, Any], *, steps: Sequence[GpuStep] = ()) -> Iterator[Text | Table]:
    """Yield what to print of one entry. `steps`: the GPUs that its service asked for."""
    outcome, took = entry["outcome"], entry_took(entry)
    lasted = f", took {took}" if took else ""
    yield Text.assemble(
        f"{moment(entry.get('finishedAt'))}  ",
        (printable(f"{entry_values(entry)}  "), "bold"),
        (outcome, _STYLES.get(outcome, "")),
        f"  (id {entry['id']}{lasted})",
    )
    rows = Table.grid(padding=(0, 2))
    for what, text in entry_rows(entry, steps=steps):
        rows.add_row(f"  {what}", Text(printable(text)))
    if rows.row_count:
        yield rows
