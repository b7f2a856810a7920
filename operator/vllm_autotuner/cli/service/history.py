"""`vllm-autotuner history`: every change of a service that is remembered, with its figures.

Reads the object's status, never writes. Beside `explain`, which tells of now; this is the ledger to judge the operator
by.
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

  Every change that is remembered, the newest first:

    vllm-autotuner history chat -n prod

  How often it was right, for a spreadsheet:

    vllm-autotuner history chat -n prod --output json | jq -r '.changes[] | [.finishedAt, .knob, .outcome] | @csv'

Exit codes: 0 told (also when nothing was ever changed), 1 error.
"""


@with_groups
def history(
    name: Annotated[str, typer.Argument(help=NAME_HELP)], *, cluster: ClusterOptions, output: OutputFormat = "human"
) -> None:
    """Tell each change of a service: what it was decided on, what was foreseen, what came, and how it ended.

    The newest comes first. The object remembers the last ten; a change under way is told by `explain`.
    """
    try:
        as_text = is_text(output)
    except CommandError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        body = asyncio.run(read_service(cluster.namespace, name, kubeconfig=cluster.kubeconfig))
    except CommandError as error:
        raise failed(error, code=1) from None
    changes = [*reversed((body.get("status") or {}).get("history") or [])]
    if not as_text:
        typer.echo(json.dumps({"namespace": cluster.namespace, "name": name, "changes": changes}, indent=2))
        return
    console = answers()
    if not changes:
        console.print(Text(f"{cluster.namespace}/{name}: nothing was ever changed."))
    for entry in changes:
        for line in entry_lines(entry):
            console.print(line)
