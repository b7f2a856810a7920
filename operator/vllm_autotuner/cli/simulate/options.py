"""The option groups that only `simulate` has: the service, its load, and the run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final

import typer

from vllm_autotuner.cli.options.platform_options import EngineArgs
from vllm_autotuner.simulation.profiles import profile_names

__all__ = ["CHAT_OUTPUTS", "CHAT_PROMPTS", "LENGTHS_HELP", "EngineOptions", "LoadOptions", "RunOptions"]

CHAT_PROMPTS: Final = "lognormal:p50=1020,p95=4083,max=14050"
CHAT_OUTPUTS: Final = "lognormal:p50=129,p95=451,max=1000"
"""A published hour of a chat service (Azure, 2023): medians, 95th percentiles and maxima."""
LENGTHS_HELP: Final = "1000, uniform:100-500, lognormal:p50=1000,p95=4000 or trace:FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The engines as typed."""

    PANEL: ClassVar = "Service"

    engine_profile: Annotated[
        str, typer.Option(metavar="NAME", help=f"Model and GPU: {', '.join(profile_names())}, or a .json file.")
    ] = "llama-3.1-8b-h100"
    engine_args: EngineArgs = None
    replicas: Annotated[int | None, typer.Option(metavar="N", help="Replicas behind the router. Default: 1.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The load as typed. None: not given."""

    PANEL: ClassVar = "Load"

    rate: Annotated[
        float | None, typer.Option(metavar="REQUESTS", help="Requests per second. With --trace: scales it to this.")
    ] = None
    clients: Annotated[
        int | None, typer.Option(metavar="N", help="Clients that each send the next request after an answer.")
    ] = None
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV of recorded requests, or of request rates over days.")
    ] = None
    trace_model: Annotated[
        str | None, typer.Option(metavar="[CATEGORY/]MODEL", help="The model to take from a --trace of rates.")
    ] = None
    burstiness: Annotated[
        float | None, typer.Option(metavar="CV", help="Of arrivals: 0 even, 1 Poisson (default), above 1 bursty.")
    ] = None
    peak_to_trough: Annotated[
        float | None, typer.Option(metavar="X", help="Vary --rate over a day; its peak is X times its trough.")
    ] = None
    think: Annotated[
        str | None, typer.Option(metavar="TIME", help="Mean pause of --clients between answer and next request.")
    ] = None
    prompt_tokens: Annotated[
        str | None, typer.Option(metavar="LENGTH", help=f"{LENGTHS_HELP}. Default: {CHAT_PROMPTS}.")
    ] = None
    output_tokens: Annotated[
        str | None, typer.Option(metavar="LENGTH", help=f"As --prompt-tokens. Default: {CHAT_OUTPUTS}.")
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="max_tokens of each request. Default: its output length.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The run as typed."""

    PANEL: ClassVar = "Run"

    measured: Annotated[str, typer.Option("--for", metavar="TIME", help="Virtual time that is measured.")] = "30m"
    warm_up: Annotated[str, typer.Option(metavar="TIME", help="Virtual time before the measurement.")] = "5m"
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same requests.")] = 0
    sweep_text: Annotated[
        str | None,
        typer.Option(
            "--sweep",
            metavar="KNOB=VALUES",
            help="Simulate several values: maxNumSeqs=8..512 doubles, maxNumSeqs=8,16,24 is a list. Also maxModelLen, "
            "kvCacheDtype, tensorParallelSize and replicas.",
        ),
    ] = None
