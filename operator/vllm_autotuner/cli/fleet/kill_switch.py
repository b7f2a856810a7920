"""`vllm-autotuner kill-switch on|off`: stops all tuning of the cluster within one tick, or allows it again.

Sets one key of the limits ConfigMap, which the operator reads at each tick; serving goes on.
"""

import asyncio
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.text import Text

from vllm_autotuner.cli.api_connection import connected
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.kubernetes import ClusterOptions, Context, Kubeconfig
from vllm_autotuner.cli.terminal import answers, failed
from vllm_autotuner.guardrails.mode_ceiling import KILL_SWITCH

__all__ = ["EXAMPLES", "kill_switch"]

EXAMPLES: Final = """
Examples:

  Begin no change in the whole cluster and roll back those under way:

    vllm-autotuner kill-switch on

  Allow tuning again:

    vllm-autotuner kill-switch off

Exit codes: 0 set, 1 error.
"""
NAMESPACE: Final = "vllm-autotuner"
CONFIG_MAP: Final = "vllm-autotuner-limits"
"""As the chart names it for a release called vllm-autotuner."""


class Switch(StrEnum):
    """What to do."""

    ON = "on"
    OFF = "off"


def kill_switch(
    switch: Annotated[Switch, typer.Argument(metavar="on|off", help="on stops all tuning, off allows it again.")],
    *,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the operator.")
    ] = NAMESPACE,
    configmap: Annotated[str, typer.Option(metavar="NAME", help="Its limits ConfigMap.")] = CONFIG_MAP,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Stop all tuning of the cluster within one tick (15 s), or allow it again. Serving goes on.

    While it is on, replicas stay as they are. Once it is off, a modeCeiling in the same ConfigMap still holds.
    The next `helm upgrade` writes the chart's value (limits.killSwitch) again.
    """
    where = ClusterOptions(namespace=namespace, context=context, kubeconfig=kubeconfig)
    try:
        asyncio.run(_set(where, configmap, on=switch is Switch.ON))
    except CommandError as error:
        raise failed(error, code=1) from None
    done = (
        "on: no change begins, and those under way are rolled back, within one tick (15 s); replicas stay as they are"
        if switch is Switch.ON
        else "off: services are tuned again as their mode and the mode ceiling say"
    )
    answers().print(Text(f"kill switch {done}"), soft_wrap=True)


async def _set(where: ClusterOptions, name: str, *, on: bool) -> None:
    missing = (
        f"ConfigMap {{namespace}}/{name} not found: --namespace and --configmap name that of your release; "
        "see `kubectl get configmap -A | grep limits`"
    )
    async with connected(where, missing=missing) as (cluster, namespace):
        await cluster.set_data(namespace, name, {KILL_SWITCH: "true" if on else "false"})
