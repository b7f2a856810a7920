"""The words of everything that a person can read: the field's terms, and none of the phrases that were retired.

Messages are the string constants of the code that are no docstrings. Why each word is here: CONTRIBUTING, words.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
RETIRED: Final = re.compile(
    r"needs no other number|were late lately|move no token|is used to \d|does not serve any more|it did harm"
    r"|again and again|lasting is|worked off before|silence for idleness|forget a no\b",
    re.IGNORECASE,
)
PRIVATE: Final = re.compile(r"\b(seats?(?!-saturation)|arms?|nobody|somebody|whoever)\b", re.IGNORECASE)
"""The project's own words for max-num-seqs, for canary and baseline, and for another field manager. `seats-saturation`
is the name of a recording."""
PAGES: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Every string constant of a module that is no docstring, with its line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value


def sources() -> list[Path]:
    return sorted([*(ROOT / "operator").rglob("*.py"), *(ROOT / "e2e" / "demo").rglob("*.py")])


def pages() -> list[Path]:
    docs = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
    return sorted([*(ROOT / name for name in PAGES), *docs, *(ROOT / "charts").rglob("*.txt")])


def test_no_message_uses_a_private_or_retired_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:100]!r}"
        for path in sources()
        for line, text in messages(path)
        if RETIRED.search(text) or PRIVATE.search(text)
    ]
    assert found == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_uses_a_private_or_retired_word(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if RETIRED.search(line) or PRIVATE.search(line)]
    assert found == []


def test_the_check_finds_what_it_looks_for(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Seats in a docstring are not a message."""\nwhy = f"All {4} seats are taken"\n')
    assert [text for _, text in messages(module) if PRIVATE.search(text)] == [" seats are taken"]
