"""docs/benchmarks.md and the measured part of docs/verdicts.md come from the results, and from nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.measured_curves.page import CURVE_FIGURES
from benchmarks.report import SECTIONS, rendered
from benchmarks.verdicts import error_rates
from benchmarks.verdicts.error_rates import BEGIN, END

RUN = {"commit": "abc1234", "machine": "2 x toaster", "python": "3.11", "command": "curves.py --save"}


def result(folder: Path, name: str, **figures: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"provenance": RUN, **figures}))


def curves_result(**changes: float | None) -> dict[str, Any]:
    summary: dict[str, Any] = {name: 0.0 for _, name, _ in CURVE_FIGURES}
    counts = {"curves": 3, "points": 12, "points_saturated": 1, "decisions": 18}
    return {"summary": {**summary, **counts, **changes}, "worst_points": [], "curves": [], "left_out": []}


def test_a_benchmark_that_did_not_run_says_so(tmp_path: Path) -> None:
    text = rendered(tmp_path)
    assert text.count("Not run: `python ") == len(SECTIONS)


def test_a_result_without_a_section_is_rendered_unchanged(tmp_path: Path) -> None:
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
    assert f"| TPOT, on the curves of the fit: median error, % {told}" in rendered(tmp_path)


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
    page = tmp_path / "verdicts.md"
    page.write_text(f"# By hand\n{BEGIN}\nold figures\n{END}\n\nMore by hand.\n")
    monkeypatch.setattr(report, "DOCUMENT", document)
    monkeypatch.setattr(report, "VERDICTS", page)
    assert report.main(["--check"]) == 1
    assert "python benchmarks/report.py" in capsys.readouterr().err
    assert report.main([]) == 0
    assert report.main(["--check"]) == 0
    assert page.read_text().startswith(f"# By hand\n{BEGIN}\n- **Canary")
    assert page.read_text().endswith(f"\n{END}\n\nMore by hand.\n")
    for each in (document, page):
        text = each.read_text()
        each.write_text(text.replace("95 %", "99 %") + ("one more line\n" if each is document else ""))
        assert report.main(["--check"]) == 1
        each.write_text(text)
    assert report.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("commit", "told"),
    [
        pytest.param("abc1234", False, id="a commit"),
        pytest.param("abc1234-dirty", True, id="a dirty tree"),
        pytest.param("unknown", True, id="no repository"),
    ],
)
def test_figures_that_cannot_be_repeated_say_so(commit: str, told: bool, tmp_path: Path) -> None:
    text = json.dumps({"provenance": {**RUN, "commit": commit}, "summary": {"speed": 1}})
    (tmp_path / "new_thing.json").write_text(text)
    assert ("cannot be repeated" in rendered(tmp_path)) is told


def test_an_error_rate_over_its_limit_is_called_missed() -> None:
    canary, in_place = (
        json.loads((report.RESULTS / f"{name}.json").read_text()) for name in ("verdict", "verdict_in_place")
    )
    canary["summary"].update(
        wrong_rejections_of_equals=0.06, harmful_promotions=0.004, harmful_promotions_in_few_windows=0.02,
        late_promotions=0.004, late_promotions_worst_effect=0.02,
    )  # fmt: skip
    found = error_rates.sentences(canary=canary, in_place=in_place)
    assert "6.0 % rejected" in found[0]
    assert "The limit of 5 % is **missed**." in found[0]
    assert "0.4 % kept" in found[1]
    assert "2.0 % if windows end with the first look. The limit of 1 % is **missed**." in found[1]
    assert "0.4 % kept" in found[3]
    assert "2.0 %. The limit of 1 % is **missed**." in found[3]


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.0, "0.0 %"), (0.0004, "0.04 %"), (0.0139, "1.4 %"), (0.83824, "83.8 %"), (1.0, "100.0 %")],
)
def test_a_rate_above_zero_never_reads_as_zero(share: float, told: str) -> None:
    assert error_rates._share(share) == told


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="markers"):
        error_rates.inserted("# By hand\n", results=report.RESULTS)
