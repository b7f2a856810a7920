"""Seats chosen from the light end of a curve, and what the choice is worth."""

from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.laws import Planted
from tests.benchmarks.measured import curve, row, write

from benchmarks.measured_curves.choose import SHARES, choices, choices_after, seats_held
from benchmarks.measured_curves.priors import LawPriors
from benchmarks.measured_curves.read import Curve, read_curves
from benchmarks.measured_curves.structured_law import StructuredLaw, fit_structured_law

PLANTED = Planted()
MIX = (800, 400)


def one(folder: Path, rows: list[dict[str, Any]]) -> Curve:
    write(folder, "one.csv", rows)
    (found,) = read_curves(folder)
    return found


def test_on_a_curve_that_is_a_line_nothing_is_lost(tmp_path: Path) -> None:
    found = choices(one(tmp_path, curve(PLANTED, MIX)), law=None, held=None)
    assert len(found) == len(SHARES) + 1
    assert [choice.regret for choice in found] == pytest.approx([0] * len(found))
    assert all(choice.steps_apart <= 1 for choice in found)
    # Between the points an objective is allowed 1 % more latency, which is worth a few sequences: never less regret.
    assert all(choice.regret_between >= choice.regret for choice in found)


def test_a_full_pool_is_not_looked_into(tmp_path: Path) -> None:
    found = choices(one(tmp_path, curve(PLANTED, MIX, loads=(2, 4, 8, 16, 64), full_at=20)), law=None, held=20)
    assert {choice.seen for choice in found} == {4}
    assert max(choice.chosen for choice in found) == 20


def test_no_choice_goes_further_than_one_step(tmp_path: Path) -> None:
    found = choices(one(tmp_path, curve(PLANTED, MIX, loads=(2, 4, 8, 16, 64), full_at=50)), law=None, held=None)
    assert max(choice.chosen for choice in found) <= 32


def test_a_computed_pool_bounds_the_choice_but_not_below_what_ran(tmp_path: Path) -> None:
    measured = one(tmp_path, curve(PLANTED, MIX))
    assert max(choice.chosen for choice in choices(measured, law=None, held=5)) == 32
    assert max(choice.chosen for choice in choices(measured, law=None, held=45)) == 45


def test_past_the_objective_there_is_no_goodput(tmp_path: Path) -> None:
    # The line of 2, 4, 8 foresees 26 ms at 16; 60 came, and nobody had seen it.
    rows = [row(concurrency_or_max_num_seqs=load, tpot_ms_mean_or_p50=tpot, ttft_ms=100 * load**0.3)
            for load, tpot in ((2, 19), (4, 20), (8, 22), (16, 60))]  # fmt: skip
    found = choices_after(one(tmp_path, rows), 3, law=None, held=None)
    lost = [choice for choice in found if choice.goodput == 0]
    assert lost
    assert all(choice.regret == 1 for choice in lost)
    assert all(choice.objective is not None and 8 < choice.chosen <= 16 for choice in lost)


def test_too_few_points_and_no_law_are_no_choice(tmp_path: Path) -> None:
    assert choices(one(tmp_path, [row()]), law=None, held=None) == ()


def test_one_latency_at_every_load_is_judged_all_the_same(tmp_path: Path) -> None:
    rows = [row(concurrency_or_max_num_seqs=load, tpot_ms_mean_or_p50=20) for load in (2, 4, 8)]
    curve = one(tmp_path, rows)
    law = fit_structured_law(Planted(per_prefill_token=0.0).samples([MIX]), priors=LawPriors())
    assert isinstance(law, StructuredLaw)
    for choice in choices(curve, law=law, held=None):
        assert choice.best == 8
        assert choice.regret == pytest.approx(max(0, 1 - choice.chosen / 8))


def test_sequences_are_counted_at_their_mean_length() -> None:
    assert seats_held(100_000, prompt_tokens=1500, output_tokens=1000, margin=0) == 50
    assert seats_held(100_000, prompt_tokens=1500, output_tokens=1000) == pytest.approx(45)
