"""The command from a folder to its figures: made-up engines whose truth is known, then measured ones."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.laws import Planted
from tests.benchmarks.measured import curve, measured_data, row, write

from benchmarks.measured_curves.command import main
from benchmarks.measured_curves.kv_rows import read_kv_rows
from benchmarks.measured_curves.read import CurveError
from benchmarks.measured_curves.step_sample import steady_sample
from benchmarks.measured_curves.study import report_of, study, without_measurements

ROOT = Path(__file__).parents[2]
MIXES = ((300, 120), (1800, 120), (1800, 400))
KV_COLUMNS = "model,gpu,tp,gpu_mem_util,kv_dtype,kv_tokens,max_num_seqs,kv_gib_per_gpu,kv_bytes_per_token_per_gpu"


def report(folder: Path) -> dict[str, Any]:
    return report_of(study(folder, kv_capacity=None, seed=1))


@pytest.mark.parametrize(
    ("planted", "changes"),
    [
        pytest.param(Planted(), {}, id="nothing known of model or GPU"),
        pytest.param(
            Planted(base=0.021, per_sequence=45e-6, per_held_token=130e-9, per_prefill_token=190e-6),
            {"model": "Qwen/Qwen2.5-14B-Instruct", "gpu": "NVIDIA-A100-SXM4-80GB"},
            id="a known model on a known GPU",
        ),
    ],
)
def test_a_planted_engine_is_met_on_what_was_fitted_and_on_what_was_not(
    planted: Planted, changes: dict[str, Any], tmp_path: Path
) -> None:
    for mix in MIXES:
        write(tmp_path, f"{mix[0]}x{mix[1]}.csv", curve(planted, mix, loads=(2, 4, 8, 16), noise=0.01, **changes))
    summary = report(tmp_path)["summary"]
    assert (summary["curves"], summary["points"]) == (3, 12)
    assert summary["tpot_median_abs_pct_error"] < 3
    assert summary["tpot_worst_abs_pct_error"] < 8
    assert summary["tpot_lomo_median_abs_pct_error"] < 6
    assert summary["kv_saturation_within_one_step"] == 1
    assert summary["goodput_regret_median"] <= 0.03
    assert summary["goodput_regret_worst"] <= 0.10


def test_full_slots_saturate_where_they_were_measured(tmp_path: Path) -> None:
    rows = curve(Planted(), (300, 120), loads=(2, 4, 8, 16, 32), full_at=8, notes="max_num_seqs=8")
    write(tmp_path, "seats.csv", rows)
    (found,) = report(tmp_path)["curves"]
    assert found["saturation_measured_at"] == 16
    assert found["saturation_played_at"] == 16


def test_a_rate_on_the_x_axis_is_played_as_arrivals(tmp_path: Path) -> None:
    planted = Planted()
    rows = []
    for rate in (0.5, 1.0, 2.0, 4.0):
        # The batch that holds itself: so many arrivals, each as long as its tokens take.
        batch = 1.0
        for _ in range(50):
            tpot = planted.at(steady_sample(batch=batch, prompt_tokens=300, output_tokens=120))
            batch = rate * 120 * tpot
        rows.append(row(x_kind="request_rate", concurrency_or_max_num_seqs=rate, isl=300, osl=120, ttft_ms="",
                        tpot_ms_mean_or_p50=tpot * 1e3))  # fmt: skip
    write(tmp_path, "rate.csv", rows)
    (found,) = report(tmp_path)["curves"]
    assert found["tpot_worst_abs_pct_error"] < 5


def test_one_curve_alone_has_no_unseen_mix(tmp_path: Path) -> None:
    write(tmp_path, "one.csv", curve(Planted(), MIXES[0], loads=(2, 4, 8)))
    summary = report(tmp_path)["summary"]
    assert summary["tpot_lomo_median_abs_pct_error"] is None
    assert summary["tpot_median_abs_pct_error"] < 3


def test_too_few_points_are_left_out_by_name_and_nothing_is_claimed(tmp_path: Path) -> None:
    write(tmp_path, "two.csv", curve(Planted(), MIXES[0], loads=(2, 4)))
    found = report(tmp_path)
    assert found["left_out"] == [{"file": "two.csv", "why": "only 2 samples with load (3 needed)", "saturation": None}]
    assert found["summary"]["tpot_median_abs_pct_error"] is None
    assert found["summary"]["goodput_regret_worst"] is None


def numbers(value: Any) -> list[float]:
    match value:
        case dict():
            return [number for each in value.values() for number in numbers(each)]
        case list():
            return [number for each in value for number in numbers(each)]
        case float():
            return [value]
        case _:
            return []


def test_what_is_kept_holds_errors_and_none_of_the_measured_figures(tmp_path: Path) -> None:
    rows = curve(Planted(), MIXES[0], loads=(2, 4, 8))
    write(tmp_path, "one.csv", rows)
    found = report(tmp_path)
    kept = without_measurements(found)
    for each in rows:
        for name in ("tpot_ms_mean_or_p50", "ttft_ms", "throughput_tok_s"):
            assert any(number == pytest.approx(each[name]) for number in numbers(found))
            assert not any(number == pytest.approx(each[name]) for number in numbers(kept))


def test_json_is_one_object_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "one.csv", curve(Planted(), MIXES[0], loads=(2, 4, 8)))
    assert main(["--curves", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["summary"]["curves"] == 1
    assert len(printed["curves"][0]["points"]) == 3


def test_the_table_names_every_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "one.csv", curve(Planted(), MIXES[0], loads=(2, 4, 8)))
    write(tmp_path, "two.csv", curve(Planted(), MIXES[1], loads=(2,), tp=2))
    assert main(["--curves", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "unheard-20b Foo TP1   300x120" in out
    assert "left out: two.csv: only 1 samples with load (3 needed)" in out


def test_profiles_and_a_plot_are_written(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", "one.csv", curve(Planted(), MIXES[0], loads=(2, 4, 8)))
    plot, profiles = tmp_path / "plot.png", tmp_path / "profiles"
    assert main(["--curves", str(tmp_path / "in"), "--plot", str(plot), "--write-profiles", str(profiles)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in profiles.iterdir()] == ["unheard-20b-foo-9000.json"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["--curves", "nowhere"], "nowhere: no such folder", id="no folder"),
        pytest.param(["--curves", "empty"], "empty: no .csv file in it", id="an empty folder"),
        pytest.param(["--curves", "bad"], "one.csv, line 2: isl is -5, and must be above 0", id="a bad row"),
        pytest.param(["--curves", "good", "--plot", "plot.unknown"], "plot.unknown: ", id="a plot of no known kind"),
        pytest.param(["--curves", "good", "--kv-capacity", "none.csv"], "none.csv: ", id="no KV table"),
        pytest.param(["--curves", "good", "--write-profiles", "file"], "File exists", id="a file for a folder"),
    ],
)
def test_bad_input_is_one_line_and_code_1(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("empty", "bad", "good"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("")
    write(tmp_path / "bad", "one.csv", [row(isl=-5)])
    write(tmp_path / "good", "one.csv", curve(Planted(), MIXES[0], loads=(2, 4, 8)))
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("curves: ")
    assert says in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("how", [["benchmarks/curves.py"], ["-m", "benchmarks.curves"]], ids=["script", "module"])
def test_it_runs_as_a_script_and_as_a_module(how: list[str], tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, *how, "--curves", str(tmp_path), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.endswith("no .csv file in it\n")


# --- logged KV pools -------------------------------------------------------------------------------------------------


def test_kv_rows_are_scored_where_the_formulas_hold(tmp_path: Path) -> None:
    # Qwen2.5-14B: 2 * 48 * 8 * 128 * 2 bytes a token; 6 GiB hold 32,768 of them.
    lines = [
        KV_COLUMNS,
        "Qwen/Qwen2.5-14B,A100-SXM4-80GB,1,0.5,auto,32768,256,6,",
        "Qwen/Qwen2.5-14B,A100-SXM4-80GB,2,0.5,fp8,,default,,49152",
        "acme/unheard,A100-SXM4-80GB,1,0.5,auto,1000,256,1,",
    ]
    path = tmp_path / "kv.csv"
    path.write_text("\n".join(lines))
    one, two, unknown = read_kv_rows(path)
    assert one.bytes_error == pytest.approx(0)
    # 0.5 * 79.25 - 27.5 - 0.5 - 256 * 39 * 152,064 bytes: 10.2 GiB.
    assert one.pool == pytest.approx(10.2 * 2**30 / 196_608, rel=0.01)
    assert (two.bytes_per_token, two.bytes_error, two.pool_error) == (49_152, 0, None)
    assert (unknown.bytes_error, unknown.pool_error) == (None, None)
    assert unknown.why == "no geometry is known for this name"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Qwen/Qwen3-8B,H100,one,0.9,,,,,", "line 2: tp is 'one', not a number"),
        ("Qwen/Qwen3-8B,H100,1,-0.9,,,,,", "line 2: gpu_mem_util is -0.9, and must be above 0"),
        (",H100,1,0.9,,,,,", "line 2: model, tp and gpu_mem_util are needed"),
    ],
)
def test_a_kv_row_that_cannot_be_is_told(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "kv.csv"
    path.write_text(f"{KV_COLUMNS}\n{line}\n")
    with pytest.raises(CurveError) as caught:
        read_kv_rows(path)
    assert reason in str(caught.value)


# --- measured data, where it is --------------------------------------------------------------------------------------


def test_bytes_per_token_are_within_1_percent_of_every_logged_pool() -> None:
    rows = read_kv_rows(measured_data("kv_capacity.csv"))
    errors = {row.line: row.bytes_error for row in rows if row.bytes_error is not None}
    assert len(errors) >= 14
    assert max(abs(error) for error in errors.values()) < 0.01


def test_the_targets_hold_on_the_measured_curves() -> None:
    folder = measured_data("curves")
    summary = report_of(study(folder, kv_capacity=None, seed=1))["summary"]
    assert summary["curves"] >= 20
    assert summary["tpot_median_abs_pct_error"] <= 5
    assert summary["tpot_lomo_median_abs_pct_error"] <= 5
    assert summary["kv_saturation_within_one_step"] == 1
    assert summary["goodput_regret_median"] <= 0.03
    assert summary["goodput_regret_worst"] <= 0.10
