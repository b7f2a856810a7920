"""What a GPU costs: the options of commands that tell savings.

Must not: know a price. Without these options savings are GPU-hours.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

import typer

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.platform_options import CatalogueFile, load_catalogue
from vllm_autotuner.overview.gpu_hours import Prices

__all__ = ["CostOptions", "GpuPrice", "checked_price"]

GpuPrice: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--gpu-price",
        metavar="AMOUNT",
        help="Price of one GPU for an hour, such as 2.49. Default: `prices` of the catalogue.",
        rich_help_panel="Cost",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """The price of a GPU."""

    PANEL: ClassVar = "Cost"

    gpu_price: GpuPrice = None
    catalogue: CatalogueFile = None

    def prices(self) -> Prices:
        """Return them as one value. Raises CommandError."""
        return Prices(catalogue=load_catalogue(self.catalogue), flat=checked_price(self.gpu_price))


def checked_price(amount: float | None) -> float | None:
    """Return the price as it was given. Raises CommandError for one that no GPU has."""
    if amount is not None and not (math.isfinite(amount) and amount > 0):
        raise CommandError(f"--gpu-price {amount:g}: write an amount above zero, such as 2.49")
    return amount
