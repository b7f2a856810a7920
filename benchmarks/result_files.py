"""Where a benchmark's figures go: one JSON file per benchmark, with the commit, the machine and the command.

`docs/benchmarks.md` is generated from these files, so each of them names a commit that holds the code that ran: a
working tree with uncommitted changes is refused, before the measurement (`require_clean_tree`) and after it.
Must not: measure, or round a figure into a better one.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

__all__ = [
    "RESULTS",
    "ROOT",
    "Tree",
    "UnrepeatableError",
    "is_in_history",
    "provenance",
    "require_clean_tree",
    "tree_of",
    "write_result",
]

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"

GENERATED: Final = ("benchmarks/results", "docs/benchmarks.md")
"""Outputs of benchmarks, which change no figure: a second benchmark may follow the first without a commit between."""


class UnrepeatableError(SystemExit):
    """The figures would name a commit that does not hold the code that ran. Ends a command with this message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The code of a working tree: its commit, and the files that differ from it."""

    commit: str | None
    """None outside a git repository."""
    changed: tuple[str, ...] = ()
    """Lines of `git status --porcelain`, without generated files."""

    @property
    def told(self) -> str:
        """The commit as a result file names it."""
        return "unknown" if self.commit is None else f"{self.commit}-dirty" if self.changed else self.commit


def tree_of(root: Path) -> Tree:
    """Return commit and changes of the repository at `root`; untracked files count, ignored ones do not."""
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return Tree(commit=None)
    outputs = [f":(exclude){path}" for path in GENERATED]
    changed = _git(root, "status", "--porcelain", "--", ".", *outputs) or ""
    return Tree(commit=commit.strip(), changed=tuple(changed.splitlines()))


@cache
def is_in_history(commit: str, *, root: Path = ROOT) -> bool:
    """Whether what is checked out is a commit or comes after it."""
    return _git(root, "merge-base", "--is-ancestor", commit, "HEAD") is not None


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


STARTED: Final = tree_of(ROOT)
"""The tree when the command began: what the interpreter has loaded."""


def require_clean_tree(*, root: Path = ROOT, option: str = "--save") -> Tree:
    """Return the tree, for a command with such an option to call before it measures. Raises UnrepeatableError."""
    tree = tree_of(root)
    if tree.commit is None:
        raise UnrepeatableError(f"{option} needs a git repository: results name the commit that was measured")
    if tree.changed:
        raise UnrepeatableError(
            f"{option} refused: the working tree has changes that no commit holds. "
            "Commit them, or run from a clean clone:\n  " + "\n  ".join(tree.changed)
        )
    return tree


def provenance(tree: Tree = STARTED) -> dict[str, str]:
    """Return what a reader needs to repeat a figure: commit, machine, Python, command."""
    return {
        "commit": tree.told,
        "machine": f"{os.cpu_count()} x {platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        # Only the file names of the arguments: folders differ from machine to machine.
        "command": " ".join(Path(argument).name for argument in sys.argv),
    }


def write_result(
    name: str, figures: Mapping[str, Any], *, folder: Path = RESULTS, root: Path = ROOT, started: Tree = STARTED
) -> Path:
    """Write `name`.json into a folder and return its path.

    The results folder takes no figures of a tree that is dirty, or that changed since the command began: they are
    written to the temporary folder instead, marked, and UnrepeatableError names that file. Other folders take both.
    """
    text = json.dumps({"provenance": provenance(started), **figures}, indent=2, allow_nan=False) + "\n"
    if folder.resolve() == (root / RESULTS.relative_to(ROOT)).resolve():
        try:
            now = require_clean_tree(root=root)
            if now != started:
                raise UnrepeatableError(f"--save refused: the run began on {started.told}; the tree is {now.told} now")
        except UnrepeatableError as refused:
            kept = Path(tempfile.mkdtemp(prefix="benchmark-")) / f"{name}.json"
            kept.write_text(text)
            raise UnrepeatableError(f"{refused}\nThe figures are in {kept}") from None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(text)
    return path
