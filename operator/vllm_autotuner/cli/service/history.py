"""`vllm-autotuner history`: the finished changes of a service, with predicted and measured effects.

Reads the object's status, never writes. `explain` shows the present state and the change in progress.
"""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from vllm_autotuner.api.gpu_steps import GPU_STEPS_LENGTH
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.cost_options import CostOptions
from vllm_autotuner.cli.options.groups import with_groups
from vllm_autotuner.cli.options.kubernetes import NAME_HELP, ClusterOptions
from vllm_autotuner.cli.options.output import OutputFormat, is_text
from vllm_autotuner.cli.service.gpu_text import gpu_lines, recorded_savings, stored_status
from vllm_autotuner.cli.service.history_text import entry_lines
from vllm_autotuner.cli.service.service_object import read_service
from vllm_autotuner.cli.terminal import answers, failed
from vllm_autotuner.overview.gpu_hours import Prices
from vllm_autotuner.overview.savings_text import savings_json

__all__ = ["EXAMPLES", "history"]

EXAMPLES = """
Examples:

  All recorded changes, newest first:

    vllm-autotuner history chat -n prod

  With money, where a GPU costs 2.49 an hour:

    vllm-autotuner history chat -n prod --gpu-price 2.49

  The outcomes as CSV, for a spreadsheet:

    vllm-autotuner history chat -n prod --output json | jq -r '.changes[] | [.finishedAt, .knob, .outcome] | @csv'

Exit codes: 0 shown (also when there are no changes), 1 error.
"""


@with_groups
def history(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    *,
    cluster: ClusterOptions,
    cost: CostOptions,
    output: OutputFormat = "human",
) -> None:
    """Show the finished changes of a service: evidence, predicted and measured effects, and outcome.

    Newest first. The object keeps the last ten; `explain` shows a change in progress. Below them: how many GPUs the
    service asked for since when, and what each step saved or spent.
    """
    try:
        as_text = is_text(output)
    except CommandError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        prices = cost.prices()
        body = asyncio.run(read_service(name, where=cluster))
    except CommandError as error:
        raise failed(error, code=1) from None
    namespace = body["metadata"]["namespace"]
    now = datetime.now(tz=UTC)
    changes = [*reversed((body.get("status") or {}).get("history") or [])]
    if not as_text:
        found = {"namespace": namespace, "name": name, "changes": changes, **_gpus(body, now=now, prices=prices)}
        typer.echo(json.dumps(found, indent=2))
        return
    console = answers()
    if not changes:
        console.print(Text(f"{namespace}/{name}: no changes recorded."))
    steps = stored_status(body).gpu_steps
    for entry in changes:
        for line in entry_lines(entry, steps=steps):
            console.print(line)
    for line in gpu_lines(body, now=now, prices=prices, most=GPU_STEPS_LENGTH):
        console.print(line)


def _gpus(body: Mapping[str, Any], *, now: datetime, prices: Prices) -> dict[str, Any]:
    """The savings, and the steps as the object has them."""
    savings = savings_json(recorded_savings(body, now=now, prices=prices))
    return {"savings": savings, "gpuSteps": (body.get("status") or {}).get("gpuSteps") or []}
