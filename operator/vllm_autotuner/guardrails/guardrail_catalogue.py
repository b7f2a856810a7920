"""G01 to G51: every guardrail of the operator, in the order of its number.

Apart from the guardrails themselves, because one guardrail often consists of several functions: its row names them all,
and tests check that each function and each test exists. Data only; the rows are in `catalogue`.
"""

from typing import Final

from vllm_autotuner.guardrails.catalogue.chain_rows import CHAIN_ROWS
from vllm_autotuner.guardrails.catalogue.change_rows import CHANGE_ROWS
from vllm_autotuner.guardrails.catalogue.cluster_rows import CLUSTER_ROWS
from vllm_autotuner.guardrails.catalogue.fleet_rows import FLEET_ROWS
from vllm_autotuner.guardrails.catalogue.guardrail_row import Guardrail
from vllm_autotuner.guardrails.catalogue.planning_rows import PLANNING_ROWS

__all__ = ["GUARDRAIL_CATALOGUE"]

GUARDRAIL_CATALOGUE: Final[tuple[Guardrail, ...]] = tuple(
    sorted((*CHAIN_ROWS, *CHANGE_ROWS, *CLUSTER_ROWS, *FLEET_ROWS, *PLANNING_ROWS), key=lambda row: row.id)
)
