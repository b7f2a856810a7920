"""Two pytest runs at the same time are reported as one: nothing is lost, and one failure fails the whole."""

import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.whole_run import FEW, HALVES, Half, counts, exit_code, framed, main, selected, sentence


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "========= 7498 passed, 4 skipped, 46 deselected in 1351.30s (0:22:31) ==========",
            {"passed": 7498, "skipped": 4, "deselected": 46},
        ),
        (
            "===== 1 failed, 2 passed, 1 warning, 1 error in 0.50s =====",
            {"failed": 1, "passed": 2, "warning": 1, "error": 1},
        ),
        ("2 passed, 3 warnings, 4 errors in 0.50s", {"passed": 2, "warning": 3, "error": 4}),
        (
            "\x1b[31m===== \x1b[31m\x1b[1m1 failed\x1b[0m, \x1b[32m2 passed\x1b[0m\x1b[31m in 0.01s\x1b[0m",
            {"failed": 1, "passed": 2},
        ),
        ("=========== no tests ran in 0.01s ===========", {}),
        ("=========== 12 deselected in 0.01s ===========", {"deselected": 12}),
    ],
)
def test_the_last_line_of_pytest_is_understood(line: str, expected: dict[str, int]) -> None:
    assert counts(f"FAILED tests/test_it.py - 3 passed in 2.00s of work\n{line}\nlogs of the bed: x\n") == Counter(
        expected
    )


def test_a_run_that_died_has_no_counts() -> None:
    assert counts("collecting ...\nKilled\n") is None


def test_the_sum_is_in_the_words_of_pytest() -> None:
    total = Counter(error=1, passed=5, failed=2) + Counter(warning=2, skipped=1, passed=1)
    assert sentence(total) == "2 failed, 6 passed, 1 skipped, 2 warnings, 1 error"
    assert sentence({}) == "no tests ran"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"tests": ["tests"], "e2e": ["e2e", "-n", "0"]}),
        (["-k", "x y", "-x"], {"tests": ["tests", "-k", "x y", "-x"], "e2e": ["e2e", "-k", "x y", "-x", "-n", "0"]}),
        (["tests/cli/test_watch.py::test_it", "-q"], {"tests": ["tests/cli/test_watch.py::test_it", "-q"]}),
        (["-k", "tests", "e2e"], {"e2e": ["e2e", "-k", "tests", "-n", "0"]}),
        (["e2e/test_bed.py", "tests/cli"], {"tests": ["tests/cli"], "e2e": ["e2e/test_bed.py", "-n", "0"]}),
    ],
)  # fmt: skip
def test_arguments_go_to_the_half_that_they_are_about(arguments: list[str], expected: dict[str, list[str]]) -> None:
    assert {half.folder: own for half, own in selected(arguments, HALVES)} == expected


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([0, 5], 0), ([5, 5], 5), ([0, 1], 1), ([5, 2], 2), ([-9, 0], 137), ([1, -15], 1), ([], 5)],
)
def test_one_failure_fails_the_whole(codes: list[int], expected: int) -> None:
    assert exit_code(codes) == expected


def saying(folder: str, text: str, code: int = 0) -> Half:
    return Half(folder, (sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code})"), niceness=1)


def test_both_halves_are_shown_one_after_the_other_and_added_up(capfd: pytest.CaptureFixture[str]) -> None:
    first = saying("tests", "FAILED tests/test_it.py\n== 1 failed, 2 passed in 1.00s ==", code=1)
    assert main([], halves=[first, saying("e2e", "SKIPPED no engine\n== 3 passed, 1 skipped in 2.00s ==")]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[:4] == [
        "FAILED tests/test_it.py",
        "== 1 failed, 2 passed in 1.00s ==",
        "SKIPPED no engine",
        "== 3 passed, 1 skipped in 2.00s ==",
    ]
    assert len(lines) == 5
    assert lines[4].startswith("==")
    assert " 1 failed, 5 passed, 1 skipped in " in lines[4]


def test_a_half_that_dies_is_an_error_and_not_forgotten(capfd: pytest.CaptureFixture[str]) -> None:
    dying = Half("e2e", (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"))
    assert main([], halves=[saying("tests", "== 2 passed in 1.00s =="), dying]) == 137
    lines = capfd.readouterr().out.splitlines()
    assert lines[1] == "e2e/: pytest ended with exit code -9 and printed no counts"
    assert " 2 passed, 1 error in " in lines[-1]


FICKLE = """
from pathlib import Path
def test_steady(): pass
def test_fickle():
    seen = Path(__file__).with_name("seen")
    seen.write_text(seen.read_text() + "x" if seen.exists() else "x")
    assert len(seen.read_text()) >= {needs}
"""


def scenes(folder: Path, *, needs: int, second_run: bool = True, several: int = 1) -> Half:
    """A half of which each fickle test passes from its run number `needs` on."""
    for n in range(several):
        (folder / str(n)).mkdir()
        (folder / str(n) / "test_scene.py").write_text(FICKLE.format(needs=needs))
    options = ("-q", "-n0", f"--rootdir={folder}", "--config-file=/dev/null", "--import-mode=importlib")
    return Half(str(folder), (sys.executable, "-m", "pytest", *options), second_run=second_run)


@pytest.mark.parametrize(
    ("half", "code", "expected"),
    [
        ({"needs": 1}, 0, "2 passed in"),
        ({"needs": 2}, 0, "2 passed, 1 rerun in"),
        ({"needs": 3}, 1, "1 failed, 1 passed in"),
        ({"needs": 2, "second_run": False}, 1, "1 failed, 1 passed in"),
        ({"needs": 2, "several": FEW}, 0, f"{2 * FEW} passed, {FEW} rerun in"),
        ({"needs": 2, "several": FEW + 1}, 1, f"{FEW + 1} failed, {FEW + 1} passed in"),
    ],
)
def test_a_few_scenes_that_fail_are_played_once_more_and_that_is_told(
    half: Mapping[str, Any], code: int, expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([], halves=[scenes(tmp_path, **half)]) == code
    out = capfd.readouterr().out
    assert f" {expected} " in out.splitlines()[-1]
    again = half["needs"] > 1 and half.get("second_run", True) and half.get("several", 1) <= FEW
    assert ("once more, with nothing beside: 0/test_scene.py::test_fickle" in out) == again


def test_the_last_line_has_a_frame_however_long_it_is() -> None:
    counted = Counter({"failed": 10, "passed": 7498, "skipped": 4, "deselected": 46, "warning": 12, "error": 2})
    line = framed(f"{sentence(counted)} in 1351.30s (22 min 31 s)")
    assert len(line) > 80
    assert re.match(r"^=+ .*(passed|failed|error).* in [0-9.]+s", line), "what .ci/run looks for"
