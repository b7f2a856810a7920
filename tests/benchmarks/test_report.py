"""docs/benchmarks.md comes from the results, and from nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.report import CURVE_FIGURES, SECTIONS, rendered

RUN = {"commit": "abc1234", "machine": "2 x toaster", "python": "3.11", "command": "curves.py --save"}


def result(folder: Path, name: str, **figures: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"provenance": RUN, **figures}))


def curves_result(**changes: float | None) -> dict[str, Any]:
    summary: dict[str, Any] = {name: 0.0 for _, name, _ in CURVE_FIGURES}
    counts = {"curves": 3, "points": 12, "points_saturated": 1, "decisions": 18}
    return {"summary": {**summary, **counts, **changes}, "worst_points": [], "curves": [], "left_out": []}


def test_a_benchmark_that_did_not_run_says_so(tmp_path: Path) -> None:
    text = rendered(tmp_path)
    assert text.count("Not run: `python benchmarks/") == len(SECTIONS)


def test_a_result_nobody_knows_is_told_as_it_stands(tmp_path: Path) -> None:
    result(tmp_path, "new_thing", summary={"speed": {"median": 1234.5, "holds": True}, "list": [1, 2], "none": None})
    text = rendered(tmp_path)
    assert "## new thing" in text
    assert "| speed median | 1,234 |" in text
    assert "| speed holds | yes |" in text
    assert "| none | - |" in text
    assert "`curves.py --save`; commit abc1234, machine 2 x toaster, python 3.11." in text


@pytest.mark.parametrize(
    ("value", "told"),
    [
        pytest.param(4.2, "| 4.2 | 5 | holds |", id="within"),
        pytest.param(5.0, "| 5 | 5 | holds |", id="exactly at the limit"),
        pytest.param(5.3, "| 5.3 | 5 | **missed** |", id="missed"),
        pytest.param(None, "| - | 5 |  |", id="not judged"),
    ],
)
def test_a_target_is_held_or_missed(value: float | None, told: str, tmp_path: Path) -> None:
    result(tmp_path, "curves", **curves_result(tpot_median_abs_pct_error=value))
    assert f"| TPOT, curves it was fitted on: median error, % {told}" in rendered(tmp_path)


def test_a_figure_just_past_its_limit_is_missed_and_shows_it(tmp_path: Path) -> None:
    result(tmp_path, "curves", **curves_result(tpot_median_abs_pct_error=5.0004))
    assert "**missed**" in rendered(tmp_path)


def test_the_results_of_the_repository_are_all_told() -> None:
    text = rendered()
    for path in report.RESULTS.glob("*.json"):
        assert json.loads(path.read_text())["provenance"]["command"] in text


def test_check_tells_a_document_that_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "benchmarks.md"
    monkeypatch.setattr(report, "DOCUMENT", document)
    assert report.main(["--check"]) == 1
    assert "python benchmarks/report.py" in capsys.readouterr().err
    assert report.main([]) == 0
    assert report.main(["--check"]) == 0
    document.write_text(document.read_text() + "one more line\n")
    assert report.main(["--check"]) == 1
