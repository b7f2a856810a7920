"""The command tree. Each command has a module of its own; this one registers them."""

import typer

from vllm_autotuner.cli.diagnose.command import EXAMPLES as DIAGNOSE_EXAMPLES
from vllm_autotuner.cli.diagnose.command import diagnose
from vllm_autotuner.cli.doctor.command import EXAMPLES as DOCTOR_EXAMPLES
from vllm_autotuner.cli.doctor.command import doctor
from vllm_autotuner.cli.options.usage_errors import UsageErrorExitsOne
from vllm_autotuner.cli.print_crd import EXAMPLES as CRD_EXAMPLES
from vllm_autotuner.cli.print_crd import crd
from vllm_autotuner.cli.record.command import EXAMPLES as RECORD_EXAMPLES
from vllm_autotuner.cli.record.command import record
from vllm_autotuner.cli.run.command import EXAMPLES as RUN_EXAMPLES
from vllm_autotuner.cli.run.command import run
from vllm_autotuner.cli.service.backtest import EXAMPLES as BACKTEST_EXAMPLES
from vllm_autotuner.cli.service.backtest import backtest
from vllm_autotuner.cli.service.explain import EXAMPLES as EXPLAIN_EXAMPLES
from vllm_autotuner.cli.service.explain import explain
from vllm_autotuner.cli.service.export import EXAMPLES as EXPORT_EXAMPLES
from vllm_autotuner.cli.service.export import export
from vllm_autotuner.cli.service.history import EXAMPLES as HISTORY_EXAMPLES
from vllm_autotuner.cli.service.history import history
from vllm_autotuner.cli.simulate.command import EXAMPLES as SIMULATE_EXAMPLES
from vllm_autotuner.cli.simulate.command import simulate

app = typer.Typer(
    name="vllm-autotuner",
    help="Find the bottleneck of a vLLM deployment, and tune it: one safe, measured, reversible change at a time.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=True,
)


@app.callback()
def _root() -> None:
    """Keep commands as subcommands even while there is only one."""


app.command(cls=UsageErrorExitsOne, epilog=BACKTEST_EXAMPLES)(backtest)
app.command(epilog=CRD_EXAMPLES)(crd)
app.command(cls=UsageErrorExitsOne, epilog=DIAGNOSE_EXAMPLES)(diagnose)
app.command(epilog=DOCTOR_EXAMPLES)(doctor)
app.command(cls=UsageErrorExitsOne, epilog=EXPLAIN_EXAMPLES)(explain)
app.command(epilog=EXPORT_EXAMPLES)(export)
app.command(epilog=HISTORY_EXAMPLES)(history)
app.command(epilog=RECORD_EXAMPLES)(record)
app.command(epilog=RUN_EXAMPLES)(run)
app.command(epilog=SIMULATE_EXAMPLES)(simulate)


def main() -> None:
    """Run the command line."""
    app()
