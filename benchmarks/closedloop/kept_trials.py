"""Keeps each trial as it ends, and takes it from there where the same code would play the same again.

All scenarios with some seeds take hours: what is known need not be played twice, be it after an interruption or beside
another policy. The same code: every file of this repository that it needs, the engines' profiles, and the minor
version of Python and numpy's. The oracle and the rivals need no decision of the product, so what they did stays known
while those change. Which Python played is no part of it: PyPy, which plays an oracle in a fifth of the time, gives the
same digits (decision 39), and each file names its own.
Must not: keep what no commit holds, change a figure, or take one of a commit that nobody can check out.
"""

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.closedloop import trial
from benchmarks.closedloop.scoring import Score
from benchmarks.closedloop.trial import PRODUCT, PolicyName, Task, Trial
from benchmarks.result_files import ROOT, Tree, is_in_history, require_clean_tree, tree_of

__all__ = ["KeptTrials", "UnusableFolderError", "code_of"]

LIST_SOURCES: Final = """
import importlib, json, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
print(json.dumps([one.__file__ for one in list(sys.modules.values()) if getattr(one, "__file__", None)]))
"""
OTHERS: Final = tuple(f"benchmarks.closedloop.{name}" for name in ("offline", "oracle", "rivals", "scenarios"))
PRODUCTS: Final = ("benchmarks.closedloop.trial",)
TRIAL: Final = Path(trial.__file__)
"""Says which case is drawn, and how it is played."""
PROFILES: Final = ROOT / "operator" / "vllm_autotuner" / "simulation" / "profiles"
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Whose `sum` and `statistics` the figures go through, with numpy."""


class UnusableFolderError(Exception):
    """Nothing can be kept there; the message says why, before hours are played."""


@dataclass(frozen=True, slots=True)
class KeptTrials:
    """A folder with one file a trial, named by what was played and by the code that played it."""

    folder: Path
    tree: Tree
    """What plays now."""

    @classmethod
    def at(cls, folder: Path) -> "KeptTrials":
        """Open a folder, which need not exist. Raises UnusableFolderError, and UnrepeatableError for a dirty tree."""
        place = folder.expanduser().resolve()
        if place.is_relative_to(ROOT):
            # What lies there would be a change that no commit holds.
            raise UnusableFolderError(f"{place} is in this repository; name a folder outside")
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=place):
                pass
        except OSError as error:
            raise UnusableFolderError(f"{place}: {error.strerror}") from None
        return cls(place, require_clean_tree(option="--keep"))

    def known(self, task: Task) -> Trial | None:
        """Return what the same code played for this task, None where it has not."""
        place = self._place_of(task)
        try:
            found = json.loads(place.read_text())
            trial = Trial(
                task=task,
                score=Score(**found["score"]),
                notes=found["notes"],
                seconds=found["seconds"],
                commit=found["commit"],
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            print(f"{place} is damaged; its day is played again", file=sys.stderr)
            return None
        return trial if is_in_history(found["commit"]) else None

    def keep(self, played: Trial) -> None:
        """Write one that was played just now; nothing where the tree is another one by now."""
        if tree_of(ROOT) != self.tree:
            return
        text = {
            "commit": self.tree.told,
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "score": asdict(played.score),
            "notes": played.notes,
            "seconds": played.seconds,
        }
        # Whole or not at all: an interrupted run is what this is for, and another one may play the same beside it.
        with tempfile.NamedTemporaryFile("w", dir=self.folder, suffix=".part", delete=False) as unfinished:
            unfinished.write(json.dumps(text))
        Path(unfinished.name).replace(self._place_of(played.task))

    def _place_of(self, task: Task) -> Path:
        told = f"{code_of(task.policy)} {PYTHON} {version('numpy')} {task!r}"
        return self.folder / f"{sha256(told.encode()).hexdigest()[:32]}.json"


def code_of(policy: PolicyName) -> str:
    """Return a hash of all of this repository that a policy's trials depend on."""
    return _code_of(PRODUCTS if policy in PRODUCT else OTHERS)


@cache
def _code_of(modules: Sequence[str]) -> str:
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"}
    command = [sys.executable, "-c", LIST_SOURCES, *modules]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, env=paths)
    loaded = map(Path, json.loads(listed.stdout))
    return _hash_of({*_ours(loaded), TRIAL, *PROFILES.rglob("*.json")})


def _ours(sources: Iterable[Path]) -> Iterable[Path]:
    return (one for one in sources if one.is_relative_to(ROOT) and ".venv" not in one.parts)


def _hash_of(files: Iterable[Path]) -> str:
    found = sha256()
    for file in sorted(files):
        found.update(f"{file.relative_to(ROOT)} {sha256(file.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()
