"""`python -m e2e.bed_command up|down|status`: a bed to work with by hand, held by one process in the background.

Apart from the bed, which lives as long as the process that made it: here a holder outlives the command.
Must not: stop the bed of a test run; that one is tied to its run and has a state folder of its own.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from e2e.bed import DEFAULT_STATE_DIR, REPOSITORY, Bed, import_path, recorded_processes, refuse_second_bed
from e2e.binaries import ensure_binaries
from e2e.errors import BedError, StartError
from e2e.processes import Identity, StateFile, identify, telling_line
from e2e.progress import Progress

UP_SECONDS: Final = 180.0
DOWN_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.1
NOT_RUNNING: Final = 3
"""Exit code of `status` without a bed, as that of a stopped service."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; problems are one line on stderr and exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bed_command", description="A test bed to work with by hand.")
    parser.add_argument("action", choices=["up", "down", "status", "hold"], help="`hold` is what `up` leaves running")
    parser.add_argument("--state-dir", type=Path, default=DEFAULT_STATE_DIR)
    parser.add_argument("--gpus", type=int, default=8)
    options = parser.parse_args(arguments)
    state_dir: Path = options.state_dir.absolute()
    try:
        match options.action:
            case "up":
                up(state_dir, gpus=options.gpus)
            case "down":
                down(state_dir)
            case "status":
                return status(state_dir)
            case _:
                asyncio.run(hold(state_dir, gpus=options.gpus))
    except BedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def up(state_dir: Path, *, gpus: int) -> None:
    """Start a bed in the background and say how to use it. Raises BedError when one runs or it cannot start."""
    refuse_second_bed(state_dir / "bed.json")
    progress = Progress()
    ensure_binaries(progress=progress)
    # Of a bed that was killed: it would be taken for the new one's.
    (state_dir / "bed.json").unlink(missing_ok=True)
    log = state_dir / "logs" / "holder.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output, progress.working("starting the control plane, the node and Prometheus") as tick:
        holder = subprocess.Popen(
            [sys.executable, "-m", "e2e.bed_command", "hold", f"--state-dir={state_dir}", f"--gpus={gpus}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": import_path()},
            start_new_session=True,
        )
        deadline = time.monotonic() + UP_SECONDS
        while not read_state(state_dir).get("ready"):
            if holder.poll() is not None:
                raise StartError(telling_line(log).removeprefix("error: "))
            if time.monotonic() > deadline:
                holder.terminate()
                holder.wait()
                raise StartError(f"the bed was not ready after {UP_SECONDS:.0f} s (logs: {log.parent})")
            tick()
            time.sleep(POLL_SECONDS)
    # It is meant to outlive this command; without this Python warns about a child left behind.
    holder.returncode = 0
    status(state_dir)


async def hold(state_dir: Path, *, gpus: int) -> None:
    """Keep a bed until SIGTERM or SIGINT. Also a start that is interrupted leaves nothing."""
    bed = Bed(state_dir=state_dir, gpus=gpus)
    refuse_second_bed(bed.state.path)
    this = identify(os.getpid())
    bed.state.write(holder={"pid": os.getpid(), "started": this.started if this else 0})
    task = asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel if task else lambda: None)
    with contextlib.suppress(asyncio.CancelledError):
        async with bed:
            await asyncio.Event().wait()


def down(state_dir: Path) -> None:
    """Stop the bed of a state folder, or what a crash left of it, and wait until nothing runs."""
    state = StateFile(state_dir / "bed.json")
    holder = holder_of(state_dir)
    recorded = recorded_processes(state.path)
    if holder is not None and holder.alive():
        holder.signal(signal.SIGTERM)
        wait_gone([holder])
        holder.signal(signal.SIGKILL)
    # Those of a holder that was killed die with it by themselves; this is for what did not.
    for process in recorded.values():
        process.signal(signal.SIGKILL)
    left = wait_gone([*recorded.values(), *([holder] if holder else [])])
    if left:
        raise BedError(f"still running after SIGKILL: {', '.join(str(process.pid) for process in left)}")
    state.remove()
    print("no bed runs" if holder is None and not recorded else "the bed is stopped, nothing of it is left")


def status(state_dir: Path) -> int:
    """Print what runs and how to reach it; 3 when there is no bed."""
    content = read_state(state_dir)
    recorded = recorded_processes(state_dir / "bed.json")
    if not any(process.alive() for process in recorded.values()):
        print("no bed runs")
        return NOT_RUNNING
    for name, process in recorded.items():
        print(f"{name:<24} {'running' if process.alive() else 'ENDED':<8} pid {process.pid}")
    if content.get("ready"):
        print(f"mode        {content['mode']}")
        print(f"API         {content['api_url']}")
        print(f"Prometheus  {content['prometheus_url']}")
        print(f"export KUBECONFIG={content['kubeconfig']}")
    return 0


def wait_gone(processes: Sequence[Identity]) -> list[Identity]:
    """Wait until the processes have ended; return those that have not in 30 s."""
    deadline = time.monotonic() + DOWN_SECONDS
    while (left := [process for process in processes if process.alive()]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return left


def read_state(state_dir: Path) -> dict[str, Any]:
    """Return the content of the state file; empty when there is none."""
    try:
        content: dict[str, Any] = json.loads((state_dir / "bed.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content


def holder_of(state_dir: Path) -> Identity | None:
    """Return the process that holds the bed; None when the file names none."""
    entry = read_state(state_dir).get("holder")
    return Identity(pid=entry["pid"], started=entry["started"]) if entry else None


if __name__ == "__main__":
    sys.exit(main())
