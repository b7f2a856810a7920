"""The parent's side of a container's process: start it in its own session, read what it prints, wait, kill all of it.

Apart from `launch`, which runs in the child. Apart from `container`, which decides what is started and when.
Must not: restart, interpret exit codes, or leave a process behind: whoever starts one calls `kill_all`.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

LAUNCHER: Final = Path(__file__).with_name("launch.py")
_MARK: Final = "BED_PROCESS"
"""In the environment of every process of a container: finds those that left its session."""
_LAST_WORDS: Final = 1.0


class StartFailed(Exception):
    """The command could not be executed; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Show `source` (a path of the machine) at `target` in the container."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run and where. `mounts=None`: in the mounts of the bed; `kept`: paths that a mount must not hide."""

    argv: Sequence[str]
    env: Mapping[str, str]
    folder: str
    prefix: Sequence[str] = ()
    mounts: Sequence[Mount] | None = None
    kept: Sequence[str] = ()
    join: int | None = None
    """Process id of a container whose mounts to enter instead."""

    def beside(self, argv: Sequence[str], *, pid: int) -> "Command":
        """Return a command that runs in the same place as this one, which runs as process `pid`."""
        isolated = self.mounts is not None
        return Command(
            argv=argv,
            env=self.env,
            folder="/" if isolated else self.folder,
            prefix=self.prefix,
            join=pid if isolated else None,
        )


Output = Callable[[str, bytes], None]
"""Called with "stdout" or "stderr" and what came."""


class Process:
    """One started command and everything that it starts."""

    def __init__(self, child: asyncio.subprocess.Process, *, mark: str, readers: list[asyncio.Task[None]]) -> None:
        self.pid = child.pid
        self._child = child
        self._mark = mark
        self._readers = readers

    @classmethod
    async def start(cls, command: Command, *, scratch: Path, on_output: Output) -> "Process":
        """Return when the command itself runs. Raises StartFailed. `scratch` is a folder for the launch file."""
        mark = uuid.uuid4().hex
        launch_file = scratch / f"{mark}.json"
        launch_file.write_text(
            json.dumps(
                {
                    "parent": os.getpid(),
                    "argv": list(command.argv),
                    "folder": command.folder,
                    "join": command.join,
                    "mounts": None
                    if command.mounts is None
                    else [{"source": each.source, "target": each.target} for each in command.mounts],
                    "kept": list(command.kept),
                }
            ),
            encoding="utf-8",
        )
        report_in, report_out = os.pipe()
        pipes = {"stdout": os.pipe(), "stderr": os.pipe()}
        try:
            # Own pipes instead of asyncio's: the end of the process must not wait for whoever inherited its output.
            child = await asyncio.create_subprocess_exec(
                *command.prefix,
                *(sys.executable, "-I", "-S", str(LAUNCHER), str(report_out), str(launch_file)),
                stdin=subprocess.DEVNULL,
                stdout=pipes["stdout"][1],
                stderr=pipes["stderr"][1],
                env={**command.env, _MARK: mark},
                pass_fds=[report_out],
                start_new_session=True,
            )
        except OSError as error:
            for descriptor in (report_in, *(pipe[0] for pipe in pipes.values())):
                os.close(descriptor)
            raise StartFailed(str(error)) from error
        finally:
            for descriptor in (report_out, *(pipe[1] for pipe in pipes.values())):
                os.close(descriptor)
        readers = [asyncio.create_task(_read(pipe[0], partial(on_output, stream))) for stream, pipe in pipes.items()]
        process = cls(child, mark=mark, readers=readers)
        try:
            report = bytearray()
            await _read(report_in, report.extend)
            if report:
                await process.drain()
                raise StartFailed(report.decode(errors="replace"))
        except BaseException:
            process.kill_all()
            raise
        finally:
            launch_file.unlink(missing_ok=True)
        return process

    async def wait(self) -> int:
        """Return the exit code of the command (128 + n after signal n). What it started may still run."""
        code = await self._child.wait()
        return code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Signal the command itself, as a runtime signals the first process of a container."""
        if self._child.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_all(self) -> None:
        """SIGKILL the command and everything that it started, in its session or not."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in _marked(self._mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def drain(self) -> None:
        """Wait for the last output, which has come when all processes are gone."""
        _, late = await asyncio.wait(self._readers, timeout=_LAST_WORDS)
        for reader in late:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)


async def run(command: Command, *, scratch: Path, seconds: float) -> tuple[int, str]:
    """Run a command to its end. Returns exit code and output. Raises StartFailed or TimeoutError."""
    output = bytearray()
    process = await Process.start(command, scratch=scratch, on_output=lambda _, data: output.extend(data))
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
    finally:
        process.kill_all()
        await process.drain()
    return code, output.decode(errors="replace")


async def _read(descriptor: int, take: Callable[[bytes], None]) -> None:
    """Pass on everything that comes until the other end is closed."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        while data := await reader.read(1 << 16):
            take(data)
    finally:
        transport.close()


def _marked(mark: str) -> list[int]:
    found = []
    wanted = f"{_MARK}={mark}".encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return found
