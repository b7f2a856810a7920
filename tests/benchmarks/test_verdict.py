"""The benchmark of the verdict: that it runs, what it counts, and its error rates on noise that is fixed here."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import typer
from tests.change.test_comparison import variants, with_means
from typer.testing import CliRunner

from benchmarks.uneven_routers import Favouring
from benchmarks.verdicts.command import main
from benchmarks.verdicts.drawing import draw_case
from benchmarks.verdicts.in_place import PlayedInPlace, alarms_in_bake
from benchmarks.verdicts.noise import COLUMNS, Effects, Noise, drawn, fitted
from benchmarks.verdicts.page import verdict, verdict_in_place
from benchmarks.verdicts.questions import QUESTIONS, answer
from benchmarks.verdicts.rates import Rates, Verdict
from benchmarks.verdicts.simulated import effect_on_tpot
from benchmarks.verdicts.uneven import blinded, rates_at, requests_ratio
from benchmarks.verdicts.variants import Bed, Played
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.change.verdict import Judgement
from vllm_autotuner.simulation.traffic import ClientRequest

APP = typer.Typer()
APP.command()(main)


def noise(*, ttft: float, tpot: float, memory: float = 0.2, standing: float = 0.0) -> Noise:
    """Normal deviations of these widths, of means half as wide, each window keeping `memory` of the one before."""
    draws = np.random.default_rng(11)
    return Noise(
        seed=1,
        standing=np.array([standing, standing / 10] * 2),
        deviations=draws.normal(size=(200, 4)) * [ttft, tpot, ttft / 2, tpot / 2],
        levels=np.log([0.8, 0.03, 0.4, 0.025]) + draws.normal(size=(200, 4)) * ([0.2, 0.03] * 2),
        memory=np.array([memory] * 4),
        shapes=tuple(variants((0.8, 0.03), (0.8, 0.03), windows=1) * 200),
        length=timedelta(seconds=60),
    )


NOISES = (noise(ttft=0.15, tpot=0.02), noise(ttft=0.3, tpot=0.05, standing=0.05), noise(ttft=0.6, tpot=0.2, memory=0.0))
BY_NAME = {question.name: question for question in QUESTIONS}


@pytest.mark.parametrize("name", ["tpot", "ttft"])
def test_equals_are_seldom_rejected(name: str) -> None:
    found = answer(BY_NAME[name], effect=0.0, noises=NOISES, trials=400, source=np.random.default_rng(1))
    assert found.rates.rate(Judgement.REVERT) <= 0.05


def test_a_longer_tpot_that_breaks_its_objective_is_not_promoted() -> None:
    paid = BY_NAME["ttft_paid_with_tpot"]
    found = answer(paid, effect=0.2, noises=NOISES, trials=400, source=np.random.default_rng(2))
    assert found.breaking.total > 200
    assert found.breaking.rate(Judgement.KEEP) <= 0.01


def test_the_verdict_has_power_at_all() -> None:
    """One that always says Inconclusive would pass the two tests above."""
    calm = NOISES[:1]
    better = answer(BY_NAME["tpot"], effect=-0.3, noises=calm, trials=50, source=np.random.default_rng(3))
    worse = answer(BY_NAME["tpot"], effect=0.5, noises=calm, trials=50, source=np.random.default_rng(4))
    assert better.rates.rate(Judgement.KEEP) >= 0.8
    assert worse.rates.rate(Judgement.REVERT) >= 0.9


def test_drawn_arms_have_the_effect_and_the_noise_they_are_given() -> None:
    one = noise(ttft=0.3, tpot=0.05, memory=0.5)
    pairs = drawn(one, effects=Effects(ttft=0.5, tpot=1.2), windows=2000, source=np.random.default_rng(5))
    ratios = np.log([[getattr(p.candidate, name) / getattr(p.reference, name) for name in COLUMNS] for p in pairs])
    assert np.exp(ratios.mean(axis=0)) == pytest.approx([0.5, 1.2, 0.5, 1.2], rel=0.05)
    assert ratios.std(axis=0) == pytest.approx([0.3, 0.05, 0.15, 0.025], rel=0.15)
    assert np.corrcoef(ratios[1:, 0], ratios[:-1, 0])[0, 1] == pytest.approx(0.5, abs=0.08)


def test_what_is_fitted_is_what_was_played() -> None:
    pairs = tuple(with_means(variants((0.6, 0.033), (0.5, 0.03)), ttft=1.3, tpot=1.05))
    played = Played(case=draw_case(1), steps=1.0, pairs=pairs)
    (found,) = fitted([played, replace(played, pairs=pairs[:7])])
    assert np.exp(found.standing) == pytest.approx([1.2, 1.1, 1.3, 1.05], rel=0.01)
    assert np.array(found.centre) == pytest.approx([0.5, 0.03], rel=0.02)
    assert found.length == timedelta(seconds=30)
    assert effect_on_tpot(played) == pytest.approx(1.1, rel=0.01)


def test_a_difference_that_chance_explains_is_no_difference_between_pods() -> None:
    """Drawn from pods that are equal: without the correction their mean would be drawn again, with chance on top."""
    equal = noise(ttft=0.3, tpot=0.05, memory=0.0)
    plays = []
    for seed in range(60):
        pairs = drawn(equal, effects=Effects(), windows=12, source=np.random.default_rng(seed))
        plays.append(Played(case=draw_case(1), steps=1.0, pairs=tuple(pairs)))
    spread = np.std([found.standing for found in fitted(plays)], axis=0)
    assert (spread < 0.9 * np.array([0.3, 0.05, 0.15, 0.025]) / np.sqrt(12)).all()
    widths = np.mean([found.deviations.std(axis=0) for found in fitted(plays)], axis=0)
    assert widths == pytest.approx([0.3, 0.05, 0.15, 0.025], rel=0.1)


def test_rates_know_how_sure_they_are() -> None:
    rates = Rates()
    assert rates.at_most(Judgement.KEEP) == 1.0
    for service in range(100):
        rates.add(Verdict(judgement=Judgement.INCONCLUSIVE, windows=10), service=service)
    assert rates.rate(Judgement.KEEP) == 0.0
    assert rates.at_most(Judgement.KEEP) == pytest.approx(0.037, abs=0.001)  # Wilson: z^2 / (n + z^2)
    assert rates.figures()["windows"] == 10


def counted(*kept: int, each: int = 100) -> Rates:
    """So many verdicts of each service were Keep, of `each`."""
    rates = Rates()
    for service, keeps in enumerate(kept):
        for index in range(each):
            judgement = Judgement.KEEP if index < keeps else Judgement.INCONCLUSIVE
            rates.add(Verdict(judgement=judgement, windows=10), service=service)
    return rates


def test_verdicts_on_one_service_are_not_as_many_independent_ones() -> None:
    alike, apart, none = counted(*[10] * 20), counted(*[100, 100, *[0] * 18]), counted(*[0] * 20)
    assert [each.rate(Judgement.KEEP) for each in (alike, apart, none)] == [0.1, 0.1, 0.0]
    assert alike.at_most(Judgement.KEEP) == apart.at_most(Judgement.KEEP)  # nothing tells how much they resemble
    assert apart.independent(Judgement.KEEP) == pytest.approx(20, abs=1)
    assert none.at_most(Judgement.KEEP) == pytest.approx(0.161, abs=0.001)  # Wilson, of 20 services
    mixed = counted(*[5, 15] * 10)
    # p (1 - p) = 0.09, and the variance between services is 0.0025: 36 times the services know as much.
    assert mixed.independent(Judgement.KEEP) == pytest.approx(36 * 19, rel=0.01)
    assert mixed.at_most(Judgement.KEEP) < apart.at_most(Judgement.KEEP)
    assert mixed.with_any(Judgement.KEEP) == 20
    assert apart.figures()["keep_services"] == 2


def test_a_case_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    assert draw_case(3) == draw_case(3)
    assert draw_case(3) != draw_case(4)
    assert draw_case(3).step_factor(1.2) < 1.2


def test_a_quick_run(tmp_path: Path) -> None:
    found = CliRunner().invoke(APP, ["--quick", "--seed", "7000", "--output", str(tmp_path)])
    assert found.exit_code == 0, found.output
    figures = json.loads((tmp_path / "verdict.json").read_text())
    assert figures["summary"]["cases"] == 2
    assert 1.05 < figures["summary"]["tpot_of_the_played_regression_median"] < 1.5
    assert set(figures["curves"]) == set(BY_NAME)
    assert (tmp_path / "verdict.png").stat().st_size > 10_000
    text = "\n".join(verdict(figures))
    assert "A change for TPOT; TTFT stays:" in text
    assert "| equals rejected (Revert) |" in text


def test_a_quick_run_in_place(tmp_path: Path) -> None:
    found = CliRunner().invoke(APP, ["--quick", "--in-place", "--seed", "7000", "--output", str(tmp_path)])
    assert found.exit_code == 0, found.output
    figures = json.loads((tmp_path / "verdict_in_place.json").read_text())
    assert set(figures["by_windows_before"]) == {"1", "3", "10"}
    assert all(rates["equals"]["trials"] > 0 for rates in figures["by_windows_before"].values())
    text = "\n".join(verdict_in_place(figures))
    assert "| 10 | equal, for TPOT |" in text
    assert "The bake, 30 windows compared with ten before" in text


def test_a_router_that_favours_a_pod_sends_it_its_share() -> None:
    case = draw_case(2)
    router = Favouring(2.0, seed=1)
    bed = Bed(case, seed=1, router=router)
    pods = [bed.start() for _ in range(3)]
    bed.fleet.advance(1.0)
    request = ClientRequest(number=0, at=0.0, prompt_tokens=10, output_tokens=10, max_tokens=10)
    assert len({router.choose(request, pods) for _ in range(100)}) == 3
    router.favoured = pods[1:2]
    chosen = [router.choose(request, pods) for _ in range(4000)]
    assert [chosen.count(pod) / 4000 for pod in pods] == pytest.approx([0.25, 0.5, 0.25], abs=0.03)


def test_arms_that_got_as_much_are_judged_alike_with_and_without_the_comparison_of_the_traffic() -> None:
    pairs = tuple(variants((0.3, 0.03), (0.5, 0.03), requests=(1.0, 2.0)))
    uneven = Played(case=draw_case(1), steps=1.0, pairs=pairs)
    even = replace(uneven, pairs=tuple(blinded(pair) for pair in pairs))
    assert {pair.candidate.requests_per_second for pair in even.pairs} == {2.0}
    assert [pair.candidate.ttft_seconds for pair in even.pairs] == [pair.candidate.ttft_seconds for pair in pairs]
    for played, kept in ((uneven, 0.0), (even, 1.0)):
        found = rates_at([played], target=ChangeTarget.TTFT, breaks=1.0, source=np.random.default_rng(1))
        assert found.compared[0].rate(Judgement.KEEP) == kept
        assert found.blind[0].rate(Judgement.KEEP) == 1.0
    assert requests_ratio([uneven]) == 0.5


def test_a_bake_of_equals_is_quiet_and_one_of_tokens_twice_as_slow_is_not() -> None:
    pairs = variants((0.5, 0.03), (0.5, 0.03), windows=50)
    before, calm = tuple(p.reference for p in pairs[:10]), tuple(p.candidate for p in pairs[20:])
    slow = tuple(one.updated(tpot_seconds=0.06) for one in calm)
    for baked, alarms in ((calm, 0.0), (slow, 1.0)):
        one = PlayedInPlace(seed=1, before=before, after=(), baked=baked)
        _, breaking = alarms_in_bake([one], target=ChangeTarget.TPOT, breaks=2.0, source=np.random.default_rng(1))
        assert breaking.total == 20
        assert breaking.rate(Judgement.REVERT) == alarms


def test_the_cases_that_chose_the_method_cannot_judge_it() -> None:
    found = CliRunner().invoke(APP, ["--quick", "--seed", "1000", "--save"])
    assert found.exit_code == 2
    assert "cannot judge it" in " ".join(found.output.replace("│", " ").split())
