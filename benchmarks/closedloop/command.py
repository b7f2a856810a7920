"""The command of the closed-loop benchmark: which runs, in how many processes, and what is written of them.

Figures go to stdout where `--json` asks for them and everything else to stderr, so that a pipe reads one object.
Must not: play or judge a run.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.closedloop.fleets import FLEETS
from benchmarks.closedloop.hardware import hardware_of
from benchmarks.closedloop.harm import HarmTask, HarmTrial, suffer
from benchmarks.closedloop.harm_report import harm_summarised, harm_summary, harm_tabled
from benchmarks.closedloop.kept_trials import KeptTrials, UnusableFolderError
from benchmarks.closedloop.scenarios import SCENARIOS
from benchmarks.closedloop.summary import Played, case_figures, summary_of
from benchmarks.closedloop.tables import case_table, summary_table
from benchmarks.closedloop.trial import WITHOUT, CaseOf, PolicyName, Setting, Task, Trial, run
from benchmarks.result_files import RESULTS, provenance, require_clean_tree, write_result
from vllm_autotuner.simulation.profiles import ProfileError, profile_names

__all__ = ["main", "run_command", "workers"]

TABLE_WIDTH = 150
"""Columns that the tables need; a terminal has its own idea, a file has none."""
LONGEST_FIRST = (PolicyName.AUTOTUNER, PolicyName.REPLICAS_ONLY, PolicyName.FLAGS_ONLY, PolicyName.ORACLE)
"""So that no worker begins the longest task last."""
ALWAYS = (PolicyName.AUTOTUNER, PolicyName.ORACLE, PolicyName.ORACLE_FROZEN, PolicyName.KEDA_CALIBRATED)
"""Played for every seed."""
WITH_FIXED_GPUS = (
    PolicyName.AUTOTUNER,
    PolicyName.ORACLE,
    PolicyName.ORACLE_FROZEN,
    PolicyName.DEFAULTS,
    PolicyName.SWEEP_HPA,
)
"""Where replicas are fixed an autoscaler is whoever wrote the flags of the start."""
Key: TypeAlias = tuple[str, int]
EXAMPLES = """Play the product's decisions against rivals, ablations and an oracle, on days of load in virtual time.

Examples:

  benchmarks/closed_loop.py --quick --scenario cap-bound --policy autotuner --json

  benchmarks/closed_loop.py --seed 100 --seeds 5 --output out/

  benchmarks/closed_loop.py --setting fixed --policy autotuner --policy defaults

  benchmarks/closed_loop.py --quick --scenario kv-fp8 --policy autotuner --policy without-kv-cache-dtype

  benchmarks/closed_loop.py --scenario wedge --exact

  benchmarks/closed_loop.py --seed 100 --seeds 5 --save --keep ~/days

  benchmarks/closed_loop.py --bad 0.3 --seeds 10
"""


def main(
    scenario: Annotated[list[str] | None, typer.Option(help="A scenario; repeat it for more. Default: all.")] = None,
    policy: Annotated[
        list[PolicyName] | None,
        typer.Option(help="A policy; repeat it for more. Default: all. The oracle is always played with others."),
    ] = None,
    setting: Annotated[Setting, typer.Option(help="Whether GPUs come on demand or are a fixed number.")] = (
        Setting.ON_DEMAND
    ),
    engine_profile: Annotated[
        list[str] | None, typer.Option(help=f"Engines to draw from: {', '.join(profile_names())}, or a .json file.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random: cases, requests, engines, noise.")] = 1,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="So many seeds, from --seed on. Default: 1; 10 with --bad.")
    ] = None,
    rival_seeds: Annotated[
        int, typer.Option(min=0, help="Rivals but keda-calibrated, and ablations, are played for so many of the seeds.")
    ] = 2,
    noise: Annotated[str, typer.Option(help="on: pods, starts and scrapes differ; off: they do not.")] = "on",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Not at the default pace: 12 changes a day, 5 min apart; early events."),
    ] = False,
    router: Annotated[
        str, typer.Option(help="even: as the scenario says; warm: new pods get 0.3 of the requests of a warm one.")
    ] = "even",
    reads: Annotated[
        str, typer.Option(help="new: each look reads what is new, as the product does; whole: everything anew.")
    ] = "new",
    exact: Annotated[bool, typer.Option("--exact", help="Play all of each day; nothing is extrapolated.")] = False,
    bad: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Instead: fleets in which each value is secretly bad with this chance."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="A folder outside the repository that keeps each day, for runs of the same code to take from there."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Write the figures to benchmarks/results, anew after each case.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Write the figures here, anew after each case.")] = None,
) -> None:
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=TABLE_WIDTH)
    if noise not in ("on", "off"):
        raise typer.BadParameter("--noise is on or off")
    if router not in ("even", "warm"):
        raise typer.BadParameter("--router is even or warm")
    if reads not in ("new", "whole"):
        raise typer.BadParameter("--reads is new or whole")
    names = _known(scenario, of=SCENARIOS if bad is None else FLEETS, what="scenario")
    try:
        hardware = hardware_of(engine_profile)
    except ProfileError as error:
        raise typer.BadParameter(str(error)) from None
    if save:
        require_clean_tree()
    if bad is not None and keep is not None:
        raise typer.BadParameter("--keep keeps days of the closed loop, and --bad plays others")
    try:
        kept = None if keep is None else KeptTrials.at(keep)
    except UnusableFolderError as error:
        raise typer.BadParameter(f"--keep {error}") from None
    folders = [*([RESULTS] if save else []), *([output] if output is not None else [])]
    if bad is not None:
        harms = [
            HarmTask(scenario=name, seed=each, share=bad, hardware=hardware)
            for each in range(seed, seed + (seeds or 10))
            for name in names
        ]
        summary = _harm(console, harms, jobs=jobs, folders=folders)
        if as_json:
            print(json.dumps(summary))
        return
    wanted = policy or (PolicyName if setting is Setting.ON_DEMAND else WITH_FIXED_GPUS)
    # An exact run of some policies is there to check what shortening costs them.
    policies = list(dict.fromkeys([*([] if exact and policy else [PolicyName.ORACLE]), *wanted]))
    cases = [
        CaseOf(
            scenario=name,
            seed=each,
            hardware=hardware,
            setting=setting,
            quick=quick,
            noise=noise == "on",
            exact=exact,
            prefers_warm=router == "warm",
            reads_whole=reads == "whole",
        )
        for each in range(seed, seed + (seeds or 1))
        for name in names
    ]
    about = {
        "setting": setting.value,
        "seeds": list(range(seed, seed + (seeds or 1))),
        "noise": noise,
        "router": router,
        "reads": reads,
        "pace": "compressed: cooldown 5m, bake 2m, 12 changes a day" if quick else "the product's defaults",
        "played": "every hour" if exact else "until settled; see extrapolated_from_hours of each",
        "quick": quick,
        "asked_for": len(cases),
    }
    name = "closed_loop_exact" if exact else "closed_loop" if setting is Setting.ON_DEMAND else "closed_loop_fixed"
    if policy and any(one in WITHOUT for one in policy):
        name = "ablations"
    figures: dict[str, Any] = {}
    finished: list[Played] = []
    few = seed + (rival_seeds if policy is None else seeds or 1)
    asked = {
        case.key: [one for one in policies if (one in ALWAYS or case.seed < few) and case.tells(one)] for case in cases
    }
    for played in _play(console, cases, asked, jobs=jobs, kept=kept):
        finished.append(played)
        console.print(case_table(played))
        figures = {**about, "summary": summary_of(finished), "cases": [case_figures(one) for one in finished]}
        for folder in folders:
            write_result(name, figures, folder=folder)
    console.print(summary_table(figures["summary"]))
    if as_json:
        print(json.dumps({"provenance": provenance(), **figures}, allow_nan=False))


main.__doc__ = EXAMPLES


def _play(
    console: Console,
    cases: Sequence[CaseOf],
    asked: Mapping[Key, Sequence[PolicyName]],
    *,
    jobs: int,
    kept: KeptTrials | None,
) -> Iterator[dict[PolicyName, Trial]]:
    """Yield each case as its last policy ends."""
    trials: dict[Key, dict[PolicyName, Trial]] = {}
    tasks = [
        Task(case=case, policy=each)
        for case in cases
        for each in sorted(asked[case.key], key=lambda one: one not in LONGEST_FIRST)
    ]
    with _progress(console, total=len(tasks)) as progress, workers(jobs) as pool:
        for trial in _trials(tasks, pool, kept):
            case = trial.task.case
            played = trials.setdefault(case.key, {})
            played[trial.task.policy] = trial
            progress.console.print(
                f"{case.scenario} {case.seed}, {trial.task.policy.value}: {trial.score.attainment:.1%} attained, "
                f"{trial.score.gpu_hours:.1f} GPU-h ({trial.seconds:.0f} s)"
            )
            progress.advance(progress.task_ids[0])
            if len(played) == len(asked[case.key]):
                yield {name: played[name] for name in asked[case.key]}


def _trials(tasks: Sequence[Task], pool: Executor, kept: KeptTrials | None) -> Iterator[Trial]:
    """Yield those that are known, then the others as they end."""
    known = [None if kept is None else kept.known(task) for task in tasks]
    futures = [pool.submit(run, task) for task, trial in zip(tasks, known, strict=True) if trial is None]
    yield from (trial for trial in known if trial is not None)
    try:
        for future in as_completed(futures):
            trial = future.result()
            if kept is not None:
                kept.keep(trial)
            yield trial
    except BaseException:
        # Else the pool plays all that is queued before the error is told.
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _harm(console: Console, tasks: Sequence[HarmTask], *, jobs: int, folders: Sequence[Path]) -> dict[str, Any]:
    """Play fleets with secretly bad values, and tell what these cost. Each case is kept as it ends."""
    trials: list[HarmTrial] = []
    figures: dict[str, Any] = {}
    with _progress(console, total=len(tasks)) as progress, workers(jobs) as pool:
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
    return figures


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


def workers(jobs: int) -> ProcessPoolExecutor:
    """Return so many processes, which end with this one."""
    # Fresh processes: forking one with threads of numpy in it is undefined.
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """Let this worker end when the command has been killed: it would play all that is queued, for twenty minutes."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def run_command() -> None:
    """Run `main` with the arguments of this process."""
    typer.run(main)
