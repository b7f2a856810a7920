"""Markdown of the fleet benchmark. Must not: round a figure across a limit."""

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.markdown import Result, table

__all__ = ["FLEET_COLUMNS", "fleet", "row_of"]

FLEET_COLUMNS: Final = (
    "services", "engines", "calm in a tick", "CPU s per tick", "cycle, s", "longest tick, s", "peak RSS, MiB",
    "loop lag, s", "queries per tick", "MiB per tick", "status writes", "all have a status, s",
    "first tick after a kill, s",
)  # fmt: skip


def row_of(cell: Mapping[str, Any]) -> tuple[str, ...]:
    """What one fleet cost, as `FLEET_COLUMNS`."""
    return (
        f"{cell['services']:,}",
        f"{cell['engines']:,}",
        f"{cell['calm']:,.0f}",
        f"{cell['cpu_s_per_tick']:.2f}",
        f"{cell['cycle_s']:.1f}",
        f"{cell['longest_tick_s']:.1f}",
        f"{cell['peak_rss_mib']:.0f}",
        f"{cell['loop_lag_s']:.2f}",
        f"{cell['queries_per_tick']:.1f}",
        f"{cell['mib_per_tick']:.1f}",
        f"{cell['status_writes']} in {cell['ticks']} ticks",
        f"{cell['status_for_all_s']:.0f}",
        f"{cell['first_tick_after_kill_s']:.0f}",
    )


def fleet(result: Result) -> list[str]:
    """Render what each fleet cost."""
    about = (
        "API server, etcd, scheduler, controllers and the operator are real: the operator is one process with the "
        "chart's rights and default settings, on two cores that run all of this. The pods are played by a node that "
        "runs nothing, and Prometheus is a stand-in that sends the bytes a real one sent about one engine under load, "
        "under other names. All services are created at once; a tick is measured when everything has settled. A cycle "
        "is from the begin of a tick to the begin of the next one (the interval is 15 s). Nothing waits in any engine, "
        "so that calm services are decided in one tick of four; where requests wait everywhere, each tick has the cost "
        "of deciding all services."
    )
    return [about, "", *table(FLEET_COLUMNS, [row_of(each) for each in result["cells"]])]
