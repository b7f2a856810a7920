"""How forecasts are scored: on pairs whose errors are known, and on curves of engines that do not exist."""

from pathlib import Path

import pytest
from tests.benchmarks.measured import row, write

from benchmarks.forecasts import SCENES, Pair, measured, miss, summary, worst
from benchmarks.measured_curves.read import read_curves


def pair(foretold: float | None, came: float | None, *, queued: bool = True, change: str = "") -> Pair:
    return Pair(source="simulated", change=change, queued=queued, ttft=(foretold, came), tpot=(0.02, 0.02))


def test_an_error_is_foretold_over_measured() -> None:
    assert miss((1.5, 1.0)) == pytest.approx(0.5)
    assert miss((0.5, 1.0)) == pytest.approx(-0.5)
    assert miss((None, 1.0)) is None
    assert miss((1.0, None)) is None


def test_what_has_no_forecast_is_counted_and_not_scored() -> None:
    found = summary([pair(1.1, 1.0), pair(0.6, 1.0), pair(None, 1.0), pair(1.0, 1.0, queued=False)])
    queued = found["simulated, with a queue"]
    assert (queued["pairs"], queued["ttft_foretold"]) == (3, 2)
    assert queued["ttft_median_abs_pct"] == pytest.approx(25.0)
    assert queued["ttft_median_pct"] == pytest.approx(-15.0)
    assert queued["ttft_worst_pct"] == pytest.approx(-40.0)
    assert queued["ttft_within_a_quarter"] == 0.5
    assert found["simulated, without a queue"]["ttft_worst_pct"] == 0


def test_half_as_much_and_twice_as_much_are_equally_far_off() -> None:
    found = worst([pair(1.3, 1.0, change="a"), pair(0.4, 1.0, change="b"), pair(2.0, 1.0, change="c")])
    assert [each["change"] for each in found] == ["b", "c", "a"]


def test_on_a_curve_two_replicas_are_the_point_at_half_the_load(tmp_path: Path) -> None:
    loads = (4, 8, 16, 24)
    rows = [
        row(concurrency_or_max_num_seqs=load, tpot_ms_mean_or_p50=10 + load / 4, ttft_ms=50 + load) for load in loads
    ]
    write(tmp_path, "one.csv", rows)
    (curve,) = read_curves(tmp_path)
    found = measured(curve)
    assert [each.change for each in found] == ["one at 8, replicas 1 -> 2", "one at 16, replicas 1 -> 2"]
    assert [each.ttft[1] for each in found] == [pytest.approx(0.054), pytest.approx(0.058)]
    shorter = [0.058 * 11 / 12, 0.066 * 12 / 14]
    assert [each.ttft[0] for each in found] == pytest.approx(shorter, rel=0.05), "prompts wait for shorter steps"


def test_every_scene_has_settings_within_one_step_of_each_other() -> None:
    for scene in SCENES:
        assert all(later <= 2 * one for one, later in zip(scene.values, scene.values[1:], strict=False))
