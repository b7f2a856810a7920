"""The command tree. Each command has a module of its own, which is imported when the command is run."""

import os
import re
import sys
from collections.abc import Mapping
from errno import ENOSPC
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, ClassVar, Final

import typer

from vllm_autotuner.cli.lazy_commands import LazyCommand, LazyGroup

__all__ = ["COMMANDS", "app", "main"]

PLUGIN: Final = "kubectl-vllm"
"""kubectl runs an executable of this name on the PATH as `kubectl vllm`."""
CLI: Final = "vllm_autotuner.cli"
LOOK, SERVICES, REQUESTS, OPERATOR = "Without Kubernetes", "Services", "Requests to the operator", "Operator"


def _request(name: str, help_: str) -> LazyCommand:
    return LazyCommand(
        module=f"{CLI}.service.requests",
        help=help_,
        panel=REQUESTS,
        usage_exits_one=True,
        examples=f"{name.upper()}_EXAMPLES",
    )


COMMANDS: Final[Mapping[str, LazyCommand]] = {
    "diagnose": LazyCommand(
        module=f"{CLI}.diagnose.command",
        help="Name the bottleneck of running or recorded vLLM engines. Needs no Kubernetes and changes nothing.",
        panel=LOOK,
        usage_exits_one=True,
    ),
    "doctor": LazyCommand(
        module=f"{CLI}.doctor.command",
        help="Check whether the metrics are complete enough for a diagnosis, and say what to repair.",
        panel=LOOK,
    ),
    "record": LazyCommand(
        module=f"{CLI}.record.command",
        help="Record the metrics of running engines into a file for `diagnose --recording` and `promtool`.",
        panel=LOOK,
        usage_exits_one=True,
    ),
    "simulate": LazyCommand(
        module=f"{CLI}.simulate.command",
        help="Simulate a service: latencies, goodput and diagnosis, in virtual time. Needs no GPU and no Kubernetes.",
        panel=LOOK,
        usage_exits_one=True,
    ),
    "backtest": LazyCommand(
        module=f"{CLI}.service.backtest",
        help="Replay history: what would have been recommended when, and how accurate its predictions were.",
        panel=LOOK,
        usage_exits_one=True,
    ),
    "status": LazyCommand(
        module=f"{CLI}.fleet.fleet_status",
        help="Show all services with their diagnosis, latencies and changes, the worst first.",
        panel=SERVICES,
    ),
    "report": LazyCommand(
        module=f"{CLI}.fleet.fleet_report",
        help="Report what tuning did for a fleet, as one HTML file: services worst first, changes, GPU-hours saved.",
        panel=SERVICES,
        usage_exits_one=True,
    ),
    "explain": LazyCommand(
        module=f"{CLI}.service.explain",
        help="Show what the operator sees in a service, what it would change or has changed, and why.",
        panel=SERVICES,
        usage_exits_one=True,
    ),
    "history": LazyCommand(
        module=f"{CLI}.service.history",
        help="Show the finished changes of a service: evidence, predicted and measured effects, and outcome.",
        panel=SERVICES,
        usage_exits_one=True,
    ),
    "export": LazyCommand(
        module=f"{CLI}.service.export",
        help="Write the recommendation of a service as a patch that is ready to commit.",
        panel=SERVICES,
        usage_exits_one=True,
    ),
    "approve": _request("approve", "Approve the current recommendation of a service, in mode Approve."),
    "reject": _request("reject", "Reject the current recommendation of a service: its value is not tried."),
    "rollback": _request(
        "rollback",
        "Roll back the change under way; after a failed rollback, try the last known good configuration once more.",
    ),
    "pause": _request("pause", "Pause tuning of a service."),
    "resume": _request("resume", "End the pause of a service."),
    "retry": _request(
        "retry",
        "Allow rejected values again, end the cooldown, close the circuit breaker, resume a contested workload.",
    ),
    "kill-switch": LazyCommand(
        module=f"{CLI}.fleet.kill_switch",
        help="Stop all tuning of the cluster within one tick (15 s), or allow it again. Serving goes on.",
        panel=REQUESTS,
        usage_exits_one=True,
    ),
    "run": LazyCommand(
        module=f"{CLI}.run.command",
        help="Run the operator: watch VLLMServices, diagnose them, and tune them within their bounds.",
        panel=OPERATOR,
    ),
    "crd": LazyCommand(
        module=f"{CLI}.print_crd",
        help="Print the CustomResourceDefinition of VLLMService as YAML, as this version needs it.",
        panel=OPERATOR,
    ),
}
"""In the order of `--help`."""


class Commands(LazyGroup):
    """All of them."""

    COMMANDS: ClassVar[Mapping[str, LazyCommand]] = COMMANDS


app = typer.Typer(
    name="vllm-autotuner",
    cls=Commands,
    help="Find the bottleneck of a vLLM deployment, and tune it: one safe, measured, reversible change at a time.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=True,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        # Reading the metadata of packages takes a while, which other options should not.
        from importlib.metadata import version

        typer.echo(f"vllm-autotuner {version('vllm-autotuner')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    show: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of all commands; there is nothing to do without a command."""


def main() -> None:
    """Run the command line; as the plugin of kubectl it calls itself what was typed."""
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal of another encoding shows `?` for the lines of a box, which are no reason for a traceback.
        sys.stdout.reconfigure(errors="replace")
    if not re.fullmatch(r"[1-9][0-9]{1,3}", os.environ.get("COLUMNS", "")):
        # The libraries would believe any number: 0 prints nothing, and a huge one does not end.
        os.environ.pop("COLUMNS", None)
    try:
        app(prog_name="kubectl vllm" if Path(sys.argv[0]).stem == PLUGIN else None)
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        # What is still to be flushed at the end would fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        typer.echo(f"error: cannot write the output: {error.strerror}", err=True)
        raise SystemExit(1) from None
