"""Writes `fault-tests.md` from the catalogue of faults and the marks of the tests: `make docs`.

Apart from the catalogue, because only this repository needs the page. A test compares the page with its sources.
Must not: state whether a test passes; `make faults` does.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.faults.catalogue import FAULTS, Fault
from tests.faults.marked import marked_tests

PAGE = Path(__file__).with_name("fault-tests.md")

HEAD = """# Fault tests

Generated from the catalogue and the tests by `make docs`; do not edit. Each number is a fault around a change, with the
behavior that must hold. `make faults` runs these tests and prints a table of their outcomes; a number without a test
fails unless a reason is given. "Not covered" names the part of a row that no test covers yet.
"""


def page() -> str:
    """The whole page."""
    tests = marked_tests()
    return "\n".join([HEAD, *(line for fault in FAULTS for line in _section(fault, tests.get(fault.number, ())))])


def _section(fault: Fault, tests: tuple[str, ...]) -> Iterator[str]:
    yield from (f"## {fault.number}: {fault.happens}", "", f"Must hold: {fault.holds}.", "")
    if fault.missing:
        yield from (f"Not covered: {fault.missing}.", "")
    if fault.untested:
        yield from (f"No test: {fault.untested}.", "")
    if tests:
        yield from (f"- `{test}`" for test in tests)
        yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
