"""The command tree. Each command lives in a module of its own; this one only hangs them up."""

import typer

from vllm_autotuner.cli.crd import crd

app = typer.Typer(
    name="vllm-autotuner",
    help="Name the bottleneck of a vLLM deployment, and tune it: one safe, measured, reversible change at a time.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=True,
)


@app.callback()
def _root() -> None:
    """Keep commands as subcommands even while there is only one."""


app.command()(crd)


def main() -> None:
    """Run the command line."""
    app()
