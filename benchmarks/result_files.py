"""Where a benchmark's figures go: one JSON file a benchmark, with the commit, the machine and the command.

`docs/benchmarks.md` is generated from these files. Must not: measure, or round a figure into a better one.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["RESULTS", "ROOT", "provenance", "write_result"]

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"


def provenance() -> dict[str, str]:
    """Return what a reader needs to repeat a figure: commit, machine, Python, command."""
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "commit": git.stdout.strip() or "unknown",
        "machine": f"{os.cpu_count()} x {platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        # Folders are of this machine and help nobody; the names of files do.
        "command": " ".join(Path(argument).name for argument in sys.argv),
    }


def write_result(name: str, figures: Mapping[str, Any], *, folder: Path = RESULTS) -> Path:
    """Write `name`.json into the results folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"provenance": provenance(), **figures}, indent=2, allow_nan=False) + "\n")
    return path
