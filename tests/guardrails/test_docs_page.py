"""The catalogue of guardrails and its generated page: every name in it exists, and every number comes from the code."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from docs.guardrails import PAGE, REFERENCE, filled, page, resolved
from vllm_autotuner.guardrails import catalogue, guardrail_catalogue
from vllm_autotuner.guardrails.catalogue.guardrail_row import Guardrail, Where
from vllm_autotuner.guardrails.chain import GUARDRAILS as CHAIN
from vllm_autotuner.guardrails.guardrail_catalogue import GUARDRAIL_CATALOGUE
from vllm_autotuner.guardrails.reasons import HoldReason

REPOSITORY = Path(__file__).parents[2]
NAMES = re.compile(r"\b[GT][0-9]{2}\b|\bfp8\b")
"""What may contain a digit: the ids of guardrails and faults, and the name of a data type."""
NUMBER = re.compile(
    r"[0-9]|\b(two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|dozen|hundred|thousand|twice|half)\b"
)


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))
    return frozenset(each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def texts(row: Guardrail) -> tuple[str, ...]:
    return (row.name, row.prevents, row.default, row.missing)


def test_the_page_is_what_the_catalogue_and_the_code_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_number_is_there_once_and_in_order() -> None:
    assert [row.id for row in GUARDRAIL_CATALOGUE] == [f"G{number:02}" for number in range(1, 52)]


@pytest.mark.parametrize("row", GUARDRAIL_CATALOGUE, ids=lambda row: row.id)
def test_what_a_row_names_is_there(row: Guardrail) -> None:
    for name in row.objects:
        assert resolved(name) is not None
    for test in row.tests:
        file, _, function = test.partition("::")
        assert function in functions(file), test


@pytest.mark.parametrize("row", GUARDRAIL_CATALOGUE, ids=lambda row: row.id)
def test_every_row_is_built_and_proven(row: Guardrail) -> None:
    assert row.name
    assert row.prevents
    assert row.objects
    assert row.tests


@pytest.mark.parametrize("row", GUARDRAIL_CATALOGUE, ids=lambda row: row.id)
def test_every_reference_in_a_row_resolves_and_no_number_is_written_by_hand(row: Guardrail) -> None:
    for text in texts(row):
        assert filled(text) or not text
        assert not NUMBER.search(NAMES.sub("", REFERENCE.sub("", text))), text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("after {guardrails.cooldown:BUDGET_WINDOW} again", "after 24h again", id="duration"),
        pytest.param("{guardrails.circuit_breaker:CIRCUIT_WINDOW}", "7 days", id="whole days"),
        pytest.param("{guardrails.concurrency:EXTRA_GPUS}", "10%", id="share of a whole"),
        pytest.param("{observation.noise:NOISE|percent}", "10%", id="percentage"),
        pytest.param("{planning.current_replica:STRETCH|seconds}", "5m", id="seconds"),
        pytest.param("{change.comparison:LOOKS}", "6, 8, 10", id="several numbers"),
        pytest.param("{change.comparison:GROSS|factors}", "TTFT x3, TPOT x2", id="factors"),
        pytest.param("{api.tuning:Tuning.mode}", "Recommend", id="default of a model"),
        pytest.param("{cluster.throttle:ThrottleSettings.per_second}", "100", id="default of a dataclass"),
        pytest.param("no reference", "no reference", id="plain text"),
    ],
)
def test_how_a_reference_is_written(text: str, expected: str) -> None:
    assert filled(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{guardrails.cooldown:NO_SUCH_NAME}", id="no such name"),
        pytest.param("{guardrails.no_such_module:BUDGET_WINDOW}", id="no such module"),
        pytest.param("{api.tuning:Tuning.no_such_field}", id="no such field"),
        pytest.param("{cluster.throttle:ThrottleSettings.no_such_field}", id="no such field of a dataclass"),
        pytest.param("{guardrails.cooldown:BUDGET_WINDOW|percent}", id="a duration is no share"),
        pytest.param("{guardrails.cooldown:BUDGET_WINDOW|weeks}", id="no such format"),
        pytest.param("{guardrails.cooldown:cooldown_until}", id="a function is no value"),
        pytest.param("{BUDGET_WINDOW}", id="no module"),
        pytest.param("{guardrails.cooldown:BUDGET_WINDOW", id="not closed"),
    ],
)
def test_what_does_not_resolve_is_an_error(text: str) -> None:
    with pytest.raises((ImportError, AttributeError, KeyError, ValueError)):
        filled(text)


def test_the_catalogue_imports_nothing_but_itself_and_small_parts_of_the_standard_library() -> None:
    assert guardrail_catalogue.__file__
    files = [Path(guardrail_catalogue.__file__), *Path(catalogue.__path__[0]).glob("*.py")]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not [node for node in nodes if isinstance(node, ast.Import)]
    own = {name for name in imported if name and name.startswith("vllm_autotuner.guardrails.catalogue.")}
    assert imported - own == {"dataclasses", "enum", "typing"}


def test_every_part_of_the_operator_that_is_listed_applies_a_guardrail() -> None:
    assert {row.where for row in GUARDRAIL_CATALOGUE} == set(Where)


def test_every_link_of_the_chain_and_every_reason_is_on_the_page() -> None:
    text = page()
    in_rows = {resolved(name) for row in GUARDRAIL_CATALOGUE for name in row.objects}
    assert set(CHAIN) <= in_rows
    for reason in HoldReason:
        assert f"| {reason.value}" in text
