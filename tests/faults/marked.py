"""Which tests carry which fault numbers, read from the sources.

Apart from pytest's own marks, because the documentation must not need a collection of the whole suite.
Must not: import a test. A mark therefore stands as a decorator of its test and nowhere else.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("tests", "e2e")


def marked_tests() -> Mapping[str, tuple[str, ...]]:
    """Return for each number its tests as `file::function`, in the order of files and lines."""
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
