"""The page of guardrails is generated; a row that names what is not there would make it lie."""

import ast
from functools import cache
from pathlib import Path

import pytest

from docs.guardrail_catalogue import GUARDRAILS, Guardrail, Where
from docs.guardrails import PAGE, page, resolved
from vllm_autotuner.guardrails.chain import GUARDRAILS as CHAIN
from vllm_autotuner.guardrails.reasons import HoldReason

REPOSITORY = Path(__file__).parents[2]


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))
    return frozenset(each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_page_is_what_the_catalogue_and_the_code_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_number_is_there_once_and_in_order() -> None:
    assert [row.id for row in GUARDRAILS] == [f"G{number:02}" for number in range(1, 52)]


@pytest.mark.parametrize("row", GUARDRAILS, ids=lambda row: row.id)
def test_what_a_row_names_is_there(row: Guardrail) -> None:
    for name in row.objects:
        assert resolved(name) is not None
    for test in row.tests:
        file, _, function = test.partition("::")
        assert function in functions(file), test


@pytest.mark.parametrize("row", GUARDRAILS, ids=lambda row: row.id)
def test_a_row_is_built_and_proven_or_says_why_not(row: Guardrail) -> None:
    built = row.where is not Where.NOWHERE
    assert built == bool(row.objects) == bool(row.tests)
    assert built or row.missing


def test_every_link_of_the_chain_and_every_reason_is_on_the_page() -> None:
    text = page()
    in_rows = {resolved(name) for row in GUARDRAILS for name in row.objects}
    assert set(CHAIN) <= in_rows
    for reason in HoldReason:
        assert f"| {reason.value}" in text
