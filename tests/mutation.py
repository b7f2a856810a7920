"""`python -m tests.mutation`: mutates each comparison of the rules in turn and lists the mutants that no test detects.

Each `<`, `<=`, `>`, `>=` is mutated twice: at its boundary and inverted. The tests are collected once; then the code of
one function is replaced, the tests run until the first failure, and the code is restored. Not part of `make test`: it
takes minutes, and a survivor means a missing test, not a defect.
"""

import argparse
import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

import pytest
from _pytest.runner import runtestprotocol

from vllm_autotuner import diagnosis

PACKAGE: Final = diagnosis.__name__
RULES: Final = Path(diagnosis.__path__[0])
TESTS: Final = Path(__file__).parent / "diagnosis"
LEFT_OUT: Final = frozenset(
    {"test_recordings.py", "test_properties.py", "test_noise.py", "test_from_samples.py", "test_simulated_scenarios.py"}
)
"""Slow tests. The fast tests must detect every mutant without them."""

Table = Mapping[type[ast.cmpop], type[ast.cmpop]]
MOVED: Final[Table] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
TURNED: Final[Table] = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutated comparison."""

    module: str
    line: int
    text: str
    code: CodeType


def mutants(only: Sequence[str]) -> Iterator[Mutant]:
    """Every mutant of every rule, or of the named modules."""
    for path in sorted(RULES.glob("*.py")):
        if only and path.stem not in only:
            continue
        text = path.read_text(encoding="utf-8")
        for number in range(len(_comparisons(ast.parse(text)))):
            for table in (MOVED, TURNED):
                tree = ast.parse(text)
                node, place = _comparisons(tree)[number]
                before = ast.unparse(node)
                node.ops[place] = table[type(node.ops[place])]()
                changed = f"{before}  ->  {ast.unparse(node)}"
                yield Mutant(path.stem, node.lineno, changed, compile(tree, str(path), "exec", dont_inherit=True))


def _comparisons(tree: ast.AST) -> list[tuple[ast.Compare, int]]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    return [(node, place) for node in nodes for place, operator in enumerate(node.ops) if type(operator) in MOVED]


class Mutations:
    """A pytest plugin that runs the collected tests once without and once with each mutant."""

    def __init__(self, only: Sequence[str]) -> None:
        self._only = only
        self.count = 0
        self.survivors: list[Mutant] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if (failed := _first_failure(session.items)) is not None:
            raise pytest.UsageError(f"a test fails without any mutation: {failed}")
        for mutant in mutants(self._only):
            self.count += 1
            functions = _functions(mutant.module)
            original = {name: function.__code__ for name, function in functions.items()}
            for name, code in _codes(mutant.code):
                if name in functions:
                    functions[name].__code__ = code
            killed = _first_failure(session.items)
            for name, code in original.items():
                functions[name].__code__ = code
            if killed is None:
                self.survivors.append(mutant)
                sys.stderr.write(f"survives: {mutant.module}.py:{mutant.line}: {mutant.text}\n")
        return True


def _first_failure(items: Sequence[pytest.Item]) -> str | None:
    for item in items:
        item._initrequest()  # type: ignore[attr-defined]  # fresh fixtures, as pytest-rerunfailures does it
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=None)):
            return item.nodeid
    return None


def _functions(module: str) -> Mapping[str, FunctionType]:
    """Every function of a module by its qualified name, methods and getters of properties included."""
    loaded = import_module(f"{PACKAGE}.{module}")
    owners = [loaded, *(owner for owner in vars(loaded).values() if inspect.isclass(owner))]
    found = [value.fget if isinstance(value, property) else value for owner in owners for value in vars(owner).values()]
    return {
        function.__qualname__: function
        for function in found
        if isinstance(function, FunctionType) and function.__module__ == loaded.__name__
    }


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from _codes(constant)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; the exit code is 1 if a mutant survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help="rules to mutate, such as cold_start; all by default")
    plugin = Mutations(parser.parse_args(arguments).modules)
    files = [str(path) for path in sorted(TESTS.glob("test_*.py")) if path.name not in LEFT_OUT]
    code = pytest.main(
        ["-q", "-p", "no:cacheprovider", "--no-header", "--no-summary", "--assert=plain", "--tb=no", *files],
        plugins=[plugin],
    )
    sys.stderr.write(f"{plugin.count} mutants, {len(plugin.survivors)} survive\n")
    return int(code) or (1 if plugin.survivors else 0)


if __name__ == "__main__":
    sys.exit(main())
