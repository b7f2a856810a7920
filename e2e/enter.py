"""`python -m e2e.enter -- COMMAND...`: run a command where the bed can live, and leave nothing when it ends.

Namespace mode gives the command fresh network, mount and process namespaces (as root, or with a user namespace); where
the machine does not allow that, loopback mode runs it in place and collects every process it leaves.
Apart from the bed, because the tests themselves must run inside: a pod's address exists only there.
Must not: know what the command is, or install anything. There is no way to the internet inside: fetch and build before.
"""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from e2e import linux
from e2e.network import Mode, NetworkError, set_up_namespace

MODE_VARIABLE: Final = "AUTOTUNER_BED_MODE"
"""Set for the command: `namespace` or `loopback`. Whoever finds it set is inside."""

_NAMESPACES: Final = linux.CLONE_NEWNET | linux.CLONE_NEWNS | linux.CLONE_NEWPID
_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KERNEL: Final = 0x80
"""si_code of a signal that the terminal sent: the whole foreground group has it already."""
_CANNOT_START: Final = 127
_OUTSIDE: Final = 0
"""Process id of a parent that is outside of one's process namespace."""
_SYSTEM_FOLDERS: Final = ("/usr/sbin", "/sbin")
"""Where some distributions keep `ip`, but not in the PATH of users."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (128 + n when signal n ended it)."""
    parser = argparse.ArgumentParser(prog="python -m e2e.enter", description=__doc__.split("\n")[0])
    parser.add_argument("--mode", choices=["auto", "namespace", "loopback"], default="auto")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command given")
    if MODE_VARIABLE in os.environ:
        _exec(command)
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS])
    mode, why = choose_mode(options.mode)
    if options.mode == "namespace" and mode != "namespace":
        print(f"bed: namespace mode is impossible: {why}", file=sys.stderr)
        return _CANNOT_START
    print(f"bed: {mode} mode: {why}", file=sys.stderr, flush=True)
    os.environ[MODE_VARIABLE] = mode
    return _run_isolated(command) if mode == "namespace" else _run_in_place(command)


def choose_mode(wanted: str) -> tuple[Mode, str]:
    """Return the mode to use and the reason, in words."""
    if wanted == "loopback":
        return "loopback", "asked for"
    for tool in ("ip", "nsenter"):
        if shutil.which(tool) is None:
            return "loopback", f"the command `{tool}` is missing, so pods cannot have network namespaces"
    refusal = _refusal_of_this_machine()
    if refusal:
        return "loopback", f"this machine does not allow own namespaces ({refusal})"
    how = "as root" if os.geteuid() == 0 else "with an unprivileged user namespace"
    return "namespace", f"own network, mounts and processes, {how}"


def _refusal_of_this_machine() -> str:
    """Build the namespaces once in a throw-away child; some machines grant a user namespace but nothing in it."""
    reading, writing = os.pipe()

    def attempt() -> int:
        try:
            _leave_host()
        except OSError as error:
            os.write(writing, str(error).encode())
            return 1
        return _forked_exit_code(lambda: _attempt_inside(writing))

    child = _fork(attempt)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        refusal = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return refusal or ("" if status == 0 else f"the probe ended with status {status}")


def _attempt_inside(writing: int) -> int:
    try:
        _become_bed()
    except (OSError, NetworkError) as error:
        os.write(writing, str(error).encode())
        return 1
    return 0


def _run_isolated(command: Sequence[str]) -> int:
    """Run the command below the first process of new namespaces: when that one ends, the kernel ends all others."""
    with _signals_held():
        _leave_host()
        return _supervise(_fork(lambda: _first_process(command)))


def _first_process(command: Sequence[str]) -> int:
    linux.die_with_parent(_OUTSIDE)
    _become_bed()
    return _supervise(_fork(lambda: _exec(command)))


def _run_in_place(command: Sequence[str]) -> int:
    with _signals_held():
        linux.adopt_orphans()
        try:
            return _supervise(_fork(lambda: _exec(command)))
        finally:
            _kill_descendants()


def _leave_host() -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        linux.unshare(_NAMESPACES)
    except PermissionError:
        # Not root, or root of a container without the rights of one.
        linux.unshare(linux.CLONE_NEWUSER | _NAMESPACES)
        linux.map_to_root(uid=uid, gid=gid)


def _become_bed() -> None:
    # Private first: on most machines `/` is shared, and our mounts would appear on the host.
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("proc", "/proc", kind="proc")
    set_up_namespace()


class _signals_held:  # noqa: N801 - reads as a statement
    """Queue the signals to forward until `_supervise` takes them one by one."""

    def __enter__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_FORWARDED, signal.SIGCHLD})


def _supervise(child: int) -> int:
    """Forward signals to the child, reap whatever ends, and return the child's exit code."""
    while True:
        if (code := _reap(child)) is not None:
            return code
        received = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
        if received.si_signo != signal.SIGCHLD and received.si_code != _FROM_KERNEL:
            os.kill(child, received.si_signo)


def _reap(child: int) -> int | None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return _CANNOT_START
        if pid == 0:
            return None
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _kill_descendants() -> None:
    """SIGKILL everything below this process; orphans are adopted, so the list gets empty in the end."""
    while children := [pid for pid, parent in _parents() if parent == os.getpid()]:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _parents() -> list[tuple[int, int]]:
    pairs = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                    # The second field is the name in brackets, which may hold spaces and brackets itself.
                    fields = stat.read().rpartition(")")[2].split()
            except OSError:
                continue
            pairs.append((int(entry), int(fields[1])))
    return pairs


def _forked_exit_code(body: Callable[[], int]) -> int:
    _, status = os.waitpid(_fork(body), 0)
    return os.waitstatus_to_exitcode(status)


def _fork(body: Callable[[], int]) -> int:
    """Run `body` in a child that ends with its result, whatever happens. Returns the child's process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child != 0:
        return child
    code = _CANNOT_START
    try:
        code = body()
    except BaseException as error:  # the child must never return into its parent's code
        print(f"bed: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _exec(command: Sequence[str]) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        print(f"bed: cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_CANNOT_START)


if __name__ == "__main__":
    sys.exit(main())
