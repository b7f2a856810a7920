"""Logged KV pools at engine start against the arithmetic of `performance.kv_capacity`.

Apart from the curves: another file, other columns, and no step time in it.
Must not: score a row that the formulas do not claim to hold for; it is listed with the reason instead.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.measured_curves.groups import DEFAULT_SEATS
from benchmarks.measured_curves.read import CurveError
from vllm_autotuner.engine.geometry import Geometry, geometry_named
from vllm_autotuner.engine.hardware import gpu_named
from vllm_autotuner.performance.kv_capacity import (
    Pool,
    PoolEstimate,
    first_pool,
    kv_bytes_per_token_per_gpu,
    kv_value_bytes,
)

__all__ = ["KvRow", "read_kv_rows"]

NEEDED: Final = ("model", "gpu", "tp", "gpu_mem_util")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRow:
    """One engine start."""

    line: int
    model: str
    tensor_parallel_size: int
    bytes_per_token: int | None
    """Per GPU, by our formula; None where no geometry is known."""
    bytes_given: float | None
    """Per GPU, from the file: memory over tokens where it has both, else its own figure."""
    pool: float | None
    """Tokens, computed from nothing but the flags."""
    pool_given: float | None
    why: str = ""
    """Why there is no figure of ours."""

    @property
    def bytes_error(self) -> float | None:
        """Relative error of bytes per token, signed."""
        if self.bytes_per_token is None or self.bytes_given is None:
            return None
        return self.bytes_per_token / self.bytes_given - 1

    @property
    def pool_error(self) -> float | None:
        """Relative error of the pool, signed."""
        return None if self.pool is None or self.pool_given is None else self.pool / self.pool_given - 1


def read_kv_rows(path: Path) -> tuple[KvRow, ...]:
    """Read a table of engine starts. Raises CurveError with file, line and reason."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if missing := [name for name in NEEDED if name not in (reader.fieldnames or ())]:
                raise CurveError(f"{path}, line 1: no column {missing[0]}")
            return tuple(_row(path, reader.line_num, row) for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CurveError(f"{path}: {error}") from None


def _row(path: Path, line: int, row: dict[str, str | None]) -> KvRow:
    def number(name: str) -> float | None:
        text = (row.get(name) or "").strip()
        if text in ("", "default"):
            return None
        try:
            value = float(text)
        except ValueError:
            raise CurveError(f"{path}, line {line}: {name} is {text!r}, not a number") from None
        if not 0 < value < float("inf"):
            raise CurveError(f"{path}, line {line}: {name} is {text}, and must be above 0")
        return value

    size, utilization, model = number("tp"), number("gpu_mem_util"), (row.get("model") or "").strip()
    if size is None or utilization is None or not model:
        raise CurveError(f"{path}, line {line}: model, tp and gpu_mem_util are needed")
    tokens, gib = number("kv_tokens"), number("kv_gib_per_gpu")
    given = gib * 2**30 / tokens if gib and tokens else number("kv_bytes_per_token_per_gpu")
    shape, gpu = geometry_named(model), gpu_named(row.get("gpu") or "")
    special = (row.get("hybrid_or_special") or "").strip() == "1"
    dtype = row.get("kv_dtype")
    known = isinstance(shape, Geometry) and not special
    wanted = Pool(
        tokens=0,
        tensor_parallel_size=int(size),
        kv_cache_dtype=dtype,
        gpu_memory_utilization=utilization,
        max_num_seqs=int(number("max_num_seqs") or DEFAULT_SEATS),
    )
    forecast = first_pool(wanted, shape=shape, gpu=gpu, bytes_per_weight=1 if "fp8" in model.lower() else 2)
    return KvRow(
        line=line,
        model=model,
        tensor_parallel_size=int(size),
        bytes_per_token=kv_bytes_per_token_per_gpu(
            shape, tensor_parallel_size=int(size), bytes_per_value=kv_value_bytes(dtype)
        )
        if isinstance(shape, Geometry) and known
        else None,
        bytes_given=given,
        pool=forecast.tokens if isinstance(forecast, PoolEstimate) and known else None,
        pool_given=tokens,
        why="" if known else "another kind of cache" if special else "no geometry is known for this name",
    )
