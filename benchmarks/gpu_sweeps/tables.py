"""From the recording of a sweep to its points, and to a curve file in the format of `measured_curves.read`.

Apart from what is made of the points, so that a figure can be followed back to counters of the engine.
Must not: take a figure of the clients. Every one is the engine's own, between the first and the last scrape of the
stretch that the recording says it was steady in.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.recordings.read import BadRecording, Recorded, read_recorded
from benchmarks.result_files import ROOT

__all__ = ["DATA", "KV_CAPACITY", "SWEEPS", "TABLES", "Sweep", "SweepPoint", "curve_file", "read_sweep", "write_tables"]

DATA: Final = ROOT / "tests" / "data" / "vllm-0.26-h200"
SWEEPS: Final = DATA / "sweeps"
TABLES: Final = DATA / "curves"
KV_CAPACITY: Final = DATA / "kv_capacity.csv"
VERSION: Final = "0.26.0"
GPU: Final = "H200-SXM-141GB"
MODELS: Final = {"qwen3-8b": "Qwen/Qwen3-8B", "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B"}
"""The shapes that the engines had, by what they were started with."""
COLUMNS: Final = (
    "model", "gpu", "tp", "kv_dtype", "concurrency_or_max_num_seqs", "tpot_ms_mean_or_p50", "ttft_ms",
    "throughput_tok_s", "waiting", "source_url", "x_kind", "isl", "osl", "vllm_version", "weight_dtype",
    "throughput_kind", "notes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One number of clients; seconds and tokens."""

    clients: int
    itl: float
    """Mean inter-token latency: of all tokens in the stretch."""
    ttft: float
    throughput: float
    """Output tokens per second."""
    waiting: float
    """Mean number of requests that wait."""
    prefill_share: float
    """Prefill times of finished requests over the length of the stretch."""
    prompt_tokens: float
    """Mean of the range that lengths were drawn from; so is the next. A stretch holds too few requests for its own."""
    output_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The points of one engine."""

    name: str
    model: str
    max_num_seqs: int
    kv_bytes: int
    """Memory of the KV cache, as told to the engine."""
    kv_tokens: int
    """What it holds, as told by the engine."""
    points: tuple[SweepPoint, ...]


def read_sweep(samples: Path) -> Sweep:
    """Read NAME.om.gz and NAME.json beside it. Raises BadRecording."""
    recorded, description = read_recorded(samples)
    document = json.loads((samples.parent / f"{recorded.name}.json").read_text(encoding="utf-8"))
    argv = document["argv"]
    try:
        model, kv_bytes = MODELS[argv[1]], int(argv[argv.index("--kv-cache-memory-bytes") + 1])
        points = tuple(
            _point(recorded, told, prompt=phase.prompt, output=phase.output)
            for told, phase in zip(document["points"], description.phases, strict=True)
        )
    except (KeyError, ValueError) as error:
        raise BadRecording(f"{samples}: no sweep of a known model: {type(error).__name__}: {error}") from None
    if description.flags.max_num_seqs is None:
        raise BadRecording(f"{samples}: a sweep needs --max-num-seqs")
    return Sweep(
        name=recorded.name,
        model=model,
        max_num_seqs=description.flags.max_num_seqs,
        kv_bytes=kv_bytes,
        kv_tokens=recorded.num_gpu_blocks * recorded.block_size,
        points=points,
    )


def _point(
    recorded: Recorded, told: Mapping[str, Any], *, prompt: tuple[int, int], output: tuple[int, int]
) -> SweepPoint:
    at = recorded.start + recorded.times
    inside = np.flatnonzero((at >= told["measured_from"]) & (at <= told["end"]))
    if len(inside) < 2:
        raise BadRecording(f"{recorded.name}: fewer than two scrapes in the stretch of {told['spec']}")
    first, last = int(inside[0]), int(inside[-1])
    seconds = float(recorded.times[last] - recorded.times[first])

    def grew(column: np.ndarray) -> float:
        return float(column[last] - column[first])

    return SweepPoint(
        clients=int(told["spec"].split(":")[0].removeprefix("c")),
        itl=grew(recorded.itl_seconds) / grew(recorded.itl_count),
        ttft=told["server"]["srv_ttft_mean"],
        throughput=grew(recorded.generation_tokens) / seconds,
        waiting=float(np.mean(recorded.waiting[first : last + 1])),
        prefill_share=grew(recorded.prefill_seconds) / seconds,
        prompt_tokens=sum(prompt) / 2,
        output_tokens=sum(output) / 2,
    )


def curve_file(sweep: Sweep) -> str:
    """Return the sweep as the text of a curve file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    for point in sweep.points:
        writer.writerow(
            {
                "model": sweep.model,
                "gpu": GPU,
                "tp": 1,
                "kv_dtype": "auto",
                "concurrency_or_max_num_seqs": point.clients,
                "tpot_ms_mean_or_p50": f"{point.itl * 1e3:.5g}",
                "ttft_ms": f"{point.ttft * 1e3:.5g}",
                "throughput_tok_s": f"{point.throughput:.5g}",
                "waiting": f"{point.waiting:.5g}",
                "source_url": f"tests/data/vllm-0.26-h200/sweeps/{sweep.name}.om.gz",
                "x_kind": "client_concurrency",
                "isl": f"{point.prompt_tokens:g}",
                "osl": f"{point.output_tokens:g}",
                "vllm_version": VERSION,
                "weight_dtype": "bf16",
                "throughput_kind": "generation_tokens_total",
                "notes": f"max_num_seqs {sweep.max_num_seqs}; KV {sweep.kv_bytes / 2**30:g} GiB; mean inter-token "
                "latency of the engine; lengths drawn evenly, isl and osl are their means; random weights and prompts",
            }
        )
    return text.getvalue()


def write_tables(sweeps: Sequence[Sweep], folder: Path) -> None:
    """Write one curve file a sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    for sweep in sweeps:
        (folder / f"{sweep.name}.csv").write_text(curve_file(sweep), encoding="utf-8")
