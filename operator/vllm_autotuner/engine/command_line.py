"""Finds the engine's command line in a container and changes one flag of it without touching the rest.

Separate from `flags`, which reads an argument vector: a container may have one in `args`, in `command`, or inside a
shell script. The line belongs to the user: words keep their spelling and order.
Must not: choose a value, or rewrite what it cannot parse. Each changed line is parsed again before it is returned, and
rejected if anything but the one flag differs.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, Final

from vllm_autotuner.budgets import COMMAND_LINE_BYTES
from vllm_autotuner.engine.flags import TUNED_FLAGS, EngineFlags, FlagError, parse_flags, tuned_knob

__all__ = ["CommandLine", "Field", "Unreadable", "changed", "command_line", "removed", "serving_containers"]

_SHELLS: Final = frozenset({"sh", "bash", "ash", "dash", "zsh", "ksh"})
_OPERATORS: Final = frozenset("();<>|&\n")
_VARIABLE: Final = re.compile(r"\$\(([\w.-]+)\)")
SCRIPTS_KEPT: Final = 256
"""Scripts whose commands are remembered: at most 16 MB with the longest ones."""
_FIELDS: Final[Mapping[str, str]] = {knob: knob.replace("-", "_") for knob in TUNED_FLAGS}
"""Tuned flag -> its field of EngineFlags."""


class Field(StrEnum):
    """The list of a container that holds the engine's flags."""

    ARGS = "args"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a command line cannot be read, or a flag of it not be changed; what to do stands in it."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A container's command line."""

    field: Field
    """The list to change."""
    words: tuple[str, ...]
    """That list, as it was written."""
    before: tuple[str, ...] = ()
    """What the container puts before `words`: its command, where the flags stand in args."""
    script: int | None = None
    """Which of the words is a script for a shell that runs the engine; None: they are arguments themselves."""
    variables: Mapping[str, str]
    """The container's environment as far as the line names it and it is written out: Kubernetes puts it in for
    $(NAME)."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the engine is given. Raises FlagError for a script that is not understood, and for what is too long."""
        words = self._filled_in((*self.before, *self.words))
        if self.script is None:
            start = _start(words)
            # A program that is not vLLM itself is given the arguments, and hands them on or does not.
            return words[start:] if start is not None else words[len(self.before) :]
        # Kubernetes fills in before any shell reads.
        found = _engine_command(words[len(self.before) + self.script])
        if isinstance(found, NotUnderstood):
            raise FlagError("shell script", problem=found.problem, remedy=found.remedy)
        return found

    @property
    def flags(self) -> EngineFlags:
        """The arguments as flags. Raises FlagError for a flag that vLLM would refuse, or that we cannot see."""
        return parse_flags(self.arguments)

    def filled_in(self) -> tuple[str, ...]:
        """Return the words with their variables filled in. Raises FlagError for what is too long."""
        return self._filled_in(self.words)

    def _filled_in(self, words: Sequence[str]) -> tuple[str, ...]:
        """Substitute variables as Kubernetes does; one without a literal value stays as it is. Raises FlagError."""
        left = COMMAND_LINE_BYTES.limit

        def took(text: str) -> str:
            # Counted while it grows: a variable of 100 KB can be named ten thousand times.
            nonlocal left
            left -= len(text)
            if left < 0:
                COMMAND_LINE_BYTES.exceeded()
                problem = f"it has more than {COMMAND_LINE_BYTES.limit // 1024} KiB with its variables filled in"
                raise FlagError("command line", problem=problem, remedy="Start vLLM with a script in the image")
            return text

        def filled_in(word: str) -> str:
            parts, done = [], 0
            for found in _VARIABLE.finditer(word):
                parts += [took(word[done : found.start()]), took(self.variables.get(found[1], found[0]))]
                done = found.end()
            return "".join([*parts, took(word[done:])])

        return tuple(filled_in(word) for word in words)


def serving_containers(containers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the containers that run a vLLM server; the most certain sign that any of them shows decides.

    A command that starts vLLM, then an image named for it, then a flag that only vLLM knows.
    """
    signs: tuple[Callable[[Mapping[str, Any]], bool], ...] = (
        lambda one: _runs_vllm(_all_words(one)),
        lambda one: "vllm" in str(one.get("image", "")).rpartition("/")[2],
        lambda one: any(tuned_knob(word) for word in _all_words(one)),
    )
    for sign in signs:
        if found := [one for one in containers if sign(one)]:
            return found
    return []


def command_line(container: Mapping[str, Any]) -> CommandLine:
    """Find the engine's command line in a container. Always answers; whether it can be read is asked of the answer."""
    command, args = _list(container, Field.COMMAND), _list(container, Field.ARGS)
    named = {found[1] for word in (*command, *args) for found in _VARIABLE.finditer(word)}
    variables = {
        str(each["name"]): str(each.get("value", ""))
        for each in container.get("env") or []
        if each.get("name") in named and "valueFrom" not in each
    }
    script = _script_place((*command, *args))
    if script is not None:
        inside = script < len(command)
        return CommandLine(
            field=Field.COMMAND if inside else Field.ARGS,
            words=command if inside else args,
            script=script if inside else script - len(command),
            variables=variables,
        )
    # Also where every flag is in the command: args follow it, the last value wins, and the user's command stays as
    # declared.
    return CommandLine(field=Field.ARGS, words=args, before=command, variables=variables)


def changed(line: CommandLine, *, knob: str, value: int | str) -> CommandLine | Unreadable:
    """Return the line with one tuned flag set; a flag that was not there is appended, where the last value wins.

    `knob` is a key of TUNED_FLAGS. Worked: ("-tp", "2", "--seed=1") with tensor-parallel-size 4 gives
    ("-tp", "4", "--seed=1"); without the flag "--tensor-parallel-size=4" follows at the end.
    """
    try:
        before = line.flags
    except FlagError as error:
        return Unreadable(str(error))
    written = _in_words(line, knob, value) if line.script is None else _in_script(line, knob, value)
    if isinstance(written, Unreadable):
        return written
    update: dict[str, Any] = {_FIELDS[knob]: value}
    if knob == "max-model-len":
        update["max_model_len_auto"] = False
    try:
        same = written.flags == replace(before, **update)
    except FlagError:
        same = False
    return written if same else Unreadable(f"changing --{knob} in {line.field} would change other flags too")


def removed(line: CommandLine, *, knob: str, value: int | str) -> CommandLine | Unreadable:
    """Return the line without a flag that `changed` had appended to it with this value."""
    flag = f"--{knob}={value}"
    if line.script is None:
        words = tuple(word for word in line.words if word != flag)
    else:
        script = line.words[line.script].replace(f" {flag}", "")
        words = (*line.words[: line.script], script, *line.words[line.script + 1 :])
    written = replace(line, words=words)
    absent: dict[str, Any] = {_FIELDS[knob]: None}
    try:
        same = written.flags == replace(line.flags, **absent)
    except FlagError:
        same = False
    return written if same else Unreadable(f"{flag} in {line.field} is not where it was appended")


def _in_words(line: CommandLine, knob: str, value: int | str) -> CommandLine:
    words = list(line.words)
    place = next((index for index in reversed(range(len(words))) if tuned_knob(words[index]) == knob), None)
    if place is None:
        words.append(f"--{knob}={value}")
    elif "=" in words[place]:
        words[place] = f"{words[place].partition('=')[0]}={value}"
    else:
        words[place + 1 : place + 2] = [str(value)]
    return replace(line, words=tuple(words))


def _in_script(line: CommandLine, knob: str, value: int | str) -> CommandLine | Unreadable:
    """Replace the one literal value; append only to a script that is a single plain command."""
    assert line.script is not None
    text = line.words[line.script]
    # A value begins with no dash: what follows a switch is the next flag.
    flag = re.compile(r"(?<![\w$-])(--?[\w-]+)(=|(?:\s|\\\n)+)([\"']?)([\w.][\w.-]*)\3(?=[\s;&|)]|$)")
    places = [found for found in flag.finditer(text) if tuned_knob(found[1]) == knob]
    if len(places) > 1:
        return Unreadable(f"the script in {line.field} sets --{knob} {len(places)} times")
    if places:
        start, end = places[0].span(4)
        script = f"{text[:start]}{value}{text[end:]}"
    elif any(tuned_knob(word) == knob for word in line.arguments):
        return Unreadable(f"the script in {line.field} sets --{knob} to something that is not a plain value")
    elif "#" in text or _count_of_commands(line) != 1:
        return Unreadable(f"the script in {line.field} does more than start the engine: add --{knob} to it once")
    else:
        script = f"{text.rstrip()} --{knob}={value}"
    words = (*line.words[: line.script], script, *line.words[line.script + 1 :])
    return replace(line, words=words)


def _script_place(words: Sequence[str]) -> int | None:
    """Return the place of the script in `sh -c SCRIPT`, None where no shell is started."""
    if not words or PurePosixPath(words[0]).name not in _SHELLS:
        return None
    for place, word in enumerate(words[1:], start=1):
        if re.fullmatch(r"-[a-z]*c[a-z]*", word):
            return place + 1 if place + 1 < len(words) else None
        if not word.startswith("-") and words[place - 1] != "-o":
            return None
    return None


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """What is wrong with a script, and what to write instead."""

    problem: str
    remedy: str


def _engine_command(script: str) -> tuple[str, ...] | NotUnderstood:
    """Return the arguments of the one command of a script that starts vLLM."""
    commands = _commands(script)
    if isinstance(commands, NotUnderstood):
        return commands
    found = [command[start:] for command in commands if (start := _start(command)) is not None]
    if len(found) != 1:
        return NotUnderstood(
            f"it starts vLLM {len(found)} times", remedy="Let it start one engine, or write command and args"
        )
    return found[0]


def _count_of_commands(line: CommandLine) -> int:
    assert line.script is not None
    commands = _commands(line.filled_in()[line.script])
    return 0 if isinstance(commands, NotUnderstood) else len(commands)


def _start(words: Sequence[str]) -> int | None:
    """Return where `vllm serve` or the server's module stands among the words."""
    for place, word in enumerate(words):
        serves = PurePosixPath(word).name == "vllm" and place + 1 < len(words) and words[place + 1] == "serve"
        if serves or word.startswith("vllm.entrypoints."):
            return place
    return None


def _runs_vllm(words: Sequence[str]) -> bool:
    scripted = (re.search(r"\bvllm\s+serve\s|\bvllm\.entrypoints\.", word) for word in words)
    return _start(words) is not None or any(scripted)


@lru_cache(SCRIPTS_KEPT)
def _commands(script: str) -> tuple[tuple[str, ...], ...] | NotUnderstood:
    """Split a script into its commands, once: every property of a Deployment asks for its flags."""
    if "$(" in script or "`" in script:
        return NotUnderstood("it uses command substitution", remedy="Write the flags out")
    lexer = shlex.shlex(script.replace("\\\n", " "), posix=True, punctuation_chars="();<>|&\n")
    lexer.commenters, lexer.whitespace, lexer.whitespace_split = "", " \t\r", True
    commands: list[list[str]] = [[]]
    try:
        for token in lexer:
            if set(token) <= _OPERATORS:
                commands.append([])
            else:
                commands[-1].append(token)
    except ValueError as error:
        return NotUnderstood(str(error).lower(), remedy="Close the quotes")
    return tuple(tuple(command) for command in commands if command)


def _all_words(container: Mapping[str, Any]) -> tuple[str, ...]:
    return (*_list(container, Field.COMMAND), *_list(container, Field.ARGS))


def _list(container: Mapping[str, Any], field: Field) -> tuple[str, ...]:
    return tuple(str(word) for word in container.get(field.value) or ())
