"""The command `benchmarks/replay.py`: its options, its report as JSON and as tables.

Must not: compute a figure.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.recordings.compare import Level
from benchmarks.recordings.plot import NoPlot, draw
from benchmarks.recordings.read import BadRecording, Description, Recorded, read_recorded
from benchmarks.recordings.study import MOST_LEVEL_ERROR, MOST_PREEMPTION_RATIO, PROOF, Outcome, study
from benchmarks.result_files import ROOT, require_clean_tree, write_result

RECORDINGS: Final = ROOT / "tests" / "data" / "vllm-0.32" / "recordings"
RESULTS: Final = {RECORDINGS: "replay", ROOT / "tests" / "data" / "vllm-0.26-h200" / "recordings": "replay_h200"}
"""Where `--save` writes, by folder."""
SUFFIXES: Final = (".om.gz", ".om")


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay and report. Returns 2 on bad input, with one line that says why."""
    options = _options(arguments)
    result = RESULTS.get(options.recordings.resolve())
    if options.save:
        if result is None:
            print(
                f"replay: --save is for the recordings of this repository, not for {options.recordings}",
                file=sys.stderr,
            )
            return 2
        require_clean_tree()
    notes = Console(stderr=True)
    try:
        found = [read_recorded(path) for path in _chosen(options.recordings, options.names)]
        if len({recorded.name for recorded, _ in found}) < len(found):
            raise BadRecording("two recordings carry the same name: replay them one after the other")
        recordings = {recorded.name: (recorded, description) for recorded, description in found}
        with notes.status("replaying") as status:
            outcomes = study(recordings, seeds=range(options.seeds), progress=status.update)
        report = report_of(recordings, outcomes, seeds=options.seeds)
        if options.plot is not None:
            draw({name: (recordings[name][0], each) for name, each in outcomes.items()}, path=options.plot)
    except (BadRecording, NoPlot) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    if options.save and result is not None:
        write_result(result, report)
    if options.json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        _print(outcomes, recordings)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/replay.py",
        description="Replay recordings of a real engine on the simulated one, and compare.",
    )
    parser.add_argument("names", nargs="*", metavar="RECORDING", help="names or files; all of the folder when none")
    parser.add_argument("--recordings", type=Path, default=RECORDINGS, metavar="DIR", help="NAME.om.gz and NAME.json")
    parser.add_argument("--seeds", type=int, default=3, help="how often lengths are drawn (default 3)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw real and simulated over time")
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/replay.json, of an H200 replay_h200.json"
    )
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    return options


def _chosen(folder: Path, names: Sequence[str]) -> Sequence[Path]:
    if not names:
        found = sorted(path for path in folder.glob("*") if path.name.endswith(SUFFIXES))
        if not found:
            raise BadRecording(f"{folder} holds no recording (NAME.om.gz or NAME.om)")
        return found
    return [_file(folder, name) for name in names]


def _file(folder: Path, name: str) -> Path:
    candidates = [Path(name), *(folder / f"{name}{suffix}" for suffix in SUFFIXES)]
    for path in candidates:
        if path.is_file():
            return path
    raise BadRecording(f"there is no recording {name}: neither a file nor {candidates[1]}")


def report_of(
    recordings: Mapping[str, tuple[Recorded, Description]],
    outcomes: Mapping[str, Sequence[Outcome]],
    *,
    seeds: int,
) -> dict[str, Any]:
    """Return everything as JSON."""
    proof = [each for ways in outcomes.values() for each in ways if each.way.name == PROOF]
    errors = [each.level_error for each in proof]
    ratios = [ratio for each in proof for ratio in each.preemptions]
    return {
        "summary": {
            "way": PROOF,
            "seeds": seeds,
            "holds": all(each.holds for each in proof),
            "level_error_pct": None if None in errors else 100 * max(one for one in errors if one is not None),
            "preemption_ratio": None if None in ratios else max(one for one in ratios if one is not None),
            "class_differences": sum(len(seed) for each in proof for seed in each.classes),
            "class_differences_away_from_turns": sum(
                not one.near_turn for each in proof for seed in each.classes for one in seed
            ),
            "allowed": {"level_error_pct": 100 * MOST_LEVEL_ERROR, "preemption_ratio": MOST_PREEMPTION_RATIO},
        },
        "recordings": [
            {
                "recording": name,
                "seconds": recordings[name][0].seconds,
                "ways": [_way_row(recordings[name][0], each) for each in ways],
            }
            for name, ways in outcomes.items()
        ],
    }


def _way_row(recorded: Recorded, outcome: Outcome) -> dict[str, Any]:
    law = outcome.way.law
    return {
        "way": outcome.way.name,
        "holds": outcome.holds,
        "law_ms": {
            "base": 1e3 * law.base,
            "per_sequence": 1e3 * law.per_sequence,
            "per_prefill_token": 1e3 * law.per_prefill_token,
        },
        "law_median_error_pct": 100 * outcome.way.law_median_error,
        "law_mean_abs_error_pct": 100 * outcome.way.law_mean_abs_error,
        "levels": [_level_row(same) for same in zip(*outcome.whole, strict=True)],
        "levels_while_saturated": [_level_row(same) for same in zip(*outcome.saturated, strict=True)],
        "totals": [
            {
                "quantity": quantity,
                "real": float(getattr(recorded, quantity)[-1]),
                "simulated": [float(getattr(one, quantity)[-1]) for one in outcome.simulated],
            }
            for quantity in ("finished", "prompt_tokens", "generation_tokens", "steps", "preemptions")
        ],
        "preemption_ratios": list(outcome.preemptions),
        "class_differences": [
            [{"at": one.at, "real": one.real, "simulated": one.simulated, "near_turn": one.near_turn} for one in seed]
            for seed in outcome.classes
        ],
    }


def _level_row(same: Sequence[Level]) -> dict[str, Any]:
    """One quantity over all seeds: the simulated mean, its error, and the error of the worst seed."""
    mean, errors = Level.mean_of(same), [level.error for level in same if level.error is not None]
    return {
        "quantity": mean.quantity,
        "real": mean.real,
        "simulated": mean.simulated,
        "error_pct": None if mean.error is None else 100 * mean.error,
        "worst_seed_error_pct": 100 * max(errors, key=abs) if errors else None,
    }


def _print(outcomes: Mapping[str, Sequence[Outcome]], recordings: Mapping[str, tuple[Recorded, Description]]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 140)
    for name, ways in outcomes.items():
        rows = [_way_row(recordings[name][0], each) for each in ways]
        table = Table(title=f"{name} (in brackets: the worst seed)", title_justify="left")
        for heading in ("", "real", *(each.way.name for each in ways)):
            table.add_column(heading, justify="right" if heading else "left")
        for part, label in (("levels", ""), ("levels_while_saturated", ", while the queue stands")):
            for cells in zip(*(row[part] for row in rows), strict=True):
                real = f"{cells[0]['real']:.4g}"
                table.add_row(f"{cells[0]['quantity']}{label}", real, *(_level_text(cell) for cell in cells))
        for index, total in enumerate(rows[0]["totals"]):
            means = [fmean(row["totals"][index]["simulated"]) for row in rows]
            table.add_row(total["quantity"], f"{total['real']:.0f}", *(f"{mean:.0f}" for mean in means))
        table.add_row("classes that differ", "", *(_classes_text(each) for each in ways))
        errors = [(row["law_median_error_pct"], row["law_mean_abs_error_pct"]) for row in rows]
        table.add_row("law: median, mean error", "", *(f"{middle:+.0f} %, {mean:.0f} %" for middle, mean in errors))
        table.add_row("holds", "", *("yes" if each.holds else "no" for each in ways))
        console.print(table)


def _level_text(cell: Mapping[str, Any]) -> str:
    if cell["error_pct"] is None:
        return f"{cell['simulated']:.4g}"
    return f"{cell['simulated']:.4g} {cell['error_pct']:+.1f} % ({cell['worst_seed_error_pct']:+.1f})"


def _classes_text(outcome: Outcome) -> str:
    away = sum(not one.near_turn for seed in outcome.classes for one in seed)
    return f"{sum(map(len, outcome.classes))}, away from turns {away}"
