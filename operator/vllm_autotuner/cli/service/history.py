"""`vllm-autotuner history`: the finished changes of a service, with predicted and measured effects.

Reads the object's status, never writes. `explain` shows the present state and the change in progress.
"""

import asyncio
import json
from typing import Annotated

import typer
from rich.text import Text

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.kubernetes import NAME_HELP, ClusterOptions
from vllm_autotuner.cli.options.output import OutputFormat, is_text
from vllm_autotuner.cli.service.history_text import entry_lines
from vllm_autotuner.cli.service.service_object import read_service
from vllm_autotuner.cli.terminal import answers, failed

__all__ = ["EXAMPLES", "history"]

EXAMPLES = """
Examples:

  All recorded changes, newest first:

    vllm-autotuner history chat -n prod

  The outcomes as CSV, for a spreadsheet:

    vllm-autotuner history chat -n prod --output json | jq -r '.changes[] | [.finishedAt, .knob, .outcome] | @csv'

Exit codes: 0 shown (also when there are no changes), 1 error.
"""


@with_groups
def history(
    name: Annotated[str, typer.Argument(help=NAME_HELP)], *, cluster: ClusterOptions, output: OutputFormat = "human"
) -> None:
    """Show the finished changes of a service: evidence, predicted and measured effects, and outcome.

    Newest first. The object keeps the last ten; `explain` shows a change in progress.
    """
    try:
        as_text = is_text(output)
    except CommandError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        body = asyncio.run(read_service(name, where=cluster))
    except CommandError as error:
        raise failed(error, code=1) from None
    namespace = body["metadata"]["namespace"]
    changes = [*reversed((body.get("status") or {}).get("history") or [])]
    if not as_text:
        typer.echo(json.dumps({"namespace": namespace, "name": name, "changes": changes}, indent=2))
        return
    console = answers()
    if not changes:
        console.print(Text(f"{namespace}/{name}: no changes recorded."))
    for entry in changes:
        for line in entry_lines(entry):
            console.print(line)
