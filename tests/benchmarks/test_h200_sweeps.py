"""Sweeps of a real engine: tables from counters, halves and knees where the truth is known, and what is missing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.benchmarks.laws import Planted
from tests.benchmarks.measured import curve, row, write

from benchmarks.gpu_sweeps.command import main
from benchmarks.gpu_sweeps.foretold import kv_bytes, prompts_of, told_before, told_from_one
from benchmarks.gpu_sweeps.kv_types import pairs_of
from benchmarks.gpu_sweeps.left_out import HALVES, LAWS, Fit, fits_of, measured_knee
from benchmarks.gpu_sweeps.page import h200_sweeps
from benchmarks.gpu_sweeps.report import report_of
from benchmarks.gpu_sweeps.tables import DATA, SWEEPS, TABLES, curve_file, read_sweep
from benchmarks.measured_curves.groups import set_ups, usable_points
from benchmarks.measured_curves.read import Curve, read_curves
from benchmarks.recordings.read import BadRecording

NAMES = ("h200-dense", "h200-dense-long", "h200-mixture")
KV_TYPES = DATA / "kv-types"
CLIENTS = (1, 2, 4, 8, 16, 32, 64)


def fits(folder: Path, rows: list[dict[str, object]]) -> tuple[Curve, list[Fit]]:
    write(folder, "one.csv", rows)
    (set_up,) = set_ups(read_curves(folder))
    return set_up.first, list(fits_of(set_up.first, set_up))


@pytest.mark.parametrize("name", NAMES)
def test_the_tables_are_those_of_the_recordings(name: str) -> None:
    table = (TABLES / f"{name}.csv").read_text(encoding="utf-8")
    assert table == curve_file(read_sweep(SWEEPS / f"{name}.om.gz")), (
        "run: python benchmarks/h200_sweeps.py --write-tables"
    )


@pytest.mark.parametrize("name", NAMES)
def test_points_agree_with_what_the_recorder_noted(name: str) -> None:
    noted = json.loads((SWEEPS / f"{name}.json").read_text(encoding="utf-8"))["points"]
    for point, each in zip(read_sweep(SWEEPS / f"{name}.om.gz").points, noted, strict=True):
        assert point.itl == pytest.approx(each["server"]["srv_itl_mean"], rel=0.01)
        assert point.throughput == pytest.approx(each["server"]["gen_tps"], rel=0.01)


def test_no_point_of_the_sweeps_counts_as_saturated() -> None:
    curves = read_curves(TABLES)
    assert all(usable_points(each) == each.points for each in curves)
    assert sum(len(each.points) for each in curves) == 19


def test_a_straight_engine_is_foretold_from_each_half(tmp_path: Path) -> None:
    _, each = fits(tmp_path, curve(Planted(), (384, 256), loads=CLIENTS))
    assert [(fit.law, fit.half) for fit in each] == [(law, half) for law in LAWS for half in HALVES]
    for fit in each:
        assert all(abs(point.error) < 0.02 for point in fit.points)
        assert len(fit.points) == {"odd": 3, "even": 4, "all": 7}[fit.half]
    even = next(fit for fit in each if fit.half == "even")
    assert [point.clients for point in even.points if point.beyond] == [1, 64]


def test_the_knee_of_a_sweep_lies_between_its_points_or_beyond_them(tmp_path: Path) -> None:
    rows = [row(concurrency_or_max_num_seqs=at, tpot_ms_mean_or_p50=tpot) for at, tpot in ((4, 10), (8, 14), (16, 22))]
    write(tmp_path, "one.csv", rows)
    (found,) = read_curves(tmp_path)
    assert measured_knee(found, 0.012) == pytest.approx(6)
    assert measured_knee(found, 0.014) == pytest.approx(8)
    assert measured_knee(found, 0.009) == 0
    assert measured_knee(found, 0.022) is None


def test_a_choice_past_the_objective_loses_everything_and_beyond_the_sweep_nothing_is_known(tmp_path: Path) -> None:
    # Concave, as experts make it: the line through all of it lies below the middle.
    shape = ((1, 4), (2, 5), (4, 7), (8, 12), (16, 17), (32, 19), (64, 22))
    rows = [
        row(concurrency_or_max_num_seqs=at, tpot_ms_mean_or_p50=tpot, throughput_tok_s=at / tpot * 1e3, ttft_ms="")
        for at, tpot in shape
    ]
    _, each = fits(tmp_path, rows)
    line = next(fit for fit in each if (fit.law, fit.half) == ("line", "all"))
    fifteen, _, thirty, fifty = line.knees
    assert fifteen.measured == pytest.approx(12.8)
    assert (fifteen.chosen or 0) > 16
    assert fifteen.lost == 1
    assert fifteen.tpot is not None
    assert fifteen.tpot > 0.015
    assert thirty.measured is fifty.measured is None
    assert fifty.lost is fifty.tpot is None
    joined = next(fit for fit in each if (fit.law, fit.half) == ("points", "all"))
    assert joined.knees[0].lost == pytest.approx(0, abs=0.06)


def test_priors_foretell_a_known_shape_and_say_why_not_another() -> None:
    dense, mixture = (read_sweep(SWEEPS / f"{name}.om.gz") for name in ("h200-dense", "h200-mixture"))
    told, why = told_before(dense)
    assert why == ""
    assert all(each.foretold == pytest.approx(sum(each.parts)) for each in told)
    told, why = told_before(mixture)
    assert "not counted" in why
    assert all(each.foretold is None and each.error is None for each in told)


def test_kv_bytes_are_those_of_the_engine_up_to_its_last_block() -> None:
    for name in NAMES:
        sweep = read_sweep(SWEEPS / f"{name}.om.gz")
        measured, told = kv_bytes(sweep)
        assert told is not None
        assert 0 <= sweep.kv_bytes / told - sweep.kv_tokens < 16
        assert measured == pytest.approx(told, rel=1e-3)


def test_one_load_tells_of_a_lone_request_only_where_lengths_are_the_same() -> None:
    dense = read_sweep(SWEEPS / "h200-dense.om.gz")
    assert [each.clients for each in told_from_one(dense)] == [2, 4, 8, 16, 32, 64, 128, 256]
    first, *others = dense.points
    assert told_from_one(replace(dense, points=(replace(first, prompt_tokens=9), *others))) == ()


def test_prompts_are_faster_while_the_engine_is_busy() -> None:
    speed = prompts_of(DATA / "recordings" / "h200-prefill.om.gz", phase=1)
    assert speed.mean < speed.busy
    assert 0 < speed.busy_share < 1


def test_the_report_has_every_figure_and_its_page() -> None:
    report = report_of(DATA, seed=1)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert {pair["clients"] for pair in report["kv_types"]} == {1, 8, 32, 64, 128, 256}
    page = "\n".join(h200_sweeps(report))
    for name in NAMES:
        assert f"**{name}**" in page
    assert "No priors alone" in page
    assert report == report_of(DATA, seed=1)


def test_the_type_of_the_kv_cache_leaves_the_step_as_it_is_within_a_tenth() -> None:
    """As the product foretells it: fp8 is larger, not faster. Long contexts are where it is faster."""
    changes = {(pair.in_16_bit.clients, pair.in_16_bit.prompt_tokens): pair.change for pair in pairs_of(KV_TYPES)}
    assert all(-0.1 < change < 0.03 for change in changes.values())
    assert min(changes, key=lambda load: changes[load]) == (32, 2500)


def test_two_engines_under_different_loads_are_no_pair(tmp_path: Path) -> None:
    for suffix in (".om.gz", ".json"):
        shutil.copy(KV_TYPES / f"h200-kv-auto{suffix}", tmp_path)
        shutil.copy(SWEEPS / f"h200-dense-long{suffix}", tmp_path / f"h200-kv-fp8{suffix}")
    with pytest.raises(BadRecording, match="not of the same loads"):
        pairs_of(tmp_path)


def test_a_sweep_of_an_unknown_model_is_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweeps").mkdir()
    for suffix in (".om.gz", ".json"):
        shutil.copy(SWEEPS / f"h200-dense-long{suffix}", tmp_path / "sweeps")
    told = tmp_path / "sweeps" / "h200-dense-long.json"
    told.write_text(told.read_text(encoding="utf-8").replace("qwen3-8b", "unheard-of"), encoding="utf-8")
    with pytest.raises(BadRecording, match="unheard-of"):
        read_sweep(tmp_path / "sweeps" / "h200-dense-long.om.gz")
    assert main(["--data", str(tmp_path)]) == 1
    assert "no sweep of a known model" in capsys.readouterr().err


def test_a_stretch_without_scrapes_is_refused_with_a_sentence(tmp_path: Path) -> None:
    for suffix in (".om.gz", ".json"):
        shutil.copy(SWEEPS / f"h200-dense-long{suffix}", tmp_path)
    beside = tmp_path / "h200-dense-long.json"
    document = json.loads(beside.read_text(encoding="utf-8"))
    document["points"][0]["measured_from"] = document["points"][0]["end"]
    beside.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(BadRecording, match="fewer than two scrapes"):
        read_sweep(tmp_path / "h200-dense-long.om.gz")


def test_tables_are_written_where_the_data_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(DATA, tmp_path / "data", ignore=shutil.ignore_patterns("curves"))
    assert main(["--data", str(tmp_path / "data"), "--write-tables", "--json"]) == 0
    assert {path.name for path in (tmp_path / "data" / "curves").iterdir()} == {f"{name}.csv" for name in NAMES}
    assert json.loads(capsys.readouterr().out)["kv_pool"][0]["logged_tokens"] == 818048
