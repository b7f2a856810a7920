"""The command `benchmarks/h200_sweeps.py`: its options, its report as JSON and as tables.

Must not: compute a figure.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from benchmarks.gpu_sweeps.page import h200_sweeps
from benchmarks.gpu_sweeps.report import report_of
from benchmarks.gpu_sweeps.tables import DATA, read_sweep, write_tables
from benchmarks.measured_curves.read import CurveError
from benchmarks.recordings.read import BadRecording
from benchmarks.result_files import require_clean_tree, write_result

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Study the sweeps and report. Returns 1 on bad input, with one line that says why."""
    options = _options(arguments)
    if options.save:
        require_clean_tree()
    try:
        if options.write_tables:
            sweeps = [read_sweep(path) for path in sorted((options.data / "sweeps").glob("*.om.gz"))]
            write_tables(sweeps, options.data / "curves")
        report = report_of(options.data, seed=options.seed)
    except (BadRecording, CurveError) as error:
        print(f"h200_sweeps: {error}", file=sys.stderr)
        return 1
    if options.save:
        write_result("h200_sweeps", report)
    if options.json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        Console().print(Markdown("\n".join(h200_sweeps(report))))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/h200_sweeps.py",
        description="Sweeps of a real vLLM on a GPU against what is foretold of it, from half of them and from none.",
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="sweeps, recordings and kv_capacity.csv")
    parser.add_argument("--write-tables", action="store_true", help="write DIR/curves from the recordings first")
    parser.add_argument("--seed", type=int, default=1, help="of the simulated engine (default 1)")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/h200_sweeps.json")
    return parser.parse_args(arguments)
