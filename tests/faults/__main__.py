"""`python -m tests.faults`: runs every test that carries a fault number and prints the outcome of each.

Apart from pytest's own summary, which counts tests: this counts faults, and a fault without a test is a failure.
Must not: select the tests; the marks do. Arguments are passed to pytest.
"""

import sys
from collections.abc import Sequence

import pytest
from rich.console import Console
from rich.table import Table
from tests.faults.catalogue import FAULTS
from tests.faults.marked import marked_tests
from tests.faults.table import MARK, Outcome, Results, Row, counts

STYLES = {
    Outcome.PASSED: "green",
    Outcome.FAILED: "bold red",
    Outcome.NOT_APPLICABLE: "yellow",
    Outcome.NOT_SELECTED: "dim",
}


def main(arguments: Sequence[str]) -> int:
    """Return 0 if no fault failed and pytest reported no error."""
    # With arguments, tests may be deselected; a run without arguments must include every number.
    results = Results(elsewhere=marked_tests() if arguments else ())
    code = pytest.main(["-m", f"{MARK} and not vllm", "-q", *arguments], plugins=[results])
    rows = list(results.rows(FAULTS))
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table_of(rows))
    found = counts(rows)
    for outcome in (Outcome.NOT_APPLICABLE, Outcome.NOT_SELECTED):
        if found[outcome]:
            console.print(f"{found[outcome]} {outcome.value}")
    console.print(f"{found[Outcome.PASSED]} passed, {found[Outcome.FAILED]} failed", highlight=False)
    return 0 if code == pytest.ExitCode.OK and not found[Outcome.FAILED] else 1


def table_of(rows: Sequence[Row]) -> Table:
    """The rows as a table for the terminal."""
    table = Table(title="Fault tests", title_justify="left")
    for name in ("", "fault", "outcome", "tests", "remarks"):
        table.add_column(name, justify="right" if name == "tests" else "left")
    for row in rows:
        outcome = f"[{STYLES[row.outcome]}]{row.outcome.value}[/]"
        tests = str(row.tests) if row.tests else ""
        table.add_row(row.fault.number, row.fault.happens, outcome, tests, "\n".join(row.remarks))
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
