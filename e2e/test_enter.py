"""Entering the bed: which mode and why, exit codes, signals, and that nothing is left."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from e2e import enter, linux
from e2e.enter import MODE_VARIABLE, choose_mode

REPOSITORY = Path(__file__).resolve().parent.parent
MODES = ["namespace", "loopback"]
SECONDS = 120.0


@pytest.fixture(scope="module")
def possible() -> str:
    """The best mode of this machine."""
    return choose_mode("auto")[0]


def outside() -> dict[str, str]:
    """The environment of somebody who has not entered yet."""
    return {name: value for name, value in os.environ.items() if name != MODE_VARIABLE}


def wrapper(mode: str, *command: str) -> list[str]:
    return [sys.executable, "-m", "e2e.enter", "--mode", mode, "--", *command]


def run(mode: str, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        wrapper(mode, *command),
        cwd=REPOSITORY,
        env=outside(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        input="from stdin",
    )


def skip_unless(mode: str, possible: str) -> None:
    if mode == "namespace" and possible == "loopback":
        pytest.skip(f"this machine allows no namespaces: {choose_mode('auto')[1]}")


def wait_until(condition: Callable[[], bool], *, seen: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, seen()
        time.sleep(0.02)


def with_words(words: str) -> list[str]:
    """Command lines on this machine that hold the words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if words in line:
                found.append(line)
    return found


@pytest.mark.parametrize("mode", MODES)
class TestTheCommand:
    def test_gets_stdin_and_gives_its_output_and_exit_code(self, mode: str, possible: str) -> None:
        skip_unless(mode, possible)
        done = run(mode, "sh", "-c", f"cat; echo :${MODE_VARIABLE}; exit 7")
        assert (done.returncode, done.stdout) == (7, f"from stdin:{mode}\n")
        assert done.stderr.startswith(f"bed: {mode} mode: ")
        assert done.stderr.count("\n") == 1, "one line, and no more"

    def test_that_dies_by_a_signal_is_128_and_more(self, mode: str, possible: str) -> None:
        skip_unless(mode, possible)
        assert run(mode, "sh", "-c", "kill -9 $$").returncode == 137

    def test_that_does_not_exist_is_127(self, mode: str, possible: str) -> None:
        skip_unless(mode, possible)
        done = run(mode, "/no/such/program")
        assert done.returncode == 127
        assert "/no/such/program" in done.stderr

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_gets_the_signals_of_the_wrapper(self, mode: str, possible: str, number: signal.Signals) -> None:
        skip_unless(mode, possible)
        # Under nohup and the like a signal is ignored from birth: no shell could trap it, and this would wait for ever.
        at_birth = signal.signal(number, signal.SIG_DFL)
        script = (
            f"trap 'echo caught; exit 3' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.05; done"
        )
        try:
            wrapped = begin(mode, "sh", "-c", script)
        finally:
            signal.signal(number, at_birth)
        with wrapped:
            assert wrapped.stdout is not None
            assert wrapped.stdout.readline() == b"ready\n"
            wrapped.send_signal(number)
            assert (wrapped.stdout.read(), wrapped.wait(timeout=SECONDS)) == (b"caught\n", 3)

    def test_gets_one_interrupt_from_the_keyboard(self, mode: str, possible: str) -> None:
        """The terminal sends it to the whole group; forwarded as well it would come twice, and pytest would give up."""
        skip_unless(mode, possible)
        script = (
            "import signal, time\n"
            "count = []\n"
            "signal.signal(signal.SIGINT, lambda *_: count.append(1))\n"
            "print('ready', flush=True)\n"
            "while not count: time.sleep(0.02)\n"
            "time.sleep(0.3)\n"
            "print('interrupts', len(count))\n"
        )
        keyboard, terminal = pty.openpty()
        command = ["setsid", "--ctty", "--wait", *wrapper(mode, sys.executable, "-c", script)]
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=outside(), stdin=terminal, stdout=terminal, stderr=terminal
        )
        os.close(terminal)
        output = read_until(keyboard, b"ready")
        os.write(keyboard, b"\x03")
        output += read_until(keyboard, b"interrupts 1")
        assert process.wait(timeout=SECONDS) == 0, output
        os.close(keyboard)

    def test_leaves_no_process(self, mode: str, possible: str) -> None:
        skip_unless(mode, possible)
        mark = f"4{time.monotonic_ns()}"
        # An orphan in a session of its own, as a crashed process node would leave.
        script = f"setsid sh -c 'echo started; exec sleep {mark}' & read line; exit 0"
        with begin(mode, "sh", "-c", script) as wrapped:
            assert wrapped.stdout is not None
            assert wrapped.stdin is not None
            assert wrapped.stdout.readline() == b"started\n"
            wait_until(lambda: len(with_words(f"sleep {mark}")) > 0, seen=lambda: "no orphan")
            wrapped.stdin.write(b"go\n")
            wrapped.stdin.flush()
            assert wrapped.wait(timeout=SECONDS) == 0
        wait_until(lambda: not with_words(f"sleep {mark}"), seen=lambda: with_words(mark))


@pytest.fixture
def open_copy() -> Iterator[Path]:
    """The bed's code where everybody can read it; the checkout and pytest's folders may be closed."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(REPOSITORY / "e2e", Path(folder) / "e2e", ignore=shutil.ignore_patterns("__pycache__"))
        Path(folder).chmod(0o755)
        yield Path(folder)


class TestNamespaces:
    @pytest.fixture(autouse=True)
    def _possible(self, possible: str) -> None:
        skip_unless("namespace", possible)

    def test_leave_no_mount_and_no_device_behind(self) -> None:
        before = (mounts(), devices())
        done = run("namespace", "sh", "-c", "ip netns add left && ip -br addr show br0 && mount -t tmpfs tmpfs /mnt")
        assert "10.200.0.1/16" in done.stdout
        assert (mounts(), devices()) == before

    def test_two_at_once_do_not_see_each_other(self) -> None:
        listen = "import socket; s = socket.create_server(('10.200.0.1', 8000)); print('bound', flush=True); input()"
        with (
            begin("namespace", sys.executable, "-c", listen) as one,
            begin("namespace", sys.executable, "-c", listen) as two,
        ):
            for each in (one, two):
                assert each.stdout is not None
                assert each.stdout.readline() == b"bound\n"

    def test_end_with_a_killed_wrapper(self) -> None:
        mark = f"4{time.monotonic_ns()}"
        with begin("namespace", "sleep", mark) as wrapped:
            wait_until(
                lambda: any(line.startswith("sleep") for line in with_words(mark)), seen=lambda: with_words(mark)
            )
            wrapped.kill()
        wait_until(lambda: not with_words(mark), seen=lambda: with_words(mark))

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without privileges")
    def test_need_no_privileges(self, open_copy: Path) -> None:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is missing")
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
        if python is None:
            pytest.skip("there is no Python that others than root can run")
        command = [python, "-m", "e2e.enter", "--", "ip", "-br", "addr", "show", "br0"]
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command],
            cwd=open_copy,
            env=outside() | {"PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if "loopback mode" in done.stderr:
            pytest.skip(f"this machine allows it to root only: {done.stderr}")
        assert "10.200.0.1/16" in done.stdout
        assert "unprivileged" in done.stderr


class TestMode:
    @pytest.mark.parametrize("tool", ["ip", "nsenter"])
    def test_without_a_tool_it_is_loopback_and_says_which(self, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = shutil.which
        monkeypatch.setattr(shutil, "which", lambda name: None if name == tool else real(name))
        mode, why = choose_mode("auto")
        assert (mode, f"`{tool}`" in why) == ("loopback", True)

    def test_a_machine_that_refuses_gets_loopback_and_the_refusal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: int) -> None:
            raise PermissionError(1, "unshare: Operation not permitted")

        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/sbin/{name}")
        monkeypatch.setattr(linux, "unshare", refuse)
        mode, why = choose_mode("auto")
        assert (mode, "Operation not permitted" in why) == ("loopback", True)

    def test_namespaces_that_were_asked_for_and_refused_are_an_error(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv(MODE_VARIABLE, raising=False)
        monkeypatch.setattr(shutil, "which", lambda _: None)
        monkeypatch.setenv("PATH", os.environ["PATH"])
        assert enter.main(["--mode", "namespace", "--", "true"]) == 127
        assert "impossible" in capsys.readouterr().err

    def test_inside_the_command_is_only_run(self) -> None:
        done = subprocess.run(
            wrapper("auto", "sh", "-c", f"echo ${MODE_VARIABLE}; exit 5"),
            cwd=REPOSITORY,
            env=outside() | {MODE_VARIABLE: "loopback"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (5, "loopback\n", "")


def begin(mode: str, *command: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        wrapper(mode, *command), cwd=REPOSITORY, env=outside(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def read_until(descriptor: int, words: bytes) -> bytes:
    output = b""
    while words not in output:
        try:
            data = os.read(descriptor, 1024)
        except OSError:  # the other side has ended
            data = b""
        assert data, f"ended before {words!r}: {output!r}"
        output += data
    return output


def mounts() -> Sequence[str]:
    return sorted(Path("/proc/self/mounts").read_text().splitlines())


def devices() -> Sequence[str]:
    return sorted(entry.name for entry in Path("/sys/class/net").iterdir())
