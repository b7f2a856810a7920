"""Markdown of the fleet benchmark. Must not: round a figure across a limit."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.markdown import Result, table

__all__ = [
    "CANARY_COLUMNS",
    "FLEET_COLUMNS",
    "SHARD_COLUMNS",
    "canary_row_of",
    "fleet",
    "fleet_before",
    "fleet_canary",
    "fleet_real_prometheus",
    "fleet_shards",
    "fleet_shards_others",
    "fleet_troubles",
    "row_of",
    "rows_of_shards",
]

FLEET_COLUMNS: Final = (
    "services", "engines", "calm in a tick", "CPU s per tick", "reference loop, ms", "cycle, s", "longest tick, s",
    "peak RSS, MiB", "loop lag, s", "queries per tick", "MiB per tick", "status writes", "all have a status, s",
    "a running change goes on after a kill, s", "first tick after a kill, s",
)  # fmt: skip
SHARD_COLUMNS: Final = (
    "services", "engines", "shard", "its services", "CPU s per tick", "reference loop, ms", "cycle, s",
    "longest tick, s", "peak RSS, MiB", "peak RSS after a restart, MiB", "loop lag, s", "all have a status, s",
)  # fmt: skip
TROUBLE_COLUMNS: Final = (
    "services", "Prometheus", "minutes", "ticks", "longest tick, s", "a running change goes on after, s",
    "status writes", "blind in the end", "seen again after, s", "Lease lost", "peak RSS, MiB",
)  # fmt: skip
API_COLUMNS: Final = (
    "services", "API server or operator", "ticks in 2 min", "longest tick, s",
    "a running change goes on after, s", "status writes", "Lease lost", "peak RSS, MiB",
)  # fmt: skip
CANARY_COLUMNS: Final = (
    "services that are created", "the canary's change", "warms up after, s", "is analyzed after, s", "bakes after, s",
    "is over after, s", "moments without service", "invariants broken", "all have a status, s",
)  # fmt: skip


def row_of(cell: Mapping[str, Any]) -> tuple[str, ...]:
    """What one fleet cost, as `FLEET_COLUMNS`."""
    return (
        f"{cell['services']:,}",
        f"{cell['engines']:,}",
        f"{cell['calm']:,.0f}",
        f"{cell['cpu_s_per_tick']:.2f}",
        _if_measured(cell, "reference_loop_ms"),
        f"{cell['cycle_s']:.1f}",
        f"{cell['longest_tick_s']:.1f}",
        f"{cell['peak_rss_mib']:.0f}",
        f"{cell['loop_lag_s']:.2f}",
        f"{cell['queries_per_tick']:.1f}",
        f"{cell['mib_per_tick']:.1f}",
        f"{cell['status_writes']} in {cell['ticks']} ticks",
        f"{cell['status_for_all_s']:.0f}",
        _if_measured(cell, "change_goes_on_after_kill_s"),
        f"{cell['first_tick_after_kill_s']:.0f}",
    )


def rows_of_shards(cell: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What each shard of a fleet cost, as `SHARD_COLUMNS`."""
    shards = cell["shards"]
    first, of = cell.get("number", 0) + 1, cell.get("of", len(shards))
    return [
        (
            f"{cell['services']:,}",
            f"{cell['engines']:,}",
            f"{number} of {of}",
            f"{sum(each['diagnoses'].values()):,.0f}",
            f"{each['cpu_s_per_tick']:.2f}",
            _if_measured(cell, "reference_loop_ms"),
            f"{each['cycle_s']:.1f}",
            f"{each['longest_tick_s']:.1f}",
            f"{each['peak_rss_mib']:.0f}",
            _if_measured(each, "start_peak_rss_mib"),
            f"{each['loop_lag_s']:.2f}",
            f"{cell['status_for_all_s']:.0f}",
        )
        for number, each in enumerate(shards, start=first)
    ]


def _if_measured(figures: Mapping[str, Any], name: str) -> str:
    """A figure that results of earlier versions do not have."""
    return "not measured" if (found := figures.get(name)) is None else f"{found:.0f}"


def canary_row_of(cell: Mapping[str, Any]) -> tuple[str, ...]:
    """How one canary's change went beside the creation of a fleet, as `CANARY_COLUMNS`."""
    after = cell["after_s"]
    return (
        f"{cell['services']:,}",
        cell["outcome"],
        *(f"{after[state]:.0f}" if state in after else "never" for state in ("WarmingUp", "Analyzing", "Baking")),
        f"{after['over']:.0f}",
        f"{len(cell['lapses'])}",
        f"{len(cell['broken'])}",
        "-" if cell["status_for_all_s"] is None else f"{cell['status_for_all_s']:.0f}",
    )


def _troubles(cell: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            f"{cell['services']:,}",
            each["trouble"],
            f"{each['seconds'] / 60:.0f}",
            f"{each['ticks']}",
            f"{each['longest_tick_s']:.1f}",
            f"{each['change_goes_on_s']:.0f}",
            f"{each['status_writes']:,}",
            f"{each['blind']:,}",
            f"{each['seeing_again_s']:.0f}",
            "yes" if each["leases_lost"] else "no",
            f"{each['peak_rss_mib']:.0f}",
        )
        for each in cell["troubles"]
    ]


def _api_troubles(cell: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            f"{cell['services']:,}",
            each["trouble"],
            f"{each['ticks']}",
            f"{each['longest_tick_s']:.1f}",
            f"{each['change_goes_on_s']:.0f}",
            f"{each['status_writes']:,}",
            "yes" if each["leases_lost"] else "no",
            f"{each['peak_rss_mib']:.0f}",
        )
        for each in cell.get("api_troubles", ())
    ]


def _growth(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """How cost grows with engines, as charts that GitHub and the site draw from text. `cells`: smallest first."""
    lines = []
    for title, name in (("CPU seconds per tick", "cpu_s_per_tick"), ("Peak RSS, MiB", "peak_rss_mib")):
        values = [each[name] for each in cells]
        lines += [
            "```mermaid",
            "xychart-beta",
            f'    title "{title}, by engines"',
            "    x-axis [" + ", ".join(f'"{each["engines"]:,}"' for each in cells) + "]",
            f"    y-axis 0 --> {math.ceil(1.1 * max(values))}",
            f"    bar [{', '.join(map(str, values))}]",
            "```",
            "",
        ]
    return lines


def fleet(result: Result) -> list[str]:
    """Render what each fleet cost."""
    about = (
        "API server, etcd, scheduler, controllers and the operator are real: the operator is one process with the "
        "chart's rights and default settings, on two cores that run all of this. The pods are played by a node that "
        "runs nothing, and Prometheus is a stand-in that sends the bytes a real one sent about one engine under load, "
        "under other names. All services are created at once; a tick is measured when everything has settled. A cycle "
        "is from the begin of a tick to the begin of the next one (the interval is 15 s). The reference loop is a "
        "fixed piece of Python that runs every 10 s beside what is measured: the cores are shared with strangers, and "
        "CPU seconds of two hours compare only beside its CPU milliseconds. Nothing waits in any engine, so that calm "
        "services rest in most ticks; where requests wait everywhere, each tick has the cost of deciding all "
        "services. The operator's metrics are asked for every 5 s, which is in the figures: 8 % of a tick of 1,000 "
        "services."
    )
    cells = sorted(result["cells"], key=lambda each: float(each["engines"]))
    lines = [about, "", *table(FLEET_COLUMNS, [row_of(each) for each in cells])]
    if len(cells) > 1:
        lines += ["", *_growth(cells)[:-1]]
    return lines


def fleet_before(result: Result) -> list[str]:
    """Render what fleets cost an earlier operator and this one, in the same hour."""
    about = (
        "The operator of 2026-11-23, from before all that was made for fleets, and the one of the commit below, one "
        "after the other within an hour. The earlier one stands in the first version of this benchmark, to which the "
        "reference loop was added, and 5 s between two looks at its metrics. With 1,000 services it has no row: eight "
        "minutes after their creation it did not have the metrics of all yet, and took 14 of 15 seconds of a core, "
        "where it had been measured at 7.7 on a faster day."
    )
    rows = [(each["operator"], *row_of(each)) for each in result["cells"]]
    return [about, "", *table(("operator", *FLEET_COLUMNS), rows)]


def fleet_troubles(result: Result) -> list[str]:
    """Render what a fleet's operator did in trouble."""
    cells = result["cells"]
    lines = ["As above.", "", *table(FLEET_COLUMNS, [row_of(each) for each in cells])]
    if troubled := [row for each in cells for row in _troubles(each)]:
        told = (
            "Then Prometheus has a trouble for some minutes, and recovers; one after the other. At the begin of each a "
            "status gets a running change, as an operator that is gone would have left it: its end brings the service "
            "a new pod, of which Prometheus tells nothing before the trouble is over, so one is blind."
        )
        lines += ["", told, "", *table(TROUBLE_COLUMNS, troubled)]
    if hindered := [row for each in cells for row in _api_troubles(each)]:
        told = (
            "Then the API server has a trouble for two minutes, also towards the Lease, with such a change as well; "
            "and in the end the process of the leader is stopped until another one leads, and goes on then."
        )
        lines += ["", told, "", *table(API_COLUMNS, hindered)]
    return lines


def fleet_real_prometheus(result: Result) -> list[str]:
    """Render what a fleet cost beside a real Prometheus."""
    about = (
        "As above, but that a real Prometheus finds the pods through the API server and scrapes one engine under load, "
        "every 15 s, under the name of each. MiB are counted by it, as it sends them: compressed."
    )
    return [about, "", *table(FLEET_COLUMNS, [row_of(each) for each in result["cells"]])]


def fleet_shards(result: Result) -> list[str]:
    """Render what each shard of a fleet cost."""
    about = (
        "As above, but that the fleet is shared by operators with a shard each (whole namespaces). They all run on the "
        "two cores, beside the control plane. A shard's process hears of the whole fleet and keeps its own part."
    )
    return [about, "", *table(SHARD_COLUMNS, [row for each in result["cells"] for row in rows_of_shards(each)])]


def fleet_shards_others(result: Result) -> list[str]:
    """Render what one shard of a fleet cost beside what the others would have made."""
    about = (
        "As above, but one shard alone, with an operator of its own. The services of the others stand beside it with a "
        "paused Deployment each and played pods, as their operators would have made them; those operators, and the "
        "controllers of so many pods, do not fit on two cores as well."
    )
    return [about, "", *table(SHARD_COLUMNS, [row for each in result["cells"] for row in rows_of_shards(each)])]


def fleet_canary(result: Result) -> list[str]:
    """Render how a canary's change went beside the creation of a fleet."""
    about = (
        "One service of two simulated engines whose load needs more slots, with a canary, scraped by a real Prometheus "
        "every second. The others are created at once when the analysis begins; their pods are played and "
        "not scraped. Interval 15 s, window 30 s, analysis 3 minutes. Seconds are those since the change began."
    )
    return [about, "", *table(CANARY_COLUMNS, [canary_row_of(each) for each in result["cells"]])]
