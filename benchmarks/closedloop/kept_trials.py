"""Keeps each trial as it ends, and takes it from there where the same code would play the same again.

All scenarios with some seeds take hours: what is known need not be played twice, be it after an interruption or beside
another policy. The same code: every file of this repository that is loaded for it, and the engines' profiles. The
oracle and the rivals load no decision of the product, so what they did stays known while those change.
Must not: keep what a dirty tree played, change a figure, or take one of a commit that nobody can check out.
"""

import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from benchmarks.closedloop import trial
from benchmarks.closedloop.scoring import Score
from benchmarks.closedloop.trial import PRODUCT, PolicyName, Task, Trial
from benchmarks.result_files import ROOT, Tree, is_in_history, require_clean_tree

__all__ = ["KeptTrials", "code_of"]

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


@dataclass(frozen=True, slots=True)
class KeptTrials:
    """A folder with one file a trial, named by what was played and by the code that played it."""

    folder: Path
    tree: Tree
    """What plays now."""

    @classmethod
    def at(cls, folder: Path) -> "KeptTrials":
        """Open a folder, which need not exist. Raises UnrepeatableError for a tree that no commit holds."""
        return cls(folder, require_clean_tree())

    def known(self, task: Task) -> Trial | None:
        """Return what the same code played for this task, None where it has not."""
        try:
            found = json.loads(self._place_of(task).read_text())
        except FileNotFoundError:
            return None
        if not is_in_history(found["commit"]):
            return None
        return Trial(
            task=task,
            score=Score(**found["score"]),
            notes=found["notes"],
            seconds=found["seconds"],
            commit=found["commit"],
        )

    def keep(self, played: Trial) -> None:
        """Write one that was played just now."""
        text = {
            "commit": self.tree.told,
            "score": asdict(played.score),
            "notes": played.notes,
            "seconds": played.seconds,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self._place_of(played.task)
        # Whole or not at all: an interrupted run is what this is for.
        unfinished = place.with_suffix(".part")
        unfinished.write_text(json.dumps(text))
        unfinished.replace(place)

    def _place_of(self, task: Task) -> Path:
        told = f"{code_of(task.policy)} {platform.python_version()} {task!r}"
        return self.folder / f"{sha256(told.encode()).hexdigest()[:32]}.json"


def code_of(policy: PolicyName) -> str:
    """Return a hash of all that a policy's trials depend on, but for the libraries."""
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
