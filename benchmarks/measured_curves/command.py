"""The command `benchmarks/curves.py`: its options, its report as JSON and as tables.

Must not: compute a figure.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.measured_curves.plot import NoPlot, draw
from benchmarks.measured_curves.profile_fit import Family, profile_of
from benchmarks.measured_curves.read import CurveError
from benchmarks.measured_curves.study import report_of, study, without_measurements
from benchmarks.result_files import ROOT, require_clean_tree, write_result
from vllm_autotuner.simulation.profiles import profile_text

__all__ = ["data_folder", "main"]


def data_folder() -> Path:
    """Return where measured data lies that is not part of the repository."""
    return Path(os.environ.get("VLLM_AUTOTUNER_DATA") or ROOT.parent / "shared" / "data")


def main(arguments: Sequence[str] | None = None) -> int:
    """Study the folder and report. Returns 1 on bad input, with one line that says why."""
    options = _options(arguments)
    if options.save:
        require_clean_tree()
    notes = Console(stderr=True)
    beside = options.curves.parent / "kv_capacity.csv"
    kv_capacity = options.kv_capacity or (beside if beside.is_file() else None)
    try:
        with notes.status("reading curves") as status:
            found = study(options.curves, kv_capacity=kv_capacity, seed=options.seed, progress=status.update)
        if options.plot is not None:
            draw(found.compared, path=options.plot)
        if options.write_profiles is not None:
            _write_profiles(found.families, folder=options.write_profiles, notes=notes)
    except (CurveError, NoPlot, OSError) as error:
        print(f"curves: {error}", file=sys.stderr)
        return 1
    report = report_of(found)
    if options.save:
        write_result("curves", without_measurements(report))
    if options.json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        _print(report)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/curves.py",
        description="Measured curves of real engines: fit the models, play them on the simulator, compare, choose.",
    )
    parser.add_argument(
        "--curves",
        type=Path,
        default=data_folder() / "curves",
        metavar="DIR",
        help="one CSV file a curve (default: curves/ in $VLLM_AUTOTUNER_DATA)",
    )
    parser.add_argument(
        "--kv-capacity",
        type=Path,
        metavar="FILE",
        help="logged KV pools (default: kv_capacity.csv beside DIR, if there is one)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw measured and played curves")
    parser.add_argument("--write-profiles", type=Path, metavar="DIR", help="write what was fitted as profiles")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/curves.json")
    parser.add_argument("--seed", type=int, default=1, help="of lengths and arrivals (default 1)")
    return parser.parse_args(arguments)


def _write_profiles(families: Sequence[Family], *, folder: Path, notes: Console) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    written: set[str] = set()
    for family in families:
        document = profile_of(family)
        refused = family.impossible or ("another set-up has this name" if document.name in written else None)
        if refused is not None:
            notes.print(f"{document.name}: no profile of {family.first.first.file}: {refused}", soft_wrap=True)
            continue
        written.add(document.name)
        (folder / f"{document.name}.json").write_text(profile_text(document), encoding="utf-8")
        notes.print(f"wrote {document.name}.json", soft_wrap=True)


def _print(report: Mapping[str, Any]) -> None:
    console = Console()
    table = Table(title="TPOT on the simulator against measured curves", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("engine", overflow="fold")
    table.add_column("lengths", no_wrap=True)
    for name in ("fitted %", "unseen %", "full at", "regret"):
        table.add_column(name, justify="right", no_wrap=True)
    for curve in report["curves"]:
        table.add_row(
            f"{curve['model'].rsplit('/', 1)[-1]} {curve['gpu'].split('-', 1)[0]} TP{curve['tp']}",
            curve["mix"],
            _pair(curve["tpot_median_abs_pct_error"], curve["tpot_worst_abs_pct_error"], ".1f"),
            _pair(curve["tpot_lomo_median_abs_pct_error"], curve["tpot_lomo_worst_abs_pct_error"], ".1f"),
            _pair(curve["saturation_measured_at"], curve["saturation_played_at"], "g"),
            _figure(curve["goodput_regret_worst"], ".3f"),
        )
    console.print(table)
    console.print("fitted, unseen: median / worst error on a mix that was fitted, and that was not")
    console.print("full at: load at which it saturates, measured / played; regret: the worst choice")
    for each in report["left_out"]:
        console.print(f"left out: {each['file']}: {each['why']}", soft_wrap=True)
    console.print("worst points:")
    for each in report["worst_points"]:
        full = ", saturated" if each["saturated"] else ""
        console.print(f"  {each['error_pct']:+.1f} %  {each['file']} at {each['x']:g}{full}", soft_wrap=True)
    for name, value in report["summary"].items():
        console.print(f"{name:45} {_figure(value, '.4g')}", soft_wrap=True)


def _pair(one: float | None, other: float | None, form: str) -> str:
    return "-" if one is None and other is None else f"{_figure(one, form)} / {_figure(other, form)}"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
