"""`python -m e2e.whole_run [PYTEST ARGUMENTS]`: both halves of the test suite at the same time, as one run.

`tests/` computes and fills every core; `e2e/` mostly waits and needs the one control plane. Each half is a pytest run
of its own. What they print is shown one after the other, never mixed: first `tests/`, then `e2e/`. The last line adds
up the counts of both; the exit code is 0 only if both succeeded.
A few failures of `e2e/` are tried once more, with nothing beside them (decision 45): its scenes have real deadlines.
What passes then is named and counted. `tests/` has no second run: what fails there by chance is a finding.
Apart from pytest-xdist, because its workers would each start a control plane.
Must not: choose tests. Arguments go to both halves; a path goes to the half that it lies in.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO, Final

import pytest

from e2e.progress import elapsed

REPOSITORY: Final = Path(__file__).resolve().parent.parent
MARKS: Final = " and ".join(
    f"not {mark}"
    for mark in ("vllm", "crash_points", "crowd", "upgrade", "prometheus_operator", "thanos", "gitops", "kubeconfig")
)
MOST_WORKERS: Final = 8
"""Each worker collects all tests first, which takes 15 s of a core: more of them gain little."""
LESS_URGENT: Final = 3
"""What is added to the niceness of `tests/`: of a core that both want the control plane gets two thirds. With 19 the
subprocesses that `tests/` starts would wait for seconds."""
POLL_SECONDS: Final = 0.2
FEW: Final = 5
"""So many failures may come from a machine that stalls; more of them are tried by whoever reads them."""
WITH_AN_EXPRESSION: Final = ("-k", "-m")
"""Options whose value may be the name of a folder and is no path."""

COUNTS: Final = re.compile(r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+) in [0-9.]+s")
"""The last line of pytest, with or without its frame."""
NO_TESTS: Final = re.compile(r"^(?:=+ )?no tests ran")
COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
ORDER: Final = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warning", "error", "rerun")
"""In which pytest counts; last, what passed in a second run only."""
FAILURES: Final = ("failed", "error")
PLURAL: Final[Mapping[str, str]] = {"warning": "warnings", "error": "errors"}


@dataclass(frozen=True, slots=True)
class Half:
    """One pytest run: its folder, what comes before its arguments, and how much less urgent it is."""

    folder: str
    command: Sequence[str]
    last: Sequence[str] = ()
    """Arguments that nobody may override."""
    niceness: int = 0
    second_run: bool = False
    """Whether a few failures are tried once more, with nothing beside them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a half ended: its exit code, and what its last line counts."""

    code: int
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a half with these arguments, which writes into a folder."""

    half: Half
    arguments: Sequence[str]
    folder: Path
    again: bool = False
    """Whether only those that failed in the run before it, alone."""

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.folder / f"{self.half.folder}{'-again' if self.again else ''}.log"

    @property
    def command(self) -> list[str]:
        """What is started."""
        command = [*self.half.command, *self.arguments]
        if self.half.second_run:
            command += ["-o", f"cache_dir={self.cache}"]
        return [*command, "--last-failed"] if self.again else command

    @property
    def cache(self) -> Path:
        """Where pytest keeps what failed."""
        return self.folder / "cache"

    @property
    def failed(self) -> list[str]:
        """Which tests failed, if the half has a second run."""
        kept = self.cache / "v" / "cache" / "lastfailed"
        return sorted(json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else []

    def outcome(self, code: int) -> Outcome:
        """Read its log; a run that died is an error."""
        found = counts(self.log.read_text(encoding="utf-8", errors="replace"))
        if found is None:
            print(f"{self.half.folder}/: pytest ended with exit code {code} and printed no counts")
        return Outcome(code, Counter(error=1) if found is None else found)


PYTEST: Final = (sys.executable, "-m", "pytest", "-m", MARKS)
HALVES: Final = (
    Half(
        "tests",
        (*PYTEST, "-n", "auto", f"--maxprocesses={MOST_WORKERS}", "--dist=worksteal"),
        niceness=LESS_URGENT,
    ),
    Half("e2e", (sys.executable, "-m", "e2e.enter", "--", *PYTEST), last=("-n", "0"), second_run=True),
)


def main(arguments: Sequence[str], *, halves: Sequence[Half] = HALVES) -> int:
    """Run both halves, show them, and print the sum of their counts. Returns 0 when neither failed."""
    began = time.monotonic()
    chosen = selected(arguments, halves)
    with tempfile.TemporaryDirectory(prefix="whole-run-") as folder:
        runs = [Run(half, own, Path(folder)) for half, own in chosen]
        with started(runs) as processes:
            for run, process in zip(runs, processes, strict=True):
                show(run.log, process)
        outcomes = [
            once_more(run, run.outcome(process.returncode)) for run, process in zip(runs, processes, strict=True)
        ]
    total = sum((outcome.counts for outcome in outcomes), Counter[str]())
    print(framed(f"{sentence(total)} in {time.monotonic() - began:.2f}s ({elapsed(time.monotonic() - began)})"))
    return exit_code([outcome.code for outcome in outcomes])


def once_more(run: Run, first: Outcome) -> Outcome:
    """Try a few failures again, alone. Returns the first outcome, or what both come to: "rerun" is what passed then."""
    failed = run.failed
    if first.code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= FEW:
        return first
    print(f"{run.half.folder}/: once more, with nothing beside: {', '.join(failed)}")
    again = replace(run, again=True)
    with started([again]) as (process,):
        show(again.log, process)
    second = again.outcome(process.returncode)
    passed = second.counts["passed"]
    if second.code != pytest.ExitCode.OK or passed < len(failed):
        return first
    better = Counter({kind: n for kind, n in first.counts.items() if kind not in FAILURES})
    return Outcome(second.code, better + Counter(passed=passed, rerun=passed))


def selected(arguments: Sequence[str], halves: Sequence[Half]) -> list[tuple[Half, list[str]]]:
    """Return the halves to run, with their arguments: all of them, or those that a path is named of."""
    names = [half.folder for half in halves]
    paths: dict[str, list[str]] = {name: [] for name in names}
    options = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        top = Path(argument.partition("::")[0]).parts[:1]
        if top and top[0] in names and before not in WITH_AN_EXPRESSION:
            paths[top[0]].append(argument)
        else:
            options.append(argument)
    named = any(paths.values())
    return [
        (half, [*(paths[half.folder] or [half.folder]), *options, *half.last])
        for half in halves
        if paths[half.folder] or not named
    ]


@contextmanager
def started(runs: Sequence[Run]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the runs; none of them runs when this block is left. SIGTERM is passed on to them."""
    environment = os.environ | ({"PY_COLORS": "1"} if sys.stdout.isatty() else {})
    processes: list[subprocess.Popen[bytes]] = []

    def terminate(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.terminate()

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        for run in runs:
            with run.log.open("wb") as output:
                process = subprocess.Popen(
                    run.command,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=REPOSITORY,
                    env=environment,
                )
            processes.append(process)
            if run.half.niceness:
                os.setpriority(os.PRIO_PROCESS, process.pid, run.half.niceness)
        yield processes
    finally:
        # After Ctrl-C the terminal has interrupted them as well.
        for process in processes:
            process.wait()
        signal.signal(signal.SIGTERM, before)


def show(log: Path, process: subprocess.Popen[bytes]) -> None:
    """Print what is in the log, and what comes until the process ends."""
    with log.open("rb") as output:
        while process.poll() is None:
            copy(output)
            time.sleep(POLL_SECONDS)
        copy(output)


def copy(output: IO[bytes]) -> None:
    """Print the rest of a file."""
    sys.stdout.flush()
    sys.stdout.buffer.write(output.read())
    sys.stdout.buffer.flush()


def counts(output: str) -> Counter[str] | None:
    """Return the counts of pytest's last line; None when the output has no such line."""
    singular = {many: one for one, many in PLURAL.items()}
    for line in reversed(COLOUR.sub("", output).splitlines()):
        if NO_TESTS.match(line):
            return Counter()
        if found := COUNTS.match(line):
            pairs = (part.split() for part in found[1].split(", "))
            return Counter({singular.get(what, what): int(number) for number, what in pairs})
    return None


def sentence(total: Mapping[str, int]) -> str:
    """The counts in the words and the order of pytest."""
    found = [(total[what], what) for what in ORDER if total.get(what)]
    return ", ".join(f"{n} {what if n == 1 else PLURAL.get(what, what)}" for n, what in found) or "no tests ran"


def framed(text: str) -> str:
    """A line as pytest ends a run with, framed however long it is: `.ci/run` finds it by its frame."""
    return f"= {text} =".center(80, "=")


def exit_code(codes: Sequence[int]) -> int:
    """The first that is a failure. A half from which nothing was selected is none, unless that is all there was."""
    failures = [code for code in codes if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)]
    if failures:
        return failures[0] if failures[0] > 0 else 128 - failures[0]
    return int(min(codes, default=pytest.ExitCode.NO_TESTS_COLLECTED))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
