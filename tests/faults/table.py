"""The outcome of each fault, computed from the results of the tests that carry its number.

Apart from the command, so that tests can check that a row without a test, or with a skipped one, does not pass.
Must not: run a test.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pytest
from tests.faults.catalogue import Fault

MARK = "fault"


class Outcome(StrEnum):
    """Of one row."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    NOT_SELECTED = "not selected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault and the outcome of its tests."""

    fault: Fault
    outcome: Outcome
    tests: int = 0
    remarks: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)  # pytest keeps its plugins in sets
class Results:
    """A pytest plugin that records the outcome of each marked test."""

    elsewhere: Collection[str] = ()
    """Numbers of tests that the user may have deselected."""
    numbers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The fault numbers of each selected test, by its node id."""
    bad: dict[str, str] = field(default_factory=dict)
    """The outcome of each test that did not pass: failed or skipped."""
    ran: set[str] = field(default_factory=set)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record which tests will run."""
        self.numbers = {item.nodeid: numbers_of(item) for item in session.items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of one test."""
        if report.when == "call" and report.passed:
            self.ran.add(report.nodeid)
        elif not report.passed:
            self.bad[report.nodeid] = report.outcome

    def rows(self, faults: Iterable[Fault]) -> Iterator[Row]:
        """One row for each fault."""
        return (self._row(fault) for fault in faults)

    def _row(self, fault: Fault) -> Row:
        tests = [test for test, numbers in self.numbers.items() if fault.number in numbers]
        wrong = tuple(f"{self.bad.get(test, 'did not run')}: {test}" for test in tests if not self._good(test))
        if tests:
            outcome = Outcome.FAILED if wrong else Outcome.PASSED
            missing = (f"not covered: {fault.missing}",) if fault.missing else ()
            return Row(fault=fault, outcome=outcome, tests=len(tests), remarks=(*wrong, *missing))
        if fault.number in self.elsewhere:
            return Row(fault=fault, outcome=Outcome.NOT_SELECTED)
        if fault.untested:
            return Row(fault=fault, outcome=Outcome.NOT_APPLICABLE, remarks=(fault.untested,))
        return Row(fault=fault, outcome=Outcome.FAILED, remarks=("no test, and no reason given",))

    def _good(self, test: str) -> bool:
        return test in self.ran and test not in self.bad


def numbers_of(item: pytest.Item) -> tuple[str, ...]:
    """The fault numbers that a test carries."""
    return tuple(str(number) for mark in item.iter_markers(MARK) for number in mark.args)


def counts(rows: Iterable[Row]) -> Mapping[Outcome, int]:
    """The number of rows with each outcome."""
    outcomes = [row.outcome for row in rows]
    return {outcome: outcomes.count(outcome) for outcome in Outcome}
