"""The command: play cases, fit their noise, draw the operating curve, write what was found.

Must not: play, draw or judge by itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import numpy as np
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from benchmarks.result_files import RESULTS, require_clean_tree, write_result
from benchmarks.verdicts.drawing import draw_case
from benchmarks.verdicts.in_place import BAKED, BASELINES, PlayedInPlace, alarms_in_bake, play_in_place, rates_in_place
from benchmarks.verdicts.noise import Noise, fitted
from benchmarks.verdicts.picture import plotted
from benchmarks.verdicts.questions import EFFECTS, FEWEST, QUESTIONS, WINDOWS, Answer, Question, answer
from benchmarks.verdicts.simulated import effect_on_tpot, rates_of
from benchmarks.verdicts.uneven import SHARES
from benchmarks.verdicts.uneven import figures_of as uneven_figures
from benchmarks.verdicts.variants import Played, play
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.change.verdict import Judgement

__all__ = ["main", "run_command"]

T = TypeVar("T")

TUNING_SEEDS: Final = range(1000, 2000)
"""The method and its thresholds were chosen by cases with these seeds: figures about it come from others."""
REGRESSION: Final = 0.2
"""The TPOT regression that must not be promoted: 20 % longer."""
DECISIVE: Final = 2
"""Times the trials at the two effects that have a limit. More would cost much and say little: services count."""


def main(
    cases: Annotated[int, typer.Option(min=1, help="Cases to play.")] = 40,
    trials: Annotated[int, typer.Option(min=1, help="Verdicts a point of the curve.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the first case; the others follow.")] = 5000,
    quick: Annotated[bool, typer.Option("--quick", help="A case or two and few trials: does it run?")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    in_place: Annotated[bool, typer.Option("--in-place", help="Before against after instead of two arms.")] = False,
    routers: Annotated[bool, typer.Option("--routers", help="Arms that get unequal shares of the requests.")] = False,
    save: Annotated[bool, typer.Option("--save", help="Write the figures to benchmarks/results.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write figures and a picture of the curve here.")] = None,
) -> None:
    """Measure how often the verdict on a change errs."""
    console = Console()
    if quick:
        cases, trials = 1 if in_place else 2, 10
    seeds = range(seed, seed + cases)
    if save and set(seeds) & set(TUNING_SEEDS):
        raise typer.BadParameter(f"seeds {TUNING_SEEDS[0]} to {TUNING_SEEDS[-1]} chose the method and cannot judge it")
    if save:
        require_clean_tree()
    if in_place:
        figures = {"quick": quick, "seeds": [seeds[0], seeds[-1]], **_in_place(seeds, jobs=jobs, console=console)}
        console.print_json(data=figures)
        _written("verdict_in_place", figures, save=save, output=output, console=console)
        return
    if routers:
        figures = {"quick": quick, "seeds": [seeds[0], seeds[-1]], **_routers(seeds, jobs=jobs, console=console)}
        console.print_json(data=figures)
        _written("verdict_routers", figures, save=save, output=output, console=console)
        return
    same, slower = _played(seeds, jobs=jobs, console=console)
    noises = fitted(same)
    source = np.random.default_rng([seed, 73])
    curves = {each.name: _curve(each, noises, trials=trials, source=source, console=console) for each in QUESTIONS}
    figures = {
        "quick": quick,
        "seeds": [seeds[0], seeds[-1]],
        "summary": _summary(curves, same, slower, noises, source=source),
        "curves": {name: [_figures(each) for each in curve] for name, curve in curves.items()},
        "questions": {each.name: each.told for each in QUESTIONS},
    }
    console.print(_tabled(figures))
    console.print_json(data=figures["summary"])
    if output is not None:
        try:
            console.print(f"picture: {plotted(figures, folder=output)}")
        except ImportError:
            console.print("no picture: install the extra `report` (matplotlib)")
    _written("verdict", figures, save=save, output=output, console=console)


def _written(name: str, figures: Mapping[str, Any], *, save: bool, output: Path | None, console: Console) -> None:
    for folder in [*([RESULTS] if save else []), *([output] if output is not None else [])]:
        console.print(f"figures: {write_result(name, figures, folder=folder)}")


def _one(seed: int, *, regression: float, share: float | None = None) -> Played:
    case = draw_case(seed)
    return play(case, steps=case.step_factor(1 + regression), windows=WINDOWS + 2, seed=seed, share=share)


def _one_in_place(seed: int, *, regression: float) -> PlayedInPlace:
    case = draw_case(seed)
    return play_in_place(case, steps=case.step_factor(1 + regression), seed=seed)


def _in_place(seeds: Sequence[int], *, jobs: int, console: Console) -> dict[str, Any]:
    """Rates by the number of windows before the change: of equals, and of what a longer TPOT truly breaks."""
    with _progress(console) as progress:
        task = progress.add_task("played", total=2 * len(seeds))
        found: dict[float, list[PlayedInPlace]] = {0.0: [], REGRESSION: []}
        for regression, played in found.items():
            for one in _mapped(partial(_one_in_place, regression=regression), seeds, jobs=jobs):
                played.append(one)
                progress.advance(task)
    source, rows = np.random.default_rng([seeds[0], 74]), {}
    for baseline in BASELINES:
        rates = partial(rates_in_place, baseline=baseline, source=source)
        equals = rates(found[0.0], target=ChangeTarget.TPOT)[0]
        helped = rates(found[0.0], target=ChangeTarget.TTFT, ttft=0.5)[0]
        breaking = rates(found[REGRESSION], target=ChangeTarget.TTFT, ttft=0.5, breaks=1 + REGRESSION)[1]
        late = rates(found[0.0], target=ChangeTarget.TTFT, ttft=1 + REGRESSION)[1]
        rows[str(baseline)] = {
            "equals": equals.figures(),
            "equals_for_ttft": rates(found[0.0], target=ChangeTarget.TTFT)[0].figures(),
            "ttft_breaks_its_objective": late.figures(),
            "ttft_halved": helped.figures(),
            "ttft_halved_but_tpot_breaks_its_objective": breaking.figures(),
        }
    alarms = partial(alarms_in_bake, target=ChangeTarget.TPOT, source=source)
    bake = {
        "equals": alarms(found[0.0])[0].figures(),
        "tpot_breaks_its_objective": alarms(found[REGRESSION], breaks=1 + REGRESSION)[1].figures(),
    }
    return {"cases": len(seeds), "by_windows_before": rows, "bake_windows": BAKED, "bake": bake}


def _routers(seeds: Sequence[int], *, jobs: int, console: Console) -> dict[str, Any]:
    """Rates by the candidate's share of the requests, with and without the comparison of the traffic."""
    found: dict[str, Any] = {}
    source = np.random.default_rng([seeds[0], 75])
    with _progress(console) as progress:
        task = progress.add_task("played", total=2 * len(SHARES) * len(seeds))
        for share in SHARES:
            played: list[list[Played]] = []
            for regression in (0.0, REGRESSION):
                played.append([])
                for one in _mapped(partial(_one, regression=regression, share=share), seeds, jobs=jobs):
                    played[-1].append(one)
                    progress.advance(task)
            found[f"{share:g}"] = uneven_figures(played[0], played[1], regression=REGRESSION, source=source)
    return {"cases": len(seeds), "by_share": found}


def _played(seeds: Sequence[int], *, jobs: int, console: Console) -> tuple[list[Played], list[Played]]:
    """Each case with nothing changed, and with a longer TPOT."""
    with _progress(console) as progress:
        task = progress.add_task("played", total=2 * len(seeds))
        found: list[list[Played]] = []
        for regression in (0.0, REGRESSION):
            found.append([])
            for one in _mapped(partial(_one, regression=regression), seeds, jobs=jobs):
                found[-1].append(one)
                progress.advance(task)
    return found[0], found[1]


def _mapped(work: Callable[[int], T], seeds: Sequence[int], *, jobs: int) -> Iterable[T]:
    if jobs == 1:
        return map(work, seeds)
    # Fresh processes: forking one with threads of numpy in it is undefined.
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn")).map(work, seeds)


def _curve(
    question: Question, noises: Sequence[Noise], *, trials: int, source: np.random.Generator, console: Console
) -> list[Answer]:
    with _progress(console) as progress:
        return [
            answer(
                question,
                effect=effect,
                noises=noises,
                trials=trials * (DECISIVE if effect in (0.0, REGRESSION) else 1),
                source=source,
            )
            for effect in progress.track(EFFECTS, description=question.name)
        ]


def _summary(
    curves: Mapping[str, Sequence[Answer]], same: Sequence[Played], slower: Sequence[Played], noises: Sequence[Noise],
    *, source: np.random.Generator,
) -> dict[str, Any]:  # fmt: skip
    drawn = {(name, one.effect): one for name, curve in curves.items() for one in curve}
    a_a = [drawn[name, 0.0].rates for name in ("tpot", "ttft")]
    paid = drawn["ttft_paid_with_tpot", REGRESSION]
    trials = paid.rates.total
    few = {
        (name, effect): answer(question, effect=effect, noises=noises, trials=trials, source=source, windows=FEWEST)
        for name, question in {each.name: each for each in QUESTIONS}.items()
        for effect in (0.0, REGRESSION)
    }
    played = [rates_of(same, target=target, source=source)[0] for target in (ChangeTarget.TTFT, ChangeTarget.TPOT)]
    regressed, breaking = rates_of(slower, target=ChangeTarget.TTFT, ttft=0.5, source=source)
    real = [effect for one in slower if (effect := effect_on_tpot(one)) is not None]
    spread = [np.std(noise.deviations, axis=0, ddof=1) for noise in noises]
    worse = [one.breaking.rate(Judgement.KEEP) for one in curves["ttft"] if 0.1 <= one.effect <= 0.5]
    late = drawn["ttft", REGRESSION].breaking
    return {
        "cases": len(same),
        "cases_with_enough_data": len(noises),
        "wrong_rejections_of_equals": max(one.rate(Judgement.REVERT) for one in a_a),
        "wrong_rejections_of_equals_95_pct_below": max(one.at_most(Judgement.REVERT) for one in a_a),
        "wrong_rejections_of_equals_played": max(one.rate(Judgement.REVERT) for one in played),
        "harmful_promotions": paid.breaking.rate(Judgement.KEEP),
        "harmful_promotions_95_pct_below": paid.breaking.at_most(Judgement.KEEP),
        "harmful_promotions_played": breaking.rate(Judgement.KEEP),
        "late_promotions": late.rate(Judgement.KEEP),
        "late_promotions_95_pct_below": late.at_most(Judgement.KEEP),
        "late_promotions_worst_effect": max(worse),
        "promotions_of_20_pct_slower_inside_the_objective": paid.promoted_inside,
        "promotions_for_tpot_of_20_pct_slower": drawn["tpot", REGRESSION].rates.rate(Judgement.KEEP),
        "wrong_rejections_of_equals_in_few_windows": max(
            few[name, 0.0].rates.rate(Judgement.REVERT) for name in ("tpot", "ttft")
        ),
        "harmful_promotions_in_few_windows": few["ttft_paid_with_tpot", REGRESSION].breaking.rate(Judgement.KEEP),
        "regressions_found_for_what_they_are": breaking.rate(Judgement.REVERT),
        "regressions_found_for_what_they_are_drawn": paid.breaking.rate(Judgement.REVERT),
        "tpot_of_the_played_regression_median": float(np.median(real)) if real else None,
        "played_regressions_judged": regressed.total,
        "noise_of_a_window_ttft_median": float(np.median([each[0] for each in spread])) if spread else None,
        "noise_of_a_window_tpot_median": float(np.median([each[1] for each in spread])) if spread else None,
        "noise_kept_by_the_next_window": [round(float(each), 3) for each in noises[0].memory] if noises else None,
    }


def _figures(one: Answer) -> dict[str, Any]:
    return {"effect": one.effect, **one.rates.figures(), "breaking": one.breaking.figures()}


def _tabled(figures: Mapping[str, Any]) -> Table:
    table = Table(
        "question", "effect", "Keep", "Revert", "Inconclusive", "windows", "Keep, though it breaks an objective"
    )
    for name, curve in figures["curves"].items():
        for one in curve:
            rates = [f"{one[judgement.value.lower()]:.1%}" for judgement in Judgement]
            broken = f"{one['breaking']['keep']:.2%}" if one["breaking"]["trials"] else ""
            table.add_row(name, f"{one['effect']:+.0%}", *rates, f"{one['windows']:.1f}", broken)
    return table


def _progress(console: Console) -> Progress:
    return Progress(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)


def run_command() -> None:
    """Run `main` with the arguments of this process."""
    typer.run(main)
