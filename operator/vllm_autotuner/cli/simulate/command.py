"""`vllm-autotuner simulate`: what would a service do with these flags under this load? In virtual time, without a GPU.

This module reads options and chooses an exit code: 0 simulated, 1 an error in one line.
Must not: simulate, or judge.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from vllm_autotuner.cli.diagnosis.request import duration_of, one_of, subject_of
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.objectives import ProfileName, Quantile, TpotTarget, TtftTarget
from vllm_autotuner.cli.simulate.as_json import as_json, sweep_as_json
from vllm_autotuner.cli.simulate.plot import check_plot, plot_run, plot_sweep
from vllm_autotuner.cli.simulate.request import (
    CHAT_OUTPUTS,
    CHAT_PROMPTS,
    LENGTHS_HELP,
    LoadOptions,
    engine_flags,
    load_of,
    profile_of,
    replicas_of,
    time_of,
    within_a_week,
)
from vllm_autotuner.cli.simulate.run_figures import figures_of
from vllm_autotuner.cli.simulate.simulated_service import Scenario, run
from vllm_autotuner.cli.simulate.sweep import Sweep, sweep, sweep_of
from vllm_autotuner.cli.simulate.text import report, sweep_table
from vllm_autotuner.cli.terminal import answers, printable, progress, remarks
from vllm_autotuner.engine.flags import FlagError
from vllm_autotuner.simulation.configuration import StartupRefused
from vllm_autotuner.simulation.profiles import profile_names

__all__ = ["EXAMPLES", "simulate"]

EXAMPLES = """
Examples:

  Is 64 the right number of seats for 6 requests a second?

    vllm-autotuner simulate --rate 6 --engine-args "--max-num-seqs 64"

  Where is the knee? 300 clients who never stop asking, a table and a picture:

    vllm-autotuner simulate --clients 300 --sweep maxNumSeqs=8..512 --tpot 20ms --plot knee.png

  Does fp8 KV help with long prompts?

    vllm-autotuner simulate --rate 3 --prompt-tokens lognormal:p50=8000,p95=24000 --sweep kvCacheDtype=auto,fp8

  Recorded requests at a third more than they came, on two replicas:

    vllm-autotuner simulate --trace requests.csv.gz --rate 7.4 --replicas 2 --for 1h --plot hour.svg
"""

FAILED: Final = 1


def simulate(
    engine_profile: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Model and GPU: {', '.join(profile_names())}, or a .json file.",
            rich_help_panel="Service",
        ),
    ] = "llama-3.1-8b-h100",
    engine_args: Annotated[
        str | None,
        typer.Option(metavar="ARGS", help='The engine\'s flags: "--max-num-seqs 64".', rich_help_panel="Service"),
    ] = None,
    replicas: Annotated[
        int, typer.Option(metavar="N", help="Engines behind the router.", rich_help_panel="Service")
    ] = 1,
    rate: Annotated[
        float | None,
        typer.Option(metavar="REQUESTS", help="Requests per second; scales a --trace.", rich_help_panel="Load"),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(metavar="N", help="Clients that each ask again once answered.", rich_help_panel="Load"),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Recorded requests, or rates over days (CSV).", rich_help_panel="Load"),
    ] = None,
    trace_model: Annotated[
        str | None,
        typer.Option(metavar="[CATEGORY/]MODEL", help="Whose rates of a --trace.", rich_help_panel="Load"),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(metavar="CV", help="0 even, 1 Poisson (default), above it bursts.", rich_help_panel="Load"),
    ] = None,
    peak_to_trough: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="--rate becomes a day whose peak is X times its trough.", rich_help_panel="Load"
        ),
    ] = None,
    think: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long --clients think, on average.", rich_help_panel="Load"),
    ] = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option(metavar="LENGTH", help=f"{LENGTHS_HELP}. Default: {CHAT_PROMPTS}.", rich_help_panel="Load"),
    ] = None,
    output_tokens: Annotated[
        str | None,
        typer.Option(metavar="LENGTH", help=f"The same. Default: {CHAT_OUTPUTS}.", rich_help_panel="Load"),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="What clients send. Default: what they get.", rich_help_panel="Load"),
    ] = None,
    measured: Annotated[str, typer.Option("--for", metavar="TIME", help="Virtual time that is measured.")] = "30m",
    warm_up: Annotated[str, typer.Option(metavar="TIME", help="Virtual time before that.")] = "5m",
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same requests.")] = 0,
    profile: ProfileName = "latency",
    ttft: TtftTarget = None,
    tpot: TpotTarget = None,
    quantile: Quantile = "0.95",
    sweep_text: Annotated[
        str | None,
        typer.Option(
            "--sweep",
            metavar="KNOB=VALUES",
            help="maxNumSeqs=8..512 doubles, 8,16,24 is a list. Also maxModelLen, kvCacheDtype, tensorParallelSize "
            "and replicas.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a .png, .svg or .pdf.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FORMAT", help="human or json.")] = "human",
) -> None:
    """Simulate a service: latencies, goodput and the diagnosis, in virtual time. Needs no GPU and no Kubernetes.

    Name the load: --rate, --clients or --trace.
    """
    try:
        as_text = one_of("--output", output, ("human", "json")) == "human"
        if plot is not None:
            check_plot(plot)
        wanted = None if sweep_text is None else sweep_of(sweep_text)
        load = LoadOptions(
            rate=rate, clients=clients, trace=trace, prompt_tokens=prompt_tokens, output_tokens=output_tokens,
            burstiness=burstiness, peak_to_trough=peak_to_trough, think=think, trace_model=trace_model,
            max_tokens=max_tokens,
        )  # fmt: skip
        scenario = Scenario(
            flags=engine_flags(engine_args),
            profile=profile_of(engine_profile),
            replicas=replicas_of("--replicas", replicas),
            load=load_of(load),
            warm_up=within_a_week("--warm-up", time_of("--warm-up", warm_up)),
            measured=within_a_week("--for", duration_of("--for", measured).total_seconds()),
            seed=seed,
            subject=subject_of(profile, ttft=ttft, tpot=tpot, quantile=quantile, engine_args=engine_args),
        )
        shown, body = _one(scenario, plot) if wanted is None else _many(scenario, wanted, plot)
    except (CommandError, FlagError) as error:
        remarks().print(Text(printable(f"error: {error}")), soft_wrap=True)
        raise typer.Exit(FAILED) from None
    except StartupRefused as error:
        remarks().print(Text(printable(f"error: the engine does not start: {error}")), soft_wrap=True)
        raise typer.Exit(FAILED) from None
    if as_text:
        answers().print(shown)
    else:
        typer.echo(json.dumps(body, indent=2, allow_nan=False))


def _one(scenario: Scenario, plot: Path | None) -> tuple[RenderableType, dict[str, Any]]:
    with _bar(scenario, runs=1) as passed:
        found = run(scenario, passed=passed)
    figures = figures_of(found)
    if plot is not None:
        plot_run(found, figures, plot)
    return report(found, figures), as_json(found, figures)


def _many(scenario: Scenario, wanted: Sweep, plot: Path | None) -> tuple[RenderableType, dict[str, Any]]:
    with _bar(scenario, runs=len(wanted.values)) as passed:
        tried = sweep(scenario, wanted, passed=passed)
    if plot is not None:
        plot_sweep(tried, plot)
    return sweep_table(tried), sweep_as_json(tried)


@contextmanager
def _bar(scenario: Scenario, *, runs: int) -> Iterator[Callable[[float], None]]:
    """A bar over virtual seconds, on a terminal."""
    with progress(remarks()) as bar:
        task = bar.add_task("virtual seconds", total=int(runs * (scenario.warm_up + scenario.measured)))
        yield lambda seconds: bar.advance(task, seconds)
