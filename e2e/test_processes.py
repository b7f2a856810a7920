"""Starting, freezing and stopping, with `sleep` and a line of Python in place of servers."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.bed import recorded_processes
from e2e.errors import StartError
from e2e.ports import free_ports, is_free, listens
from e2e.processes import PATIENCE, Identity, Processes, StateFile, identify, telling_line

REPOSITORY = Path(__file__).resolve().parent.parent
SLEEP = "/bin/sleep"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(logs=tmp_path / "logs", state=StateFile(tmp_path / "bed.json"))
    yield processes
    for name in processes.names():
        processes.stop(name)


def state_of(pid: int) -> str:
    """R, S, T, Z as in /proc; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ended after the file was opened
        return ""


def wait_until(condition: Callable[[], bool], *, seen: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"seen after {PATIENCE:.0f} s: {seen()}"
        time.sleep(0.02)


async def never() -> bool:
    return False


def test_a_process_keeps_its_identity_from_start_to_exec(processes: Processes) -> None:
    processes.start("sleeper", [SLEEP, "60"])
    started = processes.identity("sleeper")
    wait_until(
        lambda: b"sleep" in Path(f"/proc/{started.pid}/cmdline").read_bytes(),
        seen=lambda: Path(f"/proc/{started.pid}/cmdline").read_bytes(),
    )

    assert identify(started.pid) == started
    assert os.getsid(started.pid) == started.pid


def test_stop_ends_it_and_the_state_file_forgets_it(processes: Processes, tmp_path: Path) -> None:
    processes.start("one", [SLEEP, "60"])
    processes.start("two", [SLEEP, "60"])
    one, two = processes.identity("one"), processes.identity("two")
    assert recorded_processes(tmp_path / "bed.json") == {"one": one, "two": two}

    processes.stop("one")

    assert (one.alive(), two.alive()) == (False, True)
    assert recorded_processes(tmp_path / "bed.json") == {"two": two}
    processes.stop("one")


def test_another_process_with_the_same_id_is_never_signalled(processes: Processes) -> None:
    processes.start("bystander", [SLEEP, "60"])
    real = processes.identity("bystander")
    former = Identity(pid=real.pid, started=real.started - 1)

    assert former.alive() is False
    assert former.signal(signal.SIGKILL) is False
    assert real.alive()


def test_pause_and_resume(processes: Processes) -> None:
    processes.start("sleeper", [SLEEP, "60"])
    pid = processes.identity("sleeper").pid

    processes.pause("sleeper")
    wait_until(lambda: state_of(pid) == "T", seen=lambda: state_of(pid))
    processes.resume("sleeper")
    wait_until(lambda: state_of(pid) in "RS", seen=lambda: state_of(pid))


def test_a_frozen_process_is_stopped_in_order_too(processes: Processes) -> None:
    program = "import signal,sys,time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('ended in order')))"
    processes.start("server", [sys.executable, "-u", "-c", f"{program}; print('serving'); time.sleep(60)"])
    log = processes.log("server")
    wait_until(lambda: "serving" in log.read_text(encoding="utf-8"), seen=lambda: log.read_text(encoding="utf-8"))
    processes.pause("server")

    processes.stop("server", grace=PATIENCE)

    assert log.read_text(encoding="utf-8").splitlines() == ["serving", "ended in order"]


def test_one_that_ignores_sigterm_is_killed_after_its_grace(processes: Processes) -> None:
    processes.start("deaf", ["/bin/sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"])
    log = processes.log("deaf")
    wait_until(lambda: "deaf" in log.read_text(encoding="utf-8"), seen=lambda: log.read_text(encoding="utf-8"))
    identity = processes.identity("deaf")

    processes.stop("deaf", grace=0.2)

    assert not identity.alive()


def test_restart_runs_the_same_command_in_a_new_process(processes: Processes) -> None:
    processes.start("server", ["/bin/sh", "-c", "echo $GREETING; exec sleep 60"], environment={"GREETING": "hello"})
    former = processes.identity("server")

    processes.restart("server")

    log = processes.log("server")
    wait_until(lambda: log.read_text(encoding="utf-8") == "hello\n", seen=lambda: log.read_text(encoding="utf-8"))
    assert not former.alive()
    assert processes.identity("server") != former


async def test_a_process_that_dies_at_start_is_one_line(processes: Processes) -> None:
    processes.start("server", ["/bin/sh", "-c", "echo begin; echo 'Error: no such flag' >&2; echo Usage; exit 2"])

    with pytest.raises(StartError) as failure:
        await processes.wait_ready("server", never, seconds=PATIENCE)

    log = processes.log("server")
    assert str(failure.value) == f"server ended with code 2: Error: no such flag (log: {log})"
    assert processes.names() == []


async def test_a_process_that_stays_silent_is_one_line(processes: Processes) -> None:
    processes.start("server", ["/bin/sh", "-c", "echo still loading; exec sleep 60"])
    log = processes.log("server")
    while not log.read_text(encoding="utf-8"):
        await asyncio.sleep(0.01)

    with pytest.raises(StartError, match=r"^server was not ready after 0 s: still loading \(log: "):
        await processes.wait_ready("server", never, seconds=0.1)


async def test_a_command_that_does_not_exist_is_one_line(processes: Processes) -> None:
    processes.start("server", ["/no/such/server"])

    with pytest.raises(StartError, match=r"^server ended with code 127: cannot run /no/such/server: "):
        await processes.wait_ready("server", never, seconds=PATIENCE)


def test_nothing_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import time\nfrom pathlib import Path\nfrom e2e.processes import Processes, StateFile\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "processes = Processes(logs=folder / 'logs', state=StateFile(folder / 'bed.json'))\n"
        f"processes.start('orphan', [{SLEEP!r}, '60'])\nprint('started', flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "started\n"
    orphan = recorded_processes(tmp_path / "bed.json")["orphan"]
    assert orphan.alive()

    parent.kill()
    parent.communicate()

    wait_until(lambda: not orphan.alive(), seen=lambda: state_of(orphan.pid))


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param("", "it wrote nothing", id="silence"),
        pytest.param("a\nb\n\n", "b", id="no word of failure: the last line"),
        pytest.param("Error: bad flag\nUsage:\n  --x\n", "Error: bad flag", id="usage text follows the reason"),
        pytest.param(
            '{"level":"warn","msg":"slow"}\n{"level":"fatal","msg":"start failed","error":"disk","stacktrace":"x"}\n',
            "start failed: disk",
            id="JSON without its stack",
        ),
        pytest.param("err=first\nlisten: address already in use\nbye\n", "listen: address already in use", id="a port"),
    ],
)
def test_finds_the_line_that_says_why(tmp_path: Path, log: str, expected: str) -> None:
    (tmp_path / "log").write_text(log, encoding="utf-8")

    assert telling_line(tmp_path / "log") == expected


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(20)

    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)


def test_a_free_port_is_given_once_however_a_test_has_seeded_chance() -> None:
    """An operator took seconds to listen, and another one that was started meanwhile had chosen its port."""
    given = []
    for _ in range(50):
        random.seed(1)
        given += free_ports(3)
    assert len(set(given)) == 150


def test_a_port_belongs_to_the_process_that_listens_and_to_no_other(processes: Processes) -> None:
    processes.start("stranger", [SLEEP, "60"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        assert listens(os.getpid(), port=port)
        assert not processes.listens("stranger", port=port)
    assert not listens(os.getpid(), port=port)
