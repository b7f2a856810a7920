"""`vllm-autotuner history`: every change of a service that is remembered, with its figures.

Reads the object's status, never writes. Beside `explain`, which tells of now; this is the ledger to judge the operator
by.
"""

import asyncio
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.service.history_text import entry_lines
from vllm_autotuner.cli.service.service_object import read_service
from vllm_autotuner.cli.terminal import answers, printable

__all__ = ["EXAMPLES", "history"]

EXAMPLES = """
Examples:

  Every change that is remembered, the newest first:

    vllm-autotuner history chat -n prod

  How often it was right, for a spreadsheet:

    vllm-autotuner history chat -n prod --output json | jq -r '.changes[] | [.finishedAt, .knob, .outcome] | @csv'

Exit codes: 0 told (also when nothing was ever changed), 1 error.
"""


class Output(StrEnum):
    """How to print."""

    HUMAN = "human"
    JSON = "json"


def history(
    name: Annotated[str, typer.Argument(help="Name of the VLLMService.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    output: Annotated[Output, typer.Option("--output", "-o", help="For people or for programs.")] = Output.HUMAN,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Default: the pod's service account, else $KUBECONFIG.")
    ] = None,
) -> None:
    """Tell each change of a service: what it was decided on, what was foreseen, what came, and how it ended.

    The newest comes first. The object remembers the last ten; a change under way is told by `explain`.
    """
    try:
        body = asyncio.run(read_service(namespace, name, kubeconfig=kubeconfig))
    except CommandError as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        raise typer.Exit(1) from None
    changes = [*reversed((body.get("status") or {}).get("history") or [])]
    if output is Output.JSON:
        typer.echo(json.dumps({"namespace": namespace, "name": name, "changes": changes}, indent=2))
        return
    console = answers()
    if not changes:
        console.print(Text(f"{namespace}/{name}: nothing was ever changed."))
    for entry in changes:
        for line in entry_lines(entry):
            console.print(line)
