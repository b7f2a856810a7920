"""The command: which services, in how many processes, and what is written of them.

Must not: draw, play, judge or count by itself.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from benchmarks.closedloop.command import workers
from benchmarks.randomservices.judging import Came, Outcome, outcome_of, row_of
from benchmarks.randomservices.page import (
    CLASS_COLUMNS,
    EFFECT_COLUMNS,
    FORECAST_COLUMNS,
    class_row,
    effect_row,
    forecast_row,
)
from benchmarks.randomservices.playing import EPOCH
from benchmarks.randomservices.summary import figures_of
from benchmarks.result_files import require_clean_tree, write_result
from vllm_autotuner.cli.diagnosis.text import panel, seconds

__all__ = ["main", "run_command"]

LOOKED_AT: Final = range(6000, 6500)
"""Services with these seeds were looked at one by one to find what to mend: figures about it come from others."""
WIDTH: Final = 150
"""Columns that the tables need; a file has none of its own."""


def main(
    services: Annotated[int, typer.Option(min=1, help="Services to draw.")] = 250,
    seed: Annotated[int, typer.Option(help="Of the first service; the others follow.")] = 5000,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON for each service, and one with the figures.")
    ] = False,
    save: Annotated[bool, typer.Option("--save", help="Write benchmarks/results/random_services.json.")] = False,
    show: Annotated[int | None, typer.Option(help="Instead: all that is known about the service of this seed.")] = None,
) -> None:
    """Diagnose random services, simulate what is recommended, and compare."""
    if show is not None:
        _show(outcome_of(show))
        return
    seeds, outcomes = range(seed, seed + services), list[Outcome]()
    if save and set(seeds) & set(LOOKED_AT):
        raise typer.BadParameter(
            f"seeds {LOOKED_AT[0]} to {LOOKED_AT[-1]} were looked at and cannot judge what came of it"
        )
    if save:
        require_clean_tree()
    for outcome in _tracked(seeds, jobs=jobs):
        outcomes.append(outcome)
        if as_json:
            print(json.dumps(row_of(outcome), allow_nan=False), flush=True)
    figures = {"seeds": [seeds[0], seeds[-1]], **figures_of(outcomes)}
    if save:
        write_result("random_services", figures)
    if as_json:
        print(json.dumps(figures, allow_nan=False))
    else:
        _print(figures)


def _tracked(seeds: Sequence[int], *, jobs: int) -> Iterator[Outcome]:
    """Yield outcomes in order of their seeds, with a bar of progress on stderr."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield from progress.track(_outcomes(seeds, jobs=jobs), total=len(seeds), description="services")


def _outcomes(seeds: Sequence[int], *, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(outcome_of, seeds)
        return
    with workers(jobs) as pool:
        yield from pool.map(outcome_of, seeds)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def _print(figures: dict[str, Any]) -> None:
    console = _console()
    console.print(", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in figures["services"].items()))
    knobs = figures["by_knob"].items()
    rows = {
        EFFECT_COLUMNS: [effect_row(name, each) for name, each in knobs],
        FORECAST_COLUMNS: [forecast_row(name, each) for name, each in knobs],
        CLASS_COLUMNS: [class_row(name, each) for name, each in figures["by_class"].items()],
    }
    for columns, cells in rows.items():
        table = Table(*columns)
        for row in cells:
            table.add_row(*row)
        console.print(table)
    for why, seeds in figures["to_look_at"].items():
        console.print(f"{why.replace('_', ' ')}, seeds to --show: {', '.join(map(str, seeds)) or 'none'}")


def _show(outcome: Outcome) -> None:
    console = _console()
    row = row_of(outcome)
    console.print_json(data={"seed": row["seed"], **row["service"]})
    console.print(panel(outcome.report, at=EPOCH + outcome.service.seen, span=None))
    targets = outcome.targets
    console.print(f"objectives: TTFT {seconds(targets.ttft.seconds)}, TPOT {seconds(targets.tpot.seconds)}")
    console.print(f"replicas before the diagnosis: {outcome.levels}")
    console.print(f"before the diagnosis: {_told(outcome.seen)}")
    console.print(f"after it, unchanged: {_told(outcome.stayed)}; {outcome.gpus} GPUs")
    for change in outcome.changes:
        came = change.why_not if change.came is None else f"{_told(change.came)}; {change.gpus} GPUs"
        foretold = f"TTFT {_time(change.ttft)}, TPOT {_time(change.tpot)}"
        console.print(f"{change.knob} {change.current} -> {change.value}: foretold {foretold}; came {came}")


def _told(came: Came) -> str:
    share = "nothing ended" if came.attained is None else f"{came.attained:.1%} of what ended"
    return (
        f"TTFT {_time(came.ttft)}, TPOT {_time(came.tpot)}, {came.requests} answered, "
        f"{came.goodput:.3g} requests/s within both ({share})"
    )


def _time(value: float | None) -> str:
    return "not known" if value is None else seconds(value)


def run_command() -> None:
    """Run `main` with the arguments of this process."""
    typer.run(main)
