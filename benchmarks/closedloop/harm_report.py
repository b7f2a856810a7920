"""What secretly bad values cost over many cases: the summary, as values and as tables.

Must not: run anything, or leave a case out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from benchmarks.closedloop.harm import HarmTrial

__all__ = ["MOST_LOST", "harm_summarised", "harm_summary", "harm_tabled"]

MOST_LOST: Final = 0.01
"""Part of the goodput that tuning may cost, all cases together. The promise of the design."""


def harm_summary(trials: Sequence[HarmTrial]) -> dict[str, Any]:
    """All cases together, and the worst of them."""
    cases = [trial.figures for trial in trials]
    good = {name: sum(case["served_well"][name] for case in cases) for name in ("off", "clean", "tuned")}
    worst = max(trials, key=lambda one: one.figures["goodput_lost_to_tuning"])
    lost = [trial for trial in trials if trial.figures["goodput_lost_to_tuning"] > MOST_LOST]
    below = [trial for trial in trials if trial.figures["below_ready_floor_seconds"] > 0]
    return {
        "cases": len(cases),
        "goodput_lost_to_tuning": _part(good["off"] - good["tuned"], good["off"]),
        "goodput_lost_to_tuning_in_the_worst_case": worst.figures["goodput_lost_to_tuning"],
        "worst_case": _name(worst),
        "goodput_lost_to_bad_values": _part(good["clean"] - good["tuned"], good["clean"]),
        "spoiled_by_bad_values": _part(
            sum(case["spoiled_by_bad_values"] * case["served_well"]["off"] for case in cases), good["off"]
        ),
        "over_1_pct_lost": [_name(trial) for trial in lost],
        "below_ready_floor_seconds": sum(case["below_ready_floor_seconds"] for case in cases),
        "own_pods_below_ready_floor_seconds": sum(case["own_pods_below_ready_floor_seconds"] for case in cases),
        "below_ready_floor": [_name(trial) for trial in below],
        "cases_with_bad_values": sum(bool(case["bad_pods"]) for case in cases),
        "bad_pods": sum(case["bad_pods"] for case in cases),
        "bad_serving_seconds": sum(case["bad_serving_seconds"] for case in cases),
        "bad_values_tried": _by_way(cases, "bad_values"),
        "bad_values_promoted": _by_way(cases, "promoted_bad_values"),
        "bad_values_kept": _by_way(cases, "kept_bad_values"),
        "changes_kept": sum(case["changes_kept"] for case in cases),
        "changes_rolled_back": sum(case["changes_rolled_back"] for case in cases),
    }


def harm_tabled(trials: Sequence[HarmTrial]) -> Table:
    """A line a case."""
    table = Table(title="secretly bad values", title_justify="left")
    for column in ("case", "lost", "to bad", "spoiled", "below floor", "kept", "undone", "bad pods", "bad values"):
        table.add_column(column, justify="left" if column in ("case", "bad values") else "right")
    for trial in trials:
        case = trial.figures
        table.add_row(
            _name(trial),
            f"{case['goodput_lost_to_tuning']:+.2%}",
            f"{case['goodput_lost_to_bad_values']:+.2%}",
            f"{case['spoiled_by_bad_values']:.2%}",
            f"{case['below_ready_floor_seconds']:.0f} s",
            str(case["changes_kept"]),
            str(case["changes_rolled_back"]),
            str(case["bad_pods"]),
            ", ".join(case["bad_values"]),
        )
    return table


def harm_summarised(summary: Mapping[str, Any]) -> Table:
    """The summary as a table."""
    table = Table(title=f"over {summary['cases']} case(s)", title_justify="left", show_header=False)
    for name, value in summary.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    return table


def _by_way(cases: Sequence[Mapping[str, Any]], name: str) -> dict[str, int]:
    ways = [told.split(": ")[1] for case in cases for told in case[name]]
    return {way: ways.count(way) for way in sorted(set(ways))}


def _name(trial: HarmTrial) -> str:
    return f"{trial.task.scenario} {trial.task.seed}"


def _part(value: float, whole: float) -> float:
    return value / whole if whole else 0.0
