"""The image table: which local command stands for which container image.

Apart from `container`, because the table is a file that a test writes, and which may change while the agent runs.
Must not: look at the machine; whether the command exists is seen when it is started.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from e2e.agent.objects import Object, Unstartable


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What an image brings: entry point, default arguments, environment, and arguments that are always appended.

    `append` is for what a real image gets from its own network, such as `--host $(POD_IP)`. A container that names its
    own `command` does not run the entry point, so nothing is appended to it.
    """

    match: str
    command: tuple[str, ...]
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    append: tuple[str, ...] = ()

    def command_line(self, container: Object) -> list[str]:
        """Return command and arguments, unexpanded, as Kubernetes does: `command` drops the image's `args` too."""
        command, args = container.get("command") or [], container.get("args") or []
        if command:
            return [*command, *args]
        return [*self.command, *(args or self.args), *self.append]


class ImageTable:
    """The rows of the file, first match wins (`re.search`). The file is read again when it changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._rows: tuple[Image, ...] = ()

    def find(self, name: str) -> Image:
        """Return the image. Raises Unstartable with ErrImagePull when no row matches or the file is unreadable."""
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_size) != self._stamp:
                self._rows = parse_images(self._path.read_text(encoding="utf-8"))
                self._stamp = (stat.st_mtime_ns, stat.st_size)
        except (OSError, ValueError) as error:
            raise Unstartable("ErrImagePull", f"cannot read the image table {self._path}: {error}") from error
        for row in self._rows:
            if re.search(row.match, name):
                return row
        known = ", ".join(row.match for row in self._rows) or "nothing"
        raise Unstartable("ErrImagePull", f'no row of the image table matches "{name}"; it has: {known}')


def parse_images(text: str) -> tuple[Image, ...]:
    """Read the table. Raises ValueError that names the row which is wrong."""
    try:
        rows = yaml.safe_load(text) or []
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if not isinstance(rows, list):
        raise ValueError("the image table is a list of rows")
    return tuple(_parse_row(row, number=number) for number, row in enumerate(rows, start=1))


def _parse_row(row: object, *, number: int) -> Image:
    if not isinstance(row, dict) or not {"match", "command"} <= row.keys() <= {
        "match",
        "command",
        "args",
        "env",
        "append",
    }:
        raise ValueError(f"row {number} needs `match` and `command`, and may have `args`, `env`, `append`: {row!r}")
    try:
        re.compile(row["match"])
    except re.error as error:
        raise ValueError(f"row {number}: {row['match']!r} is no regular expression: {error}") from error
    return Image(
        match=row["match"],
        command=tuple(map(str, row["command"])),
        args=tuple(map(str, row.get("args") or ())),
        env={name: str(value) for name, value in (row.get("env") or {}).items()},
        append=tuple(map(str, row.get("append") or ())),
    )
