"""Whether the tests that an index names as proof exist, are collected, and are not deselected by a mark.

Apart from the indices that use it (traps of peers, rows of the field guide). Tests of the running session are already
collected; other files are collected in a separate process, `python -m tests.collected FILE...`.
Must not: run a test.
"""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pytest

__all__ = ["unproven"]

ROOT: Final = Path(__file__).resolve().parent.parent
LEAVING_OUT: Final = frozenset({"skip", "skipif", "xfail", "vllm"})
"""Marks of tests that prove nothing, or nothing without a real vLLM."""


def unproven(proofs: Iterable[str], session: pytest.Session) -> set[str]:
    """Return those of `proofs` that do not exist: `file::test`, which means all its rows, or `file::test[row]`."""
    left = set(proofs) - _with_rows(_names(session.items))
    return left - _with_rows(_elsewhere({proof.partition("::")[0] for proof in left})) if left else left


def _with_rows(names: Iterable[str]) -> set[str]:
    known = set(names)
    return known | {name.partition("[")[0] for name in known}


def _elsewhere(files: set[str]) -> list[str]:
    command = [sys.executable, "-m", "tests.collected", *sorted(files)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout.splitlines()


def _names(items: Sequence[pytest.Item]) -> Iterable[str]:
    for item in items:
        skips = isinstance(item, pytest.Function) and "skip" in item.function.__code__.co_names
        if not skips and LEAVING_OUT.isdisjoint(mark.name for mark in item.iter_markers()):
            yield item.nodeid


class Printing:
    """A pytest plugin that prints the collected tests that really run."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        sys.stdout.writelines(f"{name}\n" for name in _names(session.items))


def main(files: Sequence[str]) -> int:
    """Print the names; the exit code is pytest's: 0 if every file could be read."""
    # With -qqq pytest itself prints only a count per file.
    return int(pytest.main(["--collect-only", "-qqq", "-p", "no:cacheprovider", *files], plugins=[Printing()]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
