"""The figures of a run as tables for a terminal. Must not: compute a figure that the JSON does not hold."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks.closedloop.summary import Played, case_figures, worth_of_flags
from benchmarks.closedloop.trial import PolicyName

__all__ = ["case_table", "summary_table"]


def case_table(played: Played) -> Table:
    """One case, cheapest first."""
    figures = case_figures(played)
    worth = worth_of_flags(played)
    title = f"{figures['scenario']} {figures['seed']}: {figures['story']} ({figures['engine']})"
    if worth is not None:
        title += f"; flags are worth {worth:.2f}"
    table = Table(title=title, title_justify="left")
    for column in ("policy", "attained", "of the oracle's", "GPU-h", "of the oracle's", "goodput", "restarts"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    table.add_column("played, h", justify="right")
    table.add_column("changes kept")
    for name, found in sorted(figures["policies"].items(), key=lambda one: one[1]["gpu_hours"]):
        hours = found["extrapolated_from_hours"]
        table.add_row(
            name,
            f"{found['attainment']:.1%}",
            _percent(found.get("attainment_vs_oracle")) + ("" if found.get("met", True) else " missed"),
            f"{found['gpu_hours']:.1f}",
            _ratio(found.get("gpu_hours_vs_oracle")),
            f"{found['goodput']:.2f}/s",
            str(found["restarts"]),
            f"{figures['hours']:.0f}" if hours is None else f"{hours:.1f} of {figures['hours']:.0f}",
            _told(found),
        )
    return table


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The product, its rivals and its ablations over all cases."""
    table = Table(title="over all cases, against the oracle of each", title_justify="left")
    for column in ("policy", "met", "attained: median", "worst", "GPU-h: median", "worst", "kept", "rolled back"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    rows = [(PolicyName.AUTOTUNER.value, summary), *summary["rivals"].items(), *summary["ablations"].items()]
    for name, found in rows:
        if not found["cases"]:
            continue
        table.add_row(
            name,
            f"{found['cases_met']} of {found['cases']}",
            _percent(found["attainment_vs_oracle_median"]),
            _percent(found["attainment_vs_oracle_worst"]),
            _ratio(found["gpu_hours_vs_oracle_median"]),
            _ratio(found["gpu_hours_vs_oracle_worst"]),
            str(found["kept_changes"]),
            str(found["rolled_back"]),
        )
    return table


def _told(found: Mapping[str, Any]) -> str:
    if "setting" in found:
        setting = found["setting"]
        replicas: Sequence[Any] = setting["replicas"]
        count = str(replicas[0][1]) if len(replicas) == 1 else f"{min(r for _, r in replicas)} to "
        count += "" if len(replicas) == 1 else str(max(r for _, r in replicas))
        return f"seats {setting['seats']}, {setting['kv_cache_dtype']}, TP {setting['tensor_parallel_size']}, x {count}"
    return ", ".join(f"{one['knob']} {one['from']} -> {one['to']}" for one in found.get("kept_changes", ()))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
