"""Become a container's process: mounts, working folder, parent-death signal, then exec.

Started as a script, `python -I -S launch.py REPORT_FD LAUNCH_FILE`: it keeps its process id through the exec, so that
the process node waits for and signals the real command. What fails is written to REPORT_FD; an exec closes it.
Apart from `process` (the parent's side), because all of this happens after the fork, in the container's own namespaces.
Must not: import anything but `e2e.linux` and the light part of the standard library; every container pays for it.
"""

import json
import os
import sys
from typing import Any, Final

# Isolated mode leaves the script's own folder out of the path.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from e2e import linux

_STAGING: Final = "/run/bed"
"""A private tmpfs while mounting: sources are bound here first, because a mount on /tmp may hide them."""
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty", "pts", "ptmx", "shm", "mqueue")


def main() -> None:
    """Do what the launch file says; the environment is the container's already."""
    report = int(sys.argv[1])
    os.set_inheritable(report, False)
    try:
        with open(sys.argv[2], encoding="utf-8") as file:
            launch = json.load(file)
        linux.die_with_parent(launch["parent"])
        if launch["join"]:
            _join(launch["join"])
        elif launch["mounts"] is not None:
            linux.unshare(linux.CLONE_NEWNS)
            linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
            _mount_all(launch["mounts"], kept=launch["kept"])
        _exec(launch["argv"], folder=launch["folder"])
    except (OSError, ValueError) as error:
        os.write(report, str(error).encode())
        sys.exit(128)


def _exec(argv: list[str], *, folder: str) -> None:
    os.chdir(folder)
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        raise FileNotFoundError(f'exec: "{argv[0]}": executable file not found in $PATH') from None


def _join(pid: int) -> None:
    """Enter the mounts of a running container, as an exec probe does. The network is entered by the caller's prefix."""
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
    linux.setns(f"/proc/{pid}/ns/mnt")
    os.fchdir(root)
    os.chroot(".")


def _mount_all(mounts: list[dict[str, Any]], *, kept: list[str]) -> None:
    linux.mount("tmpfs", "/run", kind="tmpfs", flags=linux.MS_NOSUID | linux.MS_NODEV, options="mode=755")
    _own_devices()
    staged = {source: _stage(source, index) for index, source in enumerate(kept + [m["source"] for m in mounts])}
    targets = [os.path.realpath(mount["target"]) for mount in mounts]
    _make_room(targets)
    for mount, target in sorted(zip(mounts, targets, strict=True), key=lambda pair: pair[1].count("/")):
        source = staged[mount["source"]]
        _create(target, like=source)
        linux.mount(source, target, flags=linux.MS_BIND | linux.MS_REC)
    # A volume on /tmp must not hide a checkout or an interpreter that lives below it.
    for path in kept:
        if any(_is_below(path, target) for target in targets):
            _create(path, like=staged[path])
            linux.mount(staged[path], path, flags=linux.MS_BIND | linux.MS_REC)


def _stage(source: str, index: int) -> str:
    staged = f"{_STAGING}/{index}"
    _create(staged, like=source)
    linux.mount(source, staged, flags=linux.MS_BIND | linux.MS_REC)
    return staged


def _own_devices() -> None:
    """Replace /dev by a small one, so that /dev/termination-log never appears on the machine itself."""
    host = _stage("/dev", -1)
    linux.mount("tmpfs", "/dev", kind="tmpfs", flags=linux.MS_NOSUID, options="mode=755")
    for name in _DEVICES:
        source = f"{host}/{name}"
        if os.path.exists(source):
            _create(f"/dev/{name}", like=source)
            linux.mount(source, f"/dev/{name}", flags=linux.MS_BIND | linux.MS_REC)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"/dev/{name}")


def _make_room(targets: list[str]) -> None:
    """Replace each folder in which a mount point is missing by a private copy: nothing appears on the machine."""
    private: set[str] = set()
    for target in targets:
        if os.path.exists(target) or any(_is_below(target, folder) for folder in ("/run", "/dev", *targets)):
            continue
        folder = os.path.dirname(target)
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        # Nothing is created yet, so the nearest folder is either a copy itself or one of the machine's.
        if folder not in private:
            _make_private(folder)
            private.add(folder)


def _make_private(folder: str) -> None:
    """Put a tmpfs with the same entries in the folder's place. An overlay would be less work, but not without root."""
    copy = f"{_STAGING}/private{folder.replace('/', '-')}"
    os.makedirs(copy)
    linux.mount("tmpfs", copy, kind="tmpfs", flags=linux.MS_NOSUID | linux.MS_NODEV, options="mode=755")
    for entry in os.scandir(folder):
        inside = f"{copy}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), inside)
        elif entry.is_dir() or entry.is_file():
            _create(inside, like=entry.path)
            linux.mount(entry.path, inside, flags=linux.MS_BIND | linux.MS_REC)
    if folder == "/":
        os.chroot(copy)
        os.chdir("/")
    else:
        linux.mount(copy, folder, flags=linux.MS_BIND | linux.MS_REC)


def _is_below(path: str, folder: str) -> bool:
    return path != folder and (path + "/").startswith(folder.rstrip("/") + "/")


def _create(path: str, *, like: str) -> None:
    if os.path.isdir(like):
        os.makedirs(path, exist_ok=True)
    elif not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a", encoding="utf-8"):
            pass


if __name__ == "__main__":
    main()
