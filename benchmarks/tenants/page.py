"""Markdown of the benchmarks among tenants: hostile ones, and many of them. Must not: round a figure across a limit."""

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.markdown import Result, held, table

__all__ = ["COST_COLUMNS", "cost_of", "hostile", "operator_cost"]


def _targets(summary: Mapping[str, Any]) -> list[str]:
    figures = [
        held("longest tick, s (limit: the chart's interval)", summary["longest_tick_s"], summary["tick_limit_s"]),
        held("peak RSS, MiB (limit: the chart's)", summary["peak_rss_mib"], summary["rss_limit_mib"]),
    ]
    return table(("figure", "measured", "limit", ""), figures)


def hostile(result: Result) -> list[str]:
    """Render the targets, and what each attack came to."""
    summary = result["summary"]
    about = (
        "One honest service with two replicas, whose canary is judged and promoted, beside tenants who attack. Control "
        "plane, Prometheus and operator (a pod of the chart) are real, the engines simulated. Alone: ticks every 2 s, "
        "the attack comes while the operator watches. Together: the chart's interval, for ten minutes, and the attacks "
        "are there before the operator starts. The loop lag is the longest delay of a timer of the operator, on cores "
        "that run all of this."
    )
    rows = [
        (
            f"{each['attack']}: {each['what']}" if part == "alone" and each["attack"] else each["what"],
            _reported(each["reported"]),
            f"{each['longest_tick_s']:.2f}",
            f"{each['loop_lag_s']:.2f}",
            f"{each['peak_rss_mib']:.0f}",
            str(each["restarts"]),
            f"{each['honest']}, in {each['honest_seconds']:.0f} s",
        )
        for part in ("alone", "together")
        for each in result[part]
    ]
    header = (
        "attack",
        "reported on its object",
        "longest tick, s",
        "loop lag, s",
        "peak RSS, MiB",
        "restarts",
        "honest change",
    )
    faults = [f"- {fault}" for fault in summary["faults"]]
    return [
        about,
        "",
        *_targets(summary),
        "",
        f"Restarts: {summary['restarts']}. Attacks not met, or harm to the honest service: {len(faults) or 'none'}.",
        *faults,
        "",
        *table(header, rows),
    ]


def _reported(said: Mapping[str, str]) -> str:
    """What was said of an attack; of several only how many were reported."""
    met = [text for text in said.values() if text]
    return "; ".join(met) if len(said) <= 1 else f"{len(met)} of {len(said)}"


COST_COLUMNS: Final = (
    "tenants", "series of each", "peak RSS, MiB", "CPU s per minute", "first tick, s", "longest later tick, s",
    "loop lag, s",
)  # fmt: skip


def cost_of(cell: Mapping[str, Any]) -> tuple[str, ...]:
    """What one cell of the benchmark cost, as `COST_COLUMNS`."""
    return (
        str(cell["tenants"]),
        f"{cell['series_per_tenant']:,}",
        f"{cell['peak_rss_mib']:.0f}",
        f"{cell['cpu_s_per_minute']:.1f}",
        f"{cell['first_tick_s']:.1f}",
        f"{cell['longest_tick_s']:.1f}",
        f"{cell['loop_lag_s']:.2f}",
    )


def operator_cost(result: Result) -> list[str]:
    """Render memory and CPU time by tenants and series."""
    summary = result["summary"]
    about = (
        "Each tenant is a namespace with one VLLMService, one pod of it, and so many further engines that its series "
        "in the largest answer are those of the second column. The operator is a process with the chart's rights and "
        "default settings, started anew for each line; the control plane and the pods are real. Prometheus is a "
        "stand-in that sends the bytes a real one sent about one engine, under other names. A tenant whose series "
        "exceed a budget ([budgets.md](budgets.md)) has no metrics; memory stays bounded. An engine has "
        f"{summary['series_of_an_engine_in_the_largest_answer']} series in the largest answer and "
        f"{summary['series_of_an_engine_in_all_answers']} in all of them."
    )
    rows = [(*cost_of(each), str(each["tenants_with_metrics"])) for each in result["cells"]]
    return [about, "", *_targets(summary), "", *table((*COST_COLUMNS, "tenants with metrics"), rows)]
