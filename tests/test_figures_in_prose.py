"""Figures in prose are those of the results, of the code, or of what a command prints today."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import report
from benchmarks.closedloop.fleets import FLEET, RHYTHM
from benchmarks.verdicts.command import REGRESSION
from benchmarks.verdicts.drawing import POD_SPEED_SPREAD
from benchmarks.verdicts.error_rates import BEGIN, END, MOST_EQUALS_REJECTED, MOST_HARM_KEPT
from benchmarks.verdicts.in_place import OBJECTIVES_A_CASE
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.change.before_after import SAME_LOAD
from vllm_autotuner.change.comparison import FIRST_LEVEL, LEVEL, LIKELY
from vllm_autotuner.change.failing import MOST_FAILED, MOST_FAILED_ALONE
from vllm_autotuner.change.objective_effect import INSIDE, MARGINS
from vllm_autotuner.change.rejections import GROSS_REJECTED, MORE_REJECTED
from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.simulate.sweep import EQUALLY_GOOD

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"

PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")
A_RATE_IN_WORDS = re.compile(
    r"\b(?:once|one|two|three|four|five|six|seven|eight|nine|half|none) (?:in|of|out of) "
    r"(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|a hundred|all)\b"
)


def test_the_generated_documents_are_what_the_results_say() -> None:
    assert report.main(["--check"]) == 0, "run: python benchmarks/report.py"


# --- docs/verdicts.md -------------------------------------------------------------------------------------------------


def by_hand(page: str) -> str:
    """The page without its generated part, on one line."""
    before, _, rest = page.partition(BEGIN)
    return " ".join((before + rest.partition(END)[2]).split())


def test_a_percentage_written_by_hand_is_a_constant_of_the_code() -> None:
    known = {
        *MARGINS.values(), SAME_LOAD, INSIDE, FIRST_LEVEL, LEVEL, LIKELY, MOST_FAILED, MOST_FAILED_ALONE,
        MORE_REJECTED, GROSS_REJECTED, MOST_EQUALS_REJECTED, MOST_HARM_KEPT, REGRESSION,
    }  # fmt: skip
    allowed = {f"{100 * each:.1f}".removesuffix(".0") for each in known}
    found = set(PERCENT.findall(by_hand(report.VERDICTS.read_text(encoding="utf-8"))))
    assert found <= allowed, "a measured rate belongs into the generated part (benchmarks/verdicts/error_rates.py)"
    assert f"{100 * MARGINS[ChangeTarget.TTFT]:g}" in found, "the pattern finds no percentages any more"


def test_no_measured_rate_is_written_in_words() -> None:
    found = [each.group() for each in A_RATE_IN_WORDS.finditer(by_hand(report.VERDICTS.read_text(encoding="utf-8")))]
    # By chance, one window exceeds all of ten others so often: arithmetic, not a measurement.
    assert found == ["once in eleven"]


# --- docs/benchmarks.md, docs/simulate.md -----------------------------------------------------------------------------


def test_parameters_in_the_prose_of_the_benchmarks_are_those_that_ran() -> None:
    text = report.DOCUMENT.read_text(encoding="utf-8")
    for told in (
        f"a TPOT that is truly {100 * REGRESSION:g} % longer",
        f"differ by {100 * POD_SPEED_SPREAD:g} % in speed",
        f"judged under {OBJECTIVES_A_CASE} draws of objectives",
        f"a cooldown of {(RHYTHM.cooldown or '').removesuffix('m')} minutes and {RHYTHM.changes_per_day} changes a day",
    ):
        assert told in text
    assert "about an hour each" in text
    assert all(abs(seconds - 3600) <= 600 for seconds in FLEET.seconds)


def test_the_width_of_a_tie_is_the_documented_one() -> None:
    text = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    assert f"within {100 * EQUALLY_GOOD:g} % of the best" in text


# --- README.md: the table of the sweep --------------------------------------------------------------------------------

COMMAND = re.compile(r"^(?:\$ )?vllm-autotuner (simulate .*--sweep maxNumSeqs=\S+.*)$", flags=re.MULTILINE)


def rows(lines: Sequence[str]) -> dict[str, dict[str, str]]:
    """The table of a sweep by its first column; a column or a cell that reads `...` is left out."""
    found: dict[str, dict[str, str]] = {}
    header: list[str] = []
    for line in lines:
        cells = [cell for cell in re.split(r"\s{2,}", line.strip()) if cell not in ("...", "\N{HORIZONTAL ELLIPSIS}")]
        if not header:
            header = cells if cells[:2] == ["maxNumSeqs", "goodput"] else []
        elif cells and cells[0].isdigit():
            assert len(cells) == len(header), f"cells do not match the columns: {line}"
            found[cells[0]] = dict(zip(header, cells, strict=True))
        elif cells and found:
            break
    return found


@pytest.fixture(scope="module")
def shown() -> str:
    """From the command of the sweep to the end of the code block that shows its table."""
    text = README.read_text(encoding="utf-8")
    command = COMMAND.search(text)
    assert command, "README.md shows no sweep of maxNumSeqs"
    table = re.compile(r"^ *maxNumSeqs {2,}goodput", flags=re.MULTILINE).search(text, command.end())
    assert table, "README.md shows no table of the sweep"
    return text[command.start() : text.index("```", table.end())]


def test_the_sweep_in_the_readme_prints_what_the_readme_shows(shown: str) -> None:
    command = COMMAND.match(shown)
    assert command
    told = rows(shown.splitlines())
    assert len(told) >= 2
    arguments = shlex.split(command.group(1))
    # Every value gets the same requests, so rows do not depend on each other. The complete sweep takes 20 s: the row of
    # the fewest slots and the best row stand for the rest, as whatever changes the simulator changes these too.
    best = re.search(r"^Best goodput: maxNumSeqs (\d+),.*$", shown, flags=re.MULTILINE)
    chosen = sorted({min(told, key=int), best.group(1) if best else max(told, key=int)} & told.keys(), key=int)
    arguments[arguments.index("--sweep") + 1] = f"maxNumSeqs={','.join(chosen)}"
    if "--plot" in arguments:
        at = arguments.index("--plot")
        del arguments[at : at + 2]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "240"})
    assert result.exit_code == 0, result.output
    printed = rows(result.stdout.splitlines())
    assert {each: told[each] for each in chosen} == {
        each: {column: printed[each][column] for column in told[each]} for each in chosen
    }
    assert best is None or best.group() in result.stdout


def test_the_knee_in_the_readme_is_below_the_rows_that_are_past_it(shown: str) -> None:
    knee = re.search(r"^Knee: up to (\d+) running sequences", shown, flags=re.MULTILINE)
    if knee is None:
        return
    told = rows(shown.splitlines())
    past = [int(value) for value, cells in told.items() if "PastTPOTKnee" in cells.get("diagnosis", "")]
    assert not past or int(knee.group(1)) < min(past)


def test_rows_are_read_with_columns_left_out() -> None:
    table = (
        " maxNumSeqs  goodput  TTFT p95  ...",
        " ─────",
        " 64             0.17    24.2 s",
        " ...",
        " 128            9.67    4.48 s  ...",
        "Knee: up to 121 running sequences",
    )
    assert rows(table) == {
        "64": {"maxNumSeqs": "64", "goodput": "0.17", "TTFT p95": "24.2 s"},
        "128": {"maxNumSeqs": "128", "goodput": "9.67", "TTFT p95": "4.48 s"},
    }
