"""One `go build`: alone among processes, whole or not at all, and with its failure in one line.

Apart from `binaries`, which decides what is missing; this module only makes it.
Must not: write outside the cache folder, or let the user's own Go settings change the result.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from e2e.errors import BinariesError
from e2e.file_lock import exclusive
from e2e.go_toolchain import GoToolchain
from e2e.processes import TIED
from e2e.progress import Progress, elapsed
from e2e.tool_catalogue import Tool

POLL_SECONDS: Final = 0.2
CAUSES: Final = (
    ('"git": executable file not found', "git is needed to fetch a Go module: install git, or set GOPROXY to a proxy"),
    ("no space left on device", "the disk is full: a first build needs about 10 GB in the Go caches"),
    ("signal: killed", "the compiler was killed, most likely for want of memory: it needs about 4 GB"),
    ("missing go.sum entry", "go.sum is incomplete: run `go mod tidy` in the tool's folder"),
    ("SECURITY ERROR", "a module differs from its checksum in go.sum: the Go proxy served something else"),
)
"""What Go writes -> what it means. The first that occurs decides."""
NETWORK: Final = ("dial tcp", "no such host", "i/o timeout", "TLS handshake", "x509:", "proxyconnect", "reset by peer")


def build_once(tool: Tool, *, go: GoToolchain, folder: Path, label: str, progress: Progress) -> None:
    """Build a tool into `folder`, unless another process has done so meanwhile: then wait for that one.

    Raises BinariesError with the cause in one line.
    """
    said = False

    def on_wait(holder: int | None) -> None:
        nonlocal said
        if not said:
            said = True
            who = "another process" if holder is None else f"process {holder}"
            progress.say(f"{who} is building {tool.name} already: waiting for it")
        tick()

    started = time.monotonic()
    with progress.working(label) as tick, exclusive(folder.parent / f"{tool.name}.lock", on_wait=on_wait):
        if folder.is_dir():
            return
        # The lock is ours, so a temporary folder of this tool belongs to a build that was killed.
        # Eight characters, as mkdtemp adds: the name of another tool may begin with that of this one.
        for stale in folder.parent.glob(f".{tool.name}-{'?' * 8}"):
            shutil.rmtree(stale, ignore_errors=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{tool.name}-", dir=folder.parent))
        try:
            compile_into(unfinished, tool=tool, go=go, tick=tick)
            unfinished.chmod(0o755)
            # A reader sees the folder whole or not at all: the rename is the last step.
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    progress.say(f"built {tool.name} in {elapsed(time.monotonic() - started)}")


def compile_into(folder: Path, *, tool: Tool, go: GoToolchain, tick: Callable[[], None]) -> None:
    """Run `go build` for all packages of a tool, and put its files beside the binaries."""
    packages = list(tool.packages.items())
    # With one package the output is named outright: etcd's would be called `server` after its folder.
    target = folder / packages[0][0] if len(packages) == 1 else f"{folder}/"
    flags = ["-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", tool.ldflags(), "-o", str(target)]
    if tool.tags:
        flags += ["-tags", tool.tags]
    run_go("build", *flags, *(package for _, package in packages), tool=tool, go=go, tick=tick)
    for binary, package in packages:
        # Go names a binary after the folder of its package.
        if (built := folder / package.rpartition("/")[2]).is_file():
            built.rename(folder / binary)
    if absent := [binary for binary, _ in packages if not (folder / binary).is_file()]:
        raise BinariesError(f"{tool.name} was built, but gave no {', '.join(absent)}")
    if tool.files:
        # `go list` and not `go mod download`: the build has fetched the module, and checked it against go.sum.
        module = Path(run_go("list", "-mod=readonly", "-m", "-f", "{{.Dir}}", tool.module, tool=tool, go=go, tick=tick))
        for file in tool.files:
            shutil.copyfile(module / file, folder / Path(file).name)


def run_go(*arguments: str, tool: Tool, go: GoToolchain, tick: Callable[[], None]) -> str:
    """Run a Go command in the tool's folder; return its stdout without the last line break. Raises BinariesError."""
    # Tied to us: a build whose caller was killed would compile on for minutes, for nobody.
    tied = [sys.executable, "-I", "-S", str(TIED), str(os.getpid())]
    # The user's GOFLAGS and go.work must not reach into the build, nor may Go fetch another Go.
    environment = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints,
    ):
        command = [*tied, str(go.command), *arguments]
        process = subprocess.Popen(command, cwd=tool.folder, env=environment, stdout=output, stderr=complaints)
        code = wait(process, tick=tick)
        output.seek(0)
        complaints.seek(0)
        if code != 0:
            raise BinariesError(f"{tool.name} could not be built: {cause_of(complaints.read() + output.read())}")
        return output.read().removesuffix("\n")


def wait(process: subprocess.Popen[bytes], *, tick: Callable[[], None]) -> int:
    """Wait for a build, ticking; a build is ended when its caller is interrupted."""
    try:
        while True:
            try:
                return process.wait(timeout=POLL_SECONDS)
            except subprocess.TimeoutExpired:
                tick()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def cause_of(output: str) -> str:
    """Say in one line why a build failed: a known cause, else Go's own last words."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("go: downloading")]
    for sign, meaning in CAUSES:
        if sign in output:
            return meaning
    for line in lines:
        if any(sign in line for sign in NETWORK):
            return f"the Go module proxy cannot be reached (what is downloaded is kept; run it again): {line}"
    return lines[-1] if lines else "go build failed without a word"
