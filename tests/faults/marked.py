"""Which tests carry which fault numbers, read from the sources.

Apart from pytest's own marks, so that the documentation does not need to collect the whole suite.
Must not: import a test. A mark is therefore always a decorator of its test.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("tests", "e2e")


def marked_tests() -> Mapping[str, tuple[str, ...]]:
    """Return the tests of each number as `file::function`, ordered by file and line."""
    found: dict[str, list[str]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("test_*.py")):
            for number, name in _marks(ast.parse(path.read_text(encoding="utf-8"))):
                found.setdefault(number, []).append(f"{path.relative_to(ROOT).as_posix()}::{name}")
    return {number: tuple(tests) for number, tests in found.items()}


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault":
                    yield from ((str(ast.literal_eval(number)), node.name) for number in decorator.args)
