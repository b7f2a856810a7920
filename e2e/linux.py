"""The Linux calls that the bed needs and Python 3.11 does not wrap: namespaces, mounts, parent-death signal.

Apart from its callers (`enter`, the process node's launcher), because the launcher runs with `-I -S`, without any
installed package: this module imports only the standard library.
Must not: decide what is mounted or who is isolated. Every call raises OSError with the step's name in it.
"""

import ctypes
import os
import signal
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_MOVE: Final = 8192
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags`. A new user namespace needs a process with one thread."""
    _checked(_libc.unshare(ctypes.c_int(flags)), f"unshare 0x{flags:x}")


def setns(path: str) -> None:
    """Enter the namespace behind `path`, such as `/proc/PID/ns/mnt`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(0)), f"setns {path}")
    finally:
        os.close(descriptor)


def mount(source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount `source` on `target`."""
    failed = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None
    )
    _checked(failed, f"mount {source} on {target}")


def map_to_root(*, uid: int, gid: int) -> None:
    """Make `uid` and `gid` of the parent user namespace root in the one just entered."""
    for file, line in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{file}", "w", encoding="ascii") as map_file:
            map_file.write(line)


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when its parent ends. Raises ProcessLookupError when it already has."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl PDEATHSIG")
    # The parent may have ended before the call above: then no signal will ever come.
    if os.getppid() != parent:
        raise ProcessLookupError(f"parent {parent} has ended")


def adopt_orphans() -> None:
    """Become the parent of every orphaned descendant, so that none escapes the clean-up."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl CHILD_SUBREAPER")


def _checked(result: int, step: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")
