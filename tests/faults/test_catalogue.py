"""The catalogue, its page and its table: an untested fault must not look like a tested one."""

from typing import Any

import pytest
from tests.faults.catalogue import FAULTS, Fault
from tests.faults.marked import marked_tests
from tests.faults.table import Outcome, Results

from docs.fault_tests import PAGE, page

FAULT = Fault(number="T99", happens="something", holds="nothing")
REASONED = Fault(number="T99", happens="something", holds="nothing", untested="not built")


def test_the_page_is_what_the_catalogue_and_the_marks_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_number_is_there_once_and_in_order() -> None:
    assert [fault.number for fault in FAULTS] == [f"T{number:02}" for number in range(1, len(FAULTS) + 1)]


def test_no_test_carries_a_number_that_does_not_exist() -> None:
    assert set(marked_tests()) <= {fault.number for fault in FAULTS}


def test_every_number_has_tests_or_a_reason_and_not_both() -> None:
    tests = marked_tests()
    assert not [fault.number for fault in FAULTS if (fault.number in tests) is bool(fault.untested)]


@pytest.mark.parametrize(
    ("fault", "results", "outcome"),
    [
        pytest.param(FAULT, {}, Outcome.FAILED, id="no test, no reason"),
        pytest.param(REASONED, {}, Outcome.NOT_APPLICABLE, id="no test, a reason"),
        pytest.param(FAULT, {"elsewhere": {"T99"}}, Outcome.NOT_SELECTED, id="not selected"),
        pytest.param(FAULT, {"numbers": {"a": ("T99",)}, "ran": {"a"}}, Outcome.PASSED, id="passed"),
        pytest.param(FAULT, {"numbers": {"a": ("T99",)}}, Outcome.FAILED, id="never ran"),
        pytest.param(
            REASONED,
            {"numbers": {"a": ("T99",)}, "bad": {"a": "skipped"}},
            Outcome.FAILED,
            id="a skipped test shows nothing",
        ),
        pytest.param(
            FAULT,
            {"numbers": {"a": ("T99",), "b": ("T01", "T99")}, "ran": {"a", "b"}, "bad": {"b": "failed"}},
            Outcome.FAILED,
            id="one of two, after its body",
        ),
        pytest.param(
            FAULT, {"numbers": {"a": ("T01",)}, "ran": {"a"}}, Outcome.FAILED, id="only another number passed"
        ),
    ],
)
def test_what_becomes_of_a_row(fault: Fault, results: dict[str, Any], outcome: Outcome) -> None:
    (row,) = Results(**results).rows([fault])
    assert row.outcome is outcome


def test_the_results_can_be_a_plugin_beside_more_than_one_conftest() -> None:
    plugin = Results()
    assert {plugin, Results()} > {plugin}, "pytest takes plugins out of sets, by identity"
