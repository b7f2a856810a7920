"""The command `benchmarks/confusion.py`: its options, the matrix as a table and as JSON.

Must not: compute a figure.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.result_files import require_clean_tree, write_result
from benchmarks.windows.draws import KINDS, draw
from benchmarks.windows.matrix import Matrix
from benchmarks.windows.naming import named_windows

NO_CAPACITY: Final = frozenset({"Wedged", "DeferredQueue", "MetricsBlind"})
"""Causes that more replicas do not help: calling one of them Overloaded costs GPUs for nothing."""
FINE: Final = frozenset({"Healthy", "Idle", "Underutilized"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, name, count and report."""
    options = _options(arguments)
    if options.save:
        require_clean_tree()
    matrix, wrong = Matrix(), []
    seeds = range(options.seed, options.seed + options.seeds)
    with Console(stderr=True).status("playing") as status:
        for kind in options.kinds or KINDS:
            for seed in seeds:
                status.update(f"{kind}, seed {seed}")
                truth, classes = asyncio.run(named_windows(draw(kind, seed=seed), seed=seed))
                named = [str(one) for one in classes]
                matrix.count(truth, named)
                if missed := [one for one in named if one != truth]:
                    wrong.append({"kind": kind, "seed": seed, "named": sorted(set(missed)), "windows": len(missed)})
    report = report_of(matrix, wrong=wrong, seeds=list(seeds))
    if options.save:
        write_result("confusion", report)
    if options.json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        _print(matrix, report)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/confusion.py", description="Name simulated windows whose limit is known, and count."
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"all when none: {', '.join(KINDS)}")
    parser.add_argument("--seeds", type=int, default=5, help="scenes of each kind (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/confusion.json")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    if unknown := [kind for kind in options.kinds if kind not in KINDS]:
        parser.error(f"{', '.join(unknown)}: unknown; there are {', '.join(KINDS)}")
    return options


def report_of(matrix: Matrix, *, wrong: Sequence[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """Return everything as JSON."""
    scores = {name: matrix.score(name) for name in matrix.truths}
    return {
        "summary": {
            "seeds": list(seeds),
            "windows": sum(matrix.windows.values()),
            "macro_f1": matrix.macro_f1,
            "no_capacity_called_overloaded": matrix.named_as("Overloaded", truths=NO_CAPACITY),
            "fine_called_anything_else": sum(
                matrix.named_as(name, truths=FINE) for name in matrix.names if name not in FINE
            ),
        },
        "classes": [
            {"class": name, "precision": score.precision, "recall": score.recall, "f1": score.f1}
            for name, score in scores.items()
        ],
        "matrix": [
            {"true": truth, "named": named, "windows": count} for (truth, named), count in matrix.windows.items()
        ],
        "scenes_with_errors": list(wrong),
    }


def _print(matrix: Matrix, report: dict[str, Any]) -> None:
    table = Table(title="windows: true class (rows), named class (columns)", title_justify="left")
    table.add_column("")
    names = matrix.names
    for index, _ in enumerate(names):
        table.add_column(str(index + 1), justify="right")
    table.add_column("F1", justify="right")
    for index, truth in enumerate(names):
        counts = [matrix.windows[truth, named] for named in names]
        f1 = f"{matrix.score(truth).f1:.3f}" if truth in matrix.truths else ""
        table.add_row(f"{index + 1} {truth}", *(str(count) if count else "·" for count in counts), f1)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    for scene in report["scenes_with_errors"]:
        console.print(f"{scene['kind']}, seed {scene['seed']}: {scene['windows']} as {', '.join(scene['named'])}")
    summary = report["summary"]
    console.print(
        f"macro-F1 {summary['macro_f1']:.3f} over {summary['windows']} windows; wedged, deferred or blind called "
        f"overloaded: {summary['no_capacity_called_overloaded']}; fine called anything else: "
        f"{summary['fine_called_anything_else']}"
    )
