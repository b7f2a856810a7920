"""The command of the closed-loop benchmark: which runs, in how many processes, and what is written of them.

Must not: play or judge a run.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.closedloop.comparing import figures_of, plotted, summarised, summary_of, tabled
from benchmarks.closedloop.fleets import FLEETS
from benchmarks.closedloop.hardware import hardware_of
from benchmarks.closedloop.harm import HarmTask, HarmTrial, suffer
from benchmarks.closedloop.harm_report import harm_summarised, harm_summary, harm_tabled
from benchmarks.closedloop.scenarios import SCENARIOS
from benchmarks.closedloop.trial import PolicyName, Task, Trial, run
from benchmarks.result_files import RESULTS, require_clean_tree, write_result
from vllm_autotuner.simulation.profiles import ProfileError, profile_names

__all__ = ["main", "run_command"]

TABLE_WIDTH = 130
"""Columns that the tables need; a terminal has its own idea, a file has none."""
LONGEST_FIRST = (PolicyName.ORACLE, PolicyName.AUTOTUNER, PolicyName.SWEEP)
"""So that no worker begins the longest task last."""


def main(
    scenario: Annotated[list[str] | None, typer.Option(help="A scenario; repeat it for more. Default: all.")] = None,
    policy: Annotated[list[PolicyName] | None, typer.Option(help="A policy; repeat it for more. Default: all.")] = None,
    engine_profile: Annotated[
        list[str] | None, typer.Option(help=f"Engines to draw from: {', '.join(profile_names())}, or a .json file.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random: cases, requests, engines.")] = 1,
    bad: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Instead: fleets in which each value is secretly bad with this chance."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="With --bad: so many seeds, from --seed on.")] = 10,
    quick: Annotated[bool, typer.Option("--quick", help="Under an hour of load each and a coarse oracle.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    save: Annotated[bool, typer.Option("--save", help="Write the figures to benchmarks/results.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write figures and pictures of goodput over time here.")] = None,
) -> None:
    """Run policies through scenarios and compare them."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    names = _known(scenario, of=SCENARIOS if bad is None else FLEETS, what="scenario")
    try:
        hardware = hardware_of(engine_profile)
    except ProfileError as error:
        raise typer.BadParameter(str(error)) from None
    if save:
        require_clean_tree()
    folders = [*([RESULTS] if save else []), *([output] if output is not None else [])]
    if bad is not None:
        tasks_of_harm = [
            HarmTask(scenario=name, seed=each, share=bad, hardware=hardware)
            for each in range(seed, seed + seeds)
            for name in names
        ]
        _harm(console, tasks_of_harm, jobs=jobs, folders=folders)
        return
    policies = list(dict.fromkeys(policy or PolicyName))
    tasks = [
        Task(scenario=name, policy=each, seed=seed, hardware=hardware, quick=quick)
        for name in names
        for each in sorted(policies, key=lambda one: one not in LONGEST_FIRST)
    ]
    trials: dict[str, dict[PolicyName, Trial]] = {name: {} for name in names}
    with _progress(console, total=len(tasks)) as progress, _workers(jobs) as pool:
        for future in as_completed([pool.submit(run, task) for task in tasks]):
            trial = future.result()
            trials[trial.task.scenario][trial.task.policy] = trial
            progress.console.print(
                f"{trial.task.scenario}, {trial.task.policy.value}: {trial.score.goodput:.2f}/s, "
                f"{trial.score.gpu_hours:.2f} GPU-h ({trial.seconds:.0f} s)"
            )
            progress.advance(progress.task_ids[0])
    report = {}
    for name in names:
        drawn = next(task for task in tasks if task.scenario == name).scenario_drawn()
        played = {each: trials[name][each] for each in policies}
        report[name] = figures_of(drawn, played)
        console.print(tabled(drawn, played))
        if output is not None:
            try:
                plotted(drawn, played, folder=output)
            except ImportError:
                console.print("no pictures: install the extra `report` (matplotlib)")
    summary = summary_of(report)
    console.print(summarised(summary))
    figures = {"quick": quick, "seed": seed, "summary": summary, "scenarios": report}
    for folder in folders:
        console.print(f"figures: {write_result('closed_loop', figures, folder=folder)}")


def _harm(console: Console, tasks: Sequence[HarmTask], *, jobs: int, folders: Sequence[Path]) -> None:
    """Play fleets with secretly bad values, and tell what these cost. Each case is kept as it ends."""
    trials: list[HarmTrial] = []
    with _progress(console, total=len(tasks)) as progress, _workers(jobs) as pool:
        for future in as_completed([pool.submit(suffer, task) for task in tasks]):
            trials.append(trial := future.result())
            trials.sort(key=lambda one: (tuple(FLEETS).index(one.task.scenario), one.task.seed))
            lost, below = trial.figures["goodput_lost_to_tuning"], trial.figures["below_ready_floor_seconds"]
            progress.console.print(
                f"{trial.task.scenario} {trial.task.seed}: lost {lost:+.2%}, below the floor {below:.0f} s, "
                f"{', '.join(trial.figures['bad_values']) or 'no bad value'} ({trial.figures['real_seconds']:.0f} s)"
            )
            cases = [{"scenario": one.task.scenario, "seed": one.task.seed, **one.figures} for one in trials]
            figures = {"bad": tasks[0].share, "asked_for": len(tasks), "summary": harm_summary(trials), "cases": cases}
            for folder in folders:
                write_result("bad_candidates", figures, folder=folder)
            progress.advance(progress.task_ids[0])
    console.print(harm_tabled(trials))
    console.print(harm_summarised(harm_summary(trials)))


def _known(given: list[str] | None, *, of: Iterable[str], what: str) -> list[str]:
    known = list(of)
    for name in given or ():
        if name not in known:
            raise typer.BadParameter(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return list(dict.fromkeys(given or known))


@contextmanager
def _progress(console: Console, *, total: int) -> Iterator[Progress]:
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn(), console=console) as bar:
        bar.add_task("runs", total=total)
        yield bar


def _workers(jobs: int) -> ProcessPoolExecutor:
    # Fresh processes: forking one with threads of numpy in it is undefined.
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def run_command() -> None:
    """Run `main` with the arguments of this process."""
    typer.run(main)
