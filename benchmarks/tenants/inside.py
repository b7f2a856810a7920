"""Starts a benchmark again where a bed can live: it needs pods with addresses of their own (see `e2e.enter`).

Separate from the commands, because two of them need it. Must not: build or fetch anything.
"""

import os
import sys

from e2e.bed import import_path
from e2e.enter import MODE_VARIABLE


def enter_bed() -> None:
    """Replace this process by one inside, with the same arguments; do nothing where it is inside already."""
    if MODE_VARIABLE in os.environ:
        return
    command = [sys.executable, "-m", "e2e.enter", "--", sys.executable, *sys.argv]
    os.execve(sys.executable, command, os.environ | {"PYTHONPATH": import_path()})
