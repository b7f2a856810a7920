"""Guards for the top-level folder `operator/`, whose name is also a standard-library module.

An `operator/__init__.py` (even an empty one) makes `import collections` fail in every process started from the root,
while bare pytest still passes: only these tests notice.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
ROLES: Final = {"__init__.py", "as_json.py", "command.py", "errors.py", "options.py", "request.py", "text.py"}
"""File names that recur because they name a part of every command, or the errors of a room."""


def test_the_operator_folder_holds_nothing_but_the_package() -> None:
    assert [entry.name for entry in (ROOT / "operator").iterdir() if entry.name != "__pycache__"] == ["vllm_autotuner"]


def test_the_standard_library_wins_from_the_repository_root() -> None:
    code = "import operator, collections; print(operator.__file__)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert not Path(found.stdout.strip()).is_relative_to(ROOT)


def test_one_name_stands_for_one_thing() -> None:
    """A stranger who searches for a file by its name finds one."""
    names = Counter(path.name for path in (ROOT / "operator").rglob("*.py"))
    assert {name for name, count in names.items() if count > 1} <= ROLES
