"""How the agreement of capacities is scored: on engines that do not exist, and on ratios that are known."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.benchmarks.measured import row, write

from benchmarks.capacity_agreement import LARGER, LOADS, SCENES, Told, main, measured, summary, worst
from benchmarks.measured_curves.read import read_curves

CLIENTS = (2, 4, 8, 16, 32, 64)


def told_of(folder: Path, milliseconds: Callable[[int], float]) -> list[Told]:
    """What is told of an engine whose TPOT at so many clients is known."""
    rows = [row(concurrency_or_max_num_seqs=each, tpot_ms_mean_or_p50=milliseconds(each)) for each in CLIENTS]
    write(folder, "one.csv", rows)
    (curve,) = read_curves(folder)
    return list(measured(curve))


def test_a_straight_line_is_told_exactly(tmp_path: Path) -> None:
    found = told_of(tmp_path, lambda clients: 10 + clients / 4)
    assert [each.what for each in found] == [f"one within {ms} ms" for ms in ("19.6", "22.8", "26.0")]
    for each in found:
        assert each.likely == pytest.approx(1, rel=0.01)
        assert each.low <= 1
        assert each.limited_by == "TPOT"


def test_a_curve_that_bends_down_is_told_too_low(tmp_path: Path) -> None:
    found = told_of(tmp_path, lambda clients: 10 * clients**0.25)
    assert all(each.likely is not None and each.likely < 0.9 for each in found)


def test_a_curve_with_too_few_points_below_the_half_tells_nothing(tmp_path: Path) -> None:
    write(tmp_path, "one.csv", [row(concurrency_or_max_num_seqs=each) for each in (8, 32)])
    (curve,) = read_curves(tmp_path)
    found = list(measured(curve))
    assert len(found) == len(LARGER)
    assert all(each.likely is None for each in found)


def test_what_was_not_told_is_counted_and_not_scored() -> None:
    ratios = ((0.8, 0.7), (1.0, 0.9), (1.1, 1.05))
    found = [Told(source="a", what="", likely=likely, low=low) for likely, low in ratios]
    found.append(Told(source="a", what="", likely=None))
    figures = summary(found)["a"]
    assert (figures["asked"], figures["told"]) == (4, 3)
    assert figures["told_over_true_median"] == 1.0
    assert figures["median_abs_pct"] == pytest.approx(10)
    assert figures["low_end_kept"] == pytest.approx(2 / 3)
    assert (figures["told_over_true_least"], figures["told_over_true_most"]) == (0.8, 1.1)


def test_half_as_much_and_twice_as_much_are_equally_far_off() -> None:
    found = [Told(source="a", what=what, likely=likely) for what, likely in (("a", 1.3), ("b", 0.4), ("c", 2.0))]
    assert [each.what for each in worst(found)] == ["b", "c", "a"]


def test_scenes_have_names_of_their_own_and_loads_on_both_sides_of_the_capacity() -> None:
    assert len({scene.name for scene in SCENES}) == len(SCENES)
    assert min(LOADS) < 1 < max(LOADS)


def test_without_curves_and_scenes_there_is_a_report_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--scenes", "0", "--data", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    assert '"summary": {}' in said.out
    assert "measured curves left out" in said.err
