"""The bed's own processes: started tied to us, written down, and stopped only when they are still the same ones.

Apart from what they run (`control_plane`, `prometheus`, `bed`), because a leftover process is the same defect for all.
Must not: find a process by name, or signal a process id that was not checked against its start time.
Assumes Linux (/proc, parent-death signals), and that `start` is called in a thread that lives as long as the bed.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.errors import StartError
from e2e.ports import listens

POLL_SECONDS: Final = 0.05
PATIENCE: Final = 120.0
"""Seconds for what takes a moment: a machine that does much else meanwhile may need a hundred times as long."""
TIED: Final = Path(__file__).with_name("tied.py")
TELLING: Final = ("already in use", "rror:", "err=", "fatal", "panic:", "not defined", "cannot run")
"""Words of the line that says why a server ended; what follows it is usage text or a stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A process for good: a process id is reused, together with its start time it is not."""

    pid: int
    started: int
    """Clock ticks after boot, from /proc/PID/stat."""

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return identify(self.pid) == self

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to the process group that it leads. False when it has gone."""
        if not self.alive():
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def identify(pid: int) -> Identity | None:
    """Look a process up; None when there is none, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the name in brackets, which may hold spaces and brackets itself.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else Identity(pid=pid, started=int(fields[19]))


class StateFile:
    """One JSON file with what the bed is made of; another process reads it to stop the bed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content: dict[str, object] = {}

    def write(self, **entries: object) -> None:
        """Add or replace entries. Atomic: a reader sees the former content or the new one."""
        self._content |= entries
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self._content, indent=1), encoding="utf-8")
        unfinished.replace(self.path)

    def remove(self) -> None:
        """Remove the file; nothing of the bed is left."""
        self.path.unlink(missing_ok=True)


@dataclass(slots=True, kw_only=True)
class _Running:
    command: Sequence[str]
    environment: Mapping[str, str] | None
    log: Path
    process: subprocess.Popen[bytes]
    identity: Identity


class Processes:
    """Starts, watches, freezes and stops the processes of one bed."""

    def __init__(self, *, logs: Path, state: StateFile) -> None:
        self._logs = logs
        self._state = state
        self._running: dict[str, _Running] = {}

    def start(self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        """Start a process in its own session, with stdout and stderr in `NAME.log`; it dies when this one does."""
        if name in self._running:
            raise ValueError(f"{name} runs already")
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"{name}.log"
        tied = [sys.executable, "-I", "-S", str(TIED), str(os.getpid()), *command]
        with log.open("wb") as output:
            process = subprocess.Popen(
                tied,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment) if environment is not None else None,
                start_new_session=True,
            )
        # Never None: we have not reaped it yet, at worst it is a zombie of this very moment.
        identity = identify(process.pid) or Identity(pid=process.pid, started=0)
        self._running[name] = _Running(
            command=command, environment=environment, log=log, process=process, identity=identity
        )
        self._write_down()

    async def wait_ready(self, name: str, probe: Callable[[], Awaitable[bool]], *, seconds: float) -> None:
        """Wait until `probe` holds. Raises StartError with a line of the log when the process dies or is late."""
        running = self._running[name]
        deadline = time.monotonic() + seconds
        while True:
            if (code := running.process.poll()) is not None:
                self.stop(name)
                raise StartError(f"{name} ended with code {code}: {telling_line(running.log)} (log: {running.log})")
            if await probe():
                return
            if time.monotonic() > deadline:
                last = telling_line(running.log)
                raise StartError(f"{name} was not ready after {seconds:.0f} s: {last} (log: {running.log})")
            await asyncio.sleep(POLL_SECONDS)

    def log(self, name: str) -> Path:
        """Return the file with everything that the process wrote, also after its end."""
        return self._logs / f"{name}.log"

    def identity(self, name: str) -> Identity:
        """Return which process it is. Raises KeyError when it does not run."""
        return self._running[name].identity

    def names(self) -> list[str]:
        """Return what was started and not stopped, in the order of starting."""
        return list(self._running)

    def listens(self, name: str, *, port: int) -> bool:
        """Whether the process itself, and no stranger, listens on a port."""
        try:
            return listens(self._running[name].identity.pid, port=port)
        except (FileNotFoundError, PermissionError, ProcessLookupError):  # ended at this moment
            return False

    def pause(self, name: str) -> None:
        """Freeze a process: it keeps its ports and answers nobody."""
        self._running[name].identity.signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a frozen process go on."""
        self._running[name].identity.signal(signal.SIGCONT)

    def restart(self, name: str) -> None:
        """Start a process again with the command and environment it had; kills it first when it still runs."""
        former = self._running[name]
        self.stop(name)
        self.start(name, former.command, environment=former.environment)

    def stop(self, name: str, *, grace: float = 0) -> None:
        """End a process: SIGTERM and `grace` seconds when given, then SIGKILL. Nothing happens when it has gone."""
        running = self._running.pop(name, None)
        if running is None:
            return
        if grace > 0 and running.identity.signal(signal.SIGTERM):
            # A frozen process would take the signal only after it goes on.
            running.identity.signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(timeout=grace)
        running.identity.signal(signal.SIGKILL)
        running.process.wait()
        self._write_down()

    def _write_down(self) -> None:
        self._state.write(
            processes={
                name: {"pid": running.identity.pid, "started": running.identity.started, "log": str(running.log)}
                for name, running in self._running.items()
            }
        )


def telling_line(log: Path) -> str:
    """Return the line of a log that says why: the last with a word of failure, else the last of all."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    for line in reversed(lines):
        if any(word in line for word in TELLING):
            return shortened(line)
    return shortened(lines[-1]) if lines else "it wrote nothing"


def shortened(line: str) -> str:
    """Keep message and error of a line of JSON (etcd adds its stack); other lines stay."""
    try:
        fields = json.loads(line)
    except ValueError:
        return line
    if not isinstance(fields, dict):
        return line
    return ": ".join(str(fields[name]) for name in ("msg", "error") if name in fields) or line
