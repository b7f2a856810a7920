"""The administrator's additions to the built-in tables: other GPUs, and models by their `config.json`.

Separate from the tables, because this is untrusted input: every invalid entry is rejected with its place and the
expected form. Must not: read a file (the caller does), or accept an entry that would cause a division by zero.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vllm_autotuner.engine.geometry import ModelShape, geometry_from_config, geometry_named
from vllm_autotuner.engine.hardware import Gpu, gpu_named

__all__ = ["Catalogue", "CatalogueError", "read_catalogue"]

LONGEST_SHOWN: Final = 80
"""Characters of a value in a message."""
_FIELDS: Final = ("memoryGiB", "bandwidthTBs", "teraflops")
_ALLOWED: Final = frozenset({"label", "computeCapability", *_FIELDS})


class CatalogueError(ValueError):
    """An entry that cannot be used; the message names it and what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Rows that come before the built-in ones. Empty: the built-in ones alone."""

    gpus: tuple[Gpu, ...] = ()
    models: Mapping[str, ModelShape] = field(default_factory=dict)
    """By the name that vLLM loads, as in `spec.model.name`."""

    def gpu(self, label: str | None) -> Gpu | None:
        """Return the GPU of a node label, or None."""
        return None if label is None else gpu_named(label, more=self.gpus)

    def shape(self, model: str) -> ModelShape:
        """Return the shape of a model: the admin's, else the built-in one."""
        found = self.models.get(model)
        return geometry_named(model) if found is None else found


def read_catalogue(document: object) -> Catalogue:
    """Read a parsed document `{gpus: [...], models: {name: config.json}}`. Raises CatalogueError."""
    if document is None:
        return Catalogue()
    if not isinstance(document, Mapping) or set(document) - {"gpus", "models"}:
        raise CatalogueError("expected a mapping with the keys gpus (a list) and models (name: config.json)")
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
