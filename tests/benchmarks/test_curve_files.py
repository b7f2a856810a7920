"""Reading curve files: what a row means, and one clear sentence for what cannot be read."""

from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.measured import COLUMNS, row, write

from benchmarks.measured_curves.groups import batch_of, first_sign, sample_at, set_ups, usable_points
from benchmarks.measured_curves.read import Curve, CurveError, read_curves


def read(folder: Path, *rows: dict[str, Any]) -> tuple[Curve, ...]:
    write(folder, "one.csv", rows)
    return read_curves(folder)


def test_a_curve_is_its_rows_by_rising_load_in_seconds(tmp_path: Path) -> None:
    high, low = row(concurrency_or_max_num_seqs=16, tpot_ms_mean_or_p50=30), row(concurrency_or_max_num_seqs=4)
    (curve,) = read(tmp_path, high, low)
    assert [(point.x, point.tpot) for point in curve.points] == [(4, 0.021), (16, 0.030)]
    assert (curve.mix, curve.load.closed, curve.shortest, curve.seats) == ("600x200", True, 1.0, None)


def test_what_the_notes_say_is_heard(tmp_path: Path) -> None:
    notes = "max_num_seqs=48; real lengths 60-100% of nominal; util 0.85; mnbt 4096"
    (curve,) = read(tmp_path, row(notes=notes, weight_dtype="FP8", kv_dtype="fp8_e4m3", x_kind="max_num_seqs"))
    assert (curve.seats, curve.shortest, curve.utilization, curve.batched_tokens) == (48, 0.6, 0.85, 4096)
    assert (curve.bytes_per_weight, curve.fp8_kv, curve.load.is_max_num_seqs) == (1, True, True)
    assert sample_at(curve, curve.points[0]).held_tokens == 8 * 0.8 * (600 + 200 / 2)


def test_in_an_open_loop_the_batch_follows_from_the_output_rate(tmp_path: Path) -> None:
    (curve,) = read(tmp_path, row(x_kind="mean_in_system(littles_law)", throughput_tok_s=500, tpot_ms_mean_or_p50=20))
    assert batch_of(curve, curve.points[0]) == pytest.approx(10)


@pytest.mark.parametrize(("text", "waiting"), [("", None), ("0", 0.0), ("0.00", 0.0), ("2.5", 2.5)])
def test_what_waits_may_be_nothing_or_not_known(text: str, waiting: float | None, tmp_path: Path) -> None:
    header, values = write(tmp_path, "one.csv", [row()]).read_text().splitlines()
    (tmp_path / "one.csv").write_text(f"{header},waiting\n{values},{text}\n")
    (curve,) = read_curves(tmp_path)
    assert curve.points[0].waiting == waiting


@pytest.mark.parametrize("kind", ["request_rate", "offered_rps (open loop)", "arrival rate, req/s"])
def test_a_rate_is_an_open_loop_of_so_many_a_second(kind: str, tmp_path: Path) -> None:
    (curve,) = read(tmp_path, row(x_kind=kind, concurrency_or_max_num_seqs=5, tpot_ms_mean_or_p50=20, osl=300))
    assert (curve.load.closed, curve.load.is_rate) == (False, True)
    assert batch_of(curve, curve.points[0]) == pytest.approx(5 * 300 * 0.020)


@pytest.mark.parametrize(
    ("weights", "size"), [("bf16", 2), ("", 2), ("fp8", 1), ("W8A8", 1), ("awq", 0.5), ("int4", 0.5), ("nvfp4", 0.5)]
)
def test_weights_are_as_large_as_their_type(weights: str, size: float, tmp_path: Path) -> None:
    (curve,) = read(tmp_path, row(weight_dtype=weights))
    assert curve.bytes_per_weight == size


def test_a_request_on_its_own_is_a_batch_of_one(tmp_path: Path) -> None:
    (curve,) = read(tmp_path, row(x_kind="mean_in_system", throughput_tok_s=5, concurrency_or_max_num_seqs=0.1))
    assert batch_of(curve, curve.points[0]) == 1


def test_lengths_that_differ_by_rounding_are_one_curve_others_are_two(tmp_path: Path) -> None:
    rows = [row(concurrency_or_max_num_seqs=load, osl=200 + load % 3) for load in (1, 2, 4)]
    curves = read(tmp_path, *rows, row(osl=400), row(isl=3000))
    assert [len(curve.points) for curve in curves] == [3, 1, 1]


def test_a_byte_order_mark_and_blank_lines_are_no_matter(tmp_path: Path) -> None:
    path = write(tmp_path, "one.csv", [row()])
    path.write_text("\ufeff" + path.read_text().replace("\n", "\n\n"), encoding="utf-8")
    assert len(read_curves(tmp_path)) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"tpot_ms_mean_or_p50": ""}, "line 3: tpot_ms_mean_or_p50 is '', not a number", id="empty"),
        pytest.param({"tpot_ms_mean_or_p50": "fast"}, "line 3: tpot_ms_mean_or_p50 is 'fast'", id="text"),
        pytest.param({"tpot_ms_mean_or_p50": -3}, "line 3: tpot_ms_mean_or_p50 is -3, and must be above 0", id="-3"),
        pytest.param({"tpot_ms_mean_or_p50": "nan"}, "line 3: tpot_ms_mean_or_p50 is nan", id="nan"),
        pytest.param({"ttft_ms": "inf"}, "line 3: ttft_ms is inf", id="infinite"),
        pytest.param({"concurrency_or_max_num_seqs": 0}, "line 3: concurrency_or_max_num_seqs is 0", id="no load"),
        pytest.param({"osl": 0}, "line 3: osl is 0", id="no output"),
        pytest.param({"osl": 1}, "line 3: osl is 1, and there is no TPOT below 2 tokens", id="one token"),
        pytest.param({"tp": 1.5}, "line 3: tp is 1.5, not a whole number", id="half a GPU"),
        pytest.param({"model": " "}, "line 3: model is empty", id="no model"),
        pytest.param({"x_kind": "mean_in_system"}, "throughput_tok_s is needed", id="open loop without a rate"),
        pytest.param({"concurrency_or_max_num_seqs": 4}, "line 3: concurrency_or_max_num_seqs 4 stands twice", id="2x"),
    ],
)
def test_a_row_that_cannot_be_is_told_with_file_line_and_reason(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(CurveError) as caught:
        read(tmp_path, row(concurrency_or_max_num_seqs=4), row(**change))
    assert "one.csv" in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "line 1: no column model", id="empty file"),
        pytest.param("model,gpu\nx,y\n", "line 1: no column tp", id="other columns"),
        pytest.param(",".join(COLUMNS) + "\n", "no rows", id="header only"),
        pytest.param(",".join(COLUMNS) + "\na,b,1\n", "line 2: 3 fields, the header has 17", id="a row cut short"),
        pytest.param(",".join(COLUMNS) + '\na,"b,1\n', "one.csv, line 2: ", id="an open quote"),
        pytest.param(b"\xff\xfe\x00", "one.csv: ", id="not text"),
    ],
)
def test_a_file_that_is_no_curve_is_told_with_its_reason(text: str | bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CurveError) as caught:
        read_curves(tmp_path)
    assert reason in str(caught.value)
    assert "one.csv" in str(caught.value)


def test_a_folder_that_is_missing_or_empty_is_told(tmp_path: Path) -> None:
    with pytest.raises(CurveError, match="no such folder"):
        read_curves(tmp_path / "nowhere")
    (tmp_path / "README.md").write_text("no curve")
    with pytest.raises(CurveError, match=r"no \.csv file"):
        read_curves(tmp_path)


def test_one_engine_under_several_mixes_is_one_set_up(tmp_path: Path) -> None:
    for number, (isl, osl) in enumerate(((600, 200), (600, 800), (4000, 200))):
        write(tmp_path, f"{number}.csv", [row(isl=isl, osl=osl)])
    write(tmp_path, "other.csv", [row(tp=2)])
    assert sorted(len(each.curves) for each in set_ups(read_curves(tmp_path))) == [1, 3]


def test_equal_lengths_are_two_set_ups_whatever_the_columns_say(tmp_path: Path) -> None:
    for number, source in enumerate(("plain", "plain", "cached", "cached")):
        write(tmp_path, f"{number}.csv", [row(source_url=source, isl=600 + 3000 * (number % 2))])
    groups = set_ups(read_curves(tmp_path))
    assert sorted(tuple(curve.source for curve in each.curves) for each in groups) == [
        ("cached", "cached"),
        ("plain", "plain"),
    ]


def test_without_a_source_they_are_split_by_file(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        write(tmp_path, name, [row()])
    assert len(set_ups(read_curves(tmp_path))) == 2


def test_more_in_the_system_than_slots_is_a_queue_whatever_ttft_says(tmp_path: Path) -> None:
    rows = [
        row(concurrency_or_max_num_seqs=load, x_kind="mean_in_system", throughput_tok_s=40 * load, ttft_ms="",
            tpot_ms_mean_or_p50=20 + load, notes="max_num_seqs=10")
        for load in (4, 8, 16)
    ]  # fmt: skip
    (curve,) = read(tmp_path, *rows)
    sign = first_sign(curve)
    assert sign is not None
    assert (sign.index, sign.why) == (2, "16 in the system, 10 seats")
    assert len(usable_points(curve)) == 2
