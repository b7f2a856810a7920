"""The administrator's additions to the built-in tables: other GPUs, models by their `config.json`, and prices of GPUs.

Separate from the tables, because this is untrusted input: every invalid entry is rejected with its place and the
expected form. Must not: read a file (the caller does), or accept an entry that would cause a division by zero.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vllm_autotuner.engine.geometry import ModelShape, geometry_from_config, geometry_named
from vllm_autotuner.engine.hardware import Gpu, gpu_named, words_of

__all__ = ["Catalogue", "CatalogueError", "GpuPrice", "read_catalogue"]

LONGEST_SHOWN: Final = 80
"""Characters of a value in a message."""
_FIELDS: Final = ("memoryGiB", "bandwidthTBs", "teraflops")
_ALLOWED: Final = frozenset({"label", "computeCapability", *_FIELDS})
_KEYS: Final = frozenset({"gpus", "models", "prices", "currency"})
LONGEST_CURRENCY: Final = 8
"""Characters: USD, or a sign."""


class CatalogueError(ValueError):
    """An entry that cannot be used; the message names it and what to write instead."""


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """What one GPU of a product costs for an hour."""

    words: frozenset[str]
    """All of them stand in the node label of this product."""
    per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Rows that come before the built-in ones. Empty: the built-in ones alone."""

    gpus: tuple[Gpu, ...] = ()
    models: Mapping[str, ModelShape] = field(default_factory=dict)
    """By the name that vLLM loads, as in `spec.model.name`."""
    prices: tuple[GpuPrice, ...] = ()
    """What GPUs cost. Empty: savings are told in GPU-hours only."""
    currency: str = ""
    """Of the prices; shown, and never converted."""

    def gpu(self, label: str | None) -> Gpu | None:
        """Return the GPU of a node label, or None."""
        return None if label is None else gpu_named(label, more=self.gpus)

    def price(self, label: str | None) -> float | None:
        """Return the price of one GPU of a node label for an hour, or None. The first row whose words fit counts."""
        found = words_of(label or "")
        return next((row.per_hour for row in self.prices if row.words <= found), None)

    def shape(self, model: str) -> ModelShape:
        """Return the shape of a model: the admin's, else the built-in one."""
        found = self.models.get(model)
        return geometry_named(model) if found is None else found


def read_catalogue(document: object) -> Catalogue:
    """Read a parsed document `{gpus: [...], models: {name: config.json}, prices: {H100: 2.49}, currency: USD}`.

    Raises CatalogueError.
    """
    if document is None:
        return Catalogue()
    if not isinstance(document, Mapping) or set(document) - _KEYS:
        raise CatalogueError(
            "expected a mapping with the keys gpus (a list), models (name: config.json), prices (GPU: per hour) and "
            "currency"
        )
    # A key without a value is YAML's way to say "none yet".
    gpus = [] if (given := document.get("gpus")) is None else given
    models = {} if (given := document.get("models")) is None else given
    if not isinstance(gpus, list):
        raise CatalogueError("gpus: expected a list of {label, memoryGiB, bandwidthTBs, teraflops, computeCapability}")
    if not isinstance(models, Mapping) or not all(isinstance(config, Mapping) for config in models.values()):
        raise CatalogueError("models: expected a mapping from model name to the content of its config.json")
    return Catalogue(
        gpus=tuple(_gpu(index, row) for index, row in enumerate(gpus)),
        models={str(name): geometry_from_config(config) for name, config in models.items()},
        prices=_prices(document.get("prices")),
        currency=_currency(document.get("currency")),
    )


def _gpu(index: int, row: Any) -> Gpu:
    where = f"gpus[{index}]"
    if not isinstance(row, Mapping):
        raise CatalogueError(f"{where}: expected {{label, {', '.join(_FIELDS)}, computeCapability}}")
    if unknown := sorted(set(map(str, row)) - _ALLOWED):
        raise CatalogueError(f"{where}: unknown field {unknown[0][:80]}; known fields: {', '.join(sorted(_ALLOWED))}")
    label = str(row.get("label") or "")
    words = tuple(word for word in re.split(r"[^A-Z0-9]+", label.upper()) if word)
    if not words:
        raise CatalogueError(f"{where}.label: expected words of the node's GPU label, such as MI300X")
    memory, bandwidth, flops = (_positive(f"{where}.{name}", row.get(name)) for name in _FIELDS)
    return Gpu(
        name="-".join(words),
        words=words,
        memory_gib=memory,
        bandwidth=bandwidth * 1e12,
        flops=flops * 1e12,
        compute_capability=_capability(f"{where}.computeCapability", row.get("computeCapability")),
    )


def _prices(given: object) -> tuple[GpuPrice, ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise CatalogueError(
            "prices: expected a mapping from the GPU's label to its price per hour, such as H100: 2.49"
        )
    rows = []
    for label, amount in given.items():
        where = f"prices.{str(label)[:LONGEST_SHOWN]}"
        words = words_of(str(label))
        if not words:
            raise CatalogueError(f"{where}: expected words of the node's GPU label, such as H100")
        rows.append(GpuPrice(words, _positive(where, amount)))
    # The longer name first: "A100 80GB" is an A100, too.
    return tuple(sorted(rows, key=lambda row: -len(row.words)))


def _currency(given: object) -> str:
    text = "" if given is None else str(given)
    if len(text) > LONGEST_CURRENCY or not text.isprintable():
        raise CatalogueError(f"currency: {_shown(given)} is not a currency; write its code, such as USD")
    return text


def _positive(where: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number <= 0:
        raise CatalogueError(f"{where}: {_shown(value)} is not a positive number")
    return number


def _capability(where: str, value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,2})\.(\d)", str(value))
    if found is None:
        raise CatalogueError(f'{where}: {_shown(value)} is not a compute capability; write it as "9.0", or omit it')
    return int(found[1]), int(found[2])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
