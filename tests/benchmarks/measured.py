"""Curve files of engines that do not exist, so that what comes out is known."""

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.benchmarks.laws import Mix, Planted

from benchmarks.measured_curves.step_sample import steady_sample

COLUMNS = (
    "model", "gpu", "tp", "kv_dtype", "concurrency_or_max_num_seqs", "tpot_ms_mean_or_p50", "tpot_p99_ms", "ttft_ms",
    "throughput_tok_s", "source_url", "x_kind", "isl", "osl", "vllm_version", "weight_dtype", "throughput_kind",
    "notes",
)  # fmt: skip
LOADS = (2, 4, 8, 16, 32)


def row(**changes: Any) -> dict[str, Any]:
    """One measured point but for what is named."""
    usual = {
        "model": "acme/unheard-20b", "gpu": "Foo-9000", "tp": 1, "concurrency_or_max_num_seqs": 8,
        "tpot_ms_mean_or_p50": 21.0, "ttft_ms": 100.0, "x_kind": "client_concurrency", "isl": 600, "osl": 200,
    }  # fmt: skip
    return {**dict.fromkeys(COLUMNS, ""), **usual, **changes}


def write(folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    path = folder / name
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def curve(
    planted: Planted, mix: Mix, *, loads: Sequence[float] = LOADS, full_at: float | None = None, noise: float = 0.0,
    **changes: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """The points of a planted law; above `full_at` clients wait for a place and the batch no longer grows."""
    prompt, output = mix
    wobble = np.random.default_rng(5).normal(1.0, noise, len(loads))
    rows = []
    for load, factor in zip(loads, wobble, strict=True):
        batch = load if full_at is None else min(load, full_at)
        tpot = planted.at(steady_sample(batch=batch, prompt_tokens=prompt, output_tokens=output)) * float(factor)
        waits = (load - batch) / batch * output * tpot
        ttft = planted.per_prefill_token * prompt + 1.5 * tpot + waits
        tokens = load * output / (ttft + (output - 1) * tpot)
        rows.append(
            row(
                concurrency_or_max_num_seqs=load, tpot_ms_mean_or_p50=tpot * 1e3, ttft_ms=ttft * 1e3,
                throughput_tok_s=tokens, isl=prompt, osl=output, **changes,
            )
        )  # fmt: skip
    return rows


def measured_data(name: str) -> Path:
    """Return measured data that is not part of the repository, or skip."""
    given = os.environ.get("VLLM_AUTOTUNER_DATA")
    folder = Path(given) if given else Path(__file__).parents[3] / "shared" / "data"
    path = folder / name
    if not path.exists():
        pytest.skip(f"{path} is not here: point VLLM_AUTOTUNER_DATA to the folder that holds {name}")
    return path
