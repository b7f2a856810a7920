"""`vllm-autotuner simulate`: a service with given flags under a given load, in virtual time and without a GPU.

Reads options and chooses an exit code: 0 simulated, 1 an error in one line.
Must not: simulate, or judge.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.cli.diagnosis.request import subject_from
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.objective_options import ObjectiveOptions
from vllm_autotuner.cli.options.output import OutputFormat, is_text
from vllm_autotuner.cli.options.values import duration_of
from vllm_autotuner.cli.report.plots import NO_PLOT, can_plot
from vllm_autotuner.cli.simulate.as_json import as_json, sweep_as_json
from vllm_autotuner.cli.simulate.options import EngineOptions, LoadOptions, RunOptions
from vllm_autotuner.cli.simulate.plot import check_plot, plot_run, plot_sweep
from vllm_autotuner.cli.simulate.request import (
    engine_flags,
    load_of,
    profile_of,
    replicas_of,
    time_of,
    within_a_week,
)
from vllm_autotuner.cli.simulate.run_figures import figures_of
from vllm_autotuner.cli.simulate.simulated_service import Scenario
from vllm_autotuner.cli.simulate.simulated_service import run as simulated
from vllm_autotuner.cli.simulate.sweep import Sweep, sweep, sweep_of
from vllm_autotuner.cli.simulate.text import report, sweep_table
from vllm_autotuner.cli.terminal import answers, failed, hint, progress, remarks
from vllm_autotuner.engine.flags import FlagError
from vllm_autotuner.simulation.configuration import StartupRefused

__all__ = ["EXAMPLES", "simulate"]

EXAMPLES = """
Examples:

  Is max-num-seqs 64 enough for 6 requests per second?

    vllm-autotuner simulate --rate 6 --engine-args "--max-num-seqs 64"

  Where is the TPOT knee with 300 clients? A table and a plot:

    vllm-autotuner simulate --clients 300 --sweep maxNumSeqs=8..512 --tpot 20ms --plot knee.png

  Does fp8 KV help with long prompts?

    vllm-autotuner simulate --rate 3 --prompt-tokens lognormal:p50=8000,p95=24000 --sweep kvCacheDtype=auto,fp8

  Recorded requests, scaled to 7.4 per second, on two replicas:

    vllm-autotuner simulate --trace requests.csv.gz --rate 7.4 --replicas 2 --for 1h --plot hour.svg

Exit codes: 0 simulated, 1 error.
"""

FAILED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a simulation found, as text, as JSON, and as what draws it."""

    shown: RenderableType
    body: dict[str, Any]
    draw: Callable[[Path], None]


@with_groups
def simulate(
    *,
    engine: EngineOptions,
    load: LoadOptions,
    run: RunOptions,
    objectives: ObjectiveOptions,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Plot to a .png, .svg or .pdf file. Needs the extra `report`.",
            rich_help_panel="Output",
        ),
    ] = None,
    output: OutputFormat = "human",
) -> None:
    """Simulate a service: latencies, goodput and diagnosis, in virtual time. Needs no GPU and no Kubernetes.

    Give the load with exactly one of --rate, --clients and --trace; --rate may scale a --trace.
    """
    try:
        as_text = is_text(output)
        if plot is not None:
            check_plot(plot)
        wanted = None if run.sweep_text is None else sweep_of(run.sweep_text)
        if wanted is not None and wanted.knob is Knob.REPLICAS and engine.replicas is not None:
            raise CommandError("give --replicas N or --sweep replicas=VALUES, not both")
        scenario = _scenario(engine, load, run, objectives)
        found = _one(scenario) if wanted is None else _many(scenario, wanted)
    except (CommandError, FlagError) as error:
        raise failed(error, code=FAILED) from None
    except StartupRefused as error:
        raise failed(f"the engine does not start: {error}", code=FAILED) from None
    if as_text:
        answers().print(found.shown, crop=False)
    else:
        typer.echo(json.dumps(found.body, indent=2, allow_nan=False))
    if plot is not None:
        _draw(found, plot)


def _draw(found: Found, path: Path) -> None:
    """After the answer: what is missing for a plot does not cost it."""
    if not can_plot():
        hint(NO_PLOT)
        return
    try:
        found.draw(path)
    except CommandError as error:
        raise failed(error, code=FAILED) from None


def _scenario(engine: EngineOptions, load: LoadOptions, run: RunOptions, objectives: ObjectiveOptions) -> Scenario:
    return Scenario(
        flags=engine_flags(engine.engine_args),
        profile=profile_of(engine.engine_profile),
        replicas=replicas_of("--replicas", 1 if engine.replicas is None else engine.replicas),
        load=load_of(load),
        warm_up=within_a_week("--warm-up", time_of("--warm-up", run.warm_up)),
        measured=within_a_week("--for", duration_of("--for", run.measured).total_seconds()),
        seed=run.seed,
        subject=subject_from(objectives, engine_args=engine.engine_args),
    )


def _one(scenario: Scenario) -> Found:
    with _bar(scenario, runs=1) as passed:
        found = simulated(scenario, passed=passed)
    figures = figures_of(found)
    return Found(
        shown=report(found, figures), body=as_json(found, figures), draw=lambda path: plot_run(found, figures, path)
    )


def _many(scenario: Scenario, wanted: Sweep) -> Found:
    with _bar(scenario, runs=len(wanted.values)) as passed:
        tried = sweep(scenario, wanted, passed=passed)
    return Found(shown=sweep_table(tried), body=sweep_as_json(tried), draw=lambda path: plot_sweep(tried, path))


@contextmanager
def _bar(scenario: Scenario, *, runs: int) -> Iterator[Callable[[float], None]]:
    """A bar over virtual seconds, on a terminal."""
    with progress(remarks()) as bar:
        task = bar.add_task("virtual seconds", total=int(runs * (scenario.warm_up + scenario.measured)))
        yield lambda seconds: bar.advance(task, seconds)
