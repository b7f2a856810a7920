"""What hostile neighbours cost the operator and an honest change beside them, on a real control plane (`make hostile`).

Usage: python benchmarks/hostile.py [--attack B4 ...] [--alone | --together] [--save]
Each attack alone beside one honest service under change, then all of them at once for ten minutes. The control plane,
Prometheus and the operator are real; the engines are simulated. The exit code is 0 only if every target holds.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]

from rich.console import Console
from rich.table import Table

from benchmarks.result_files import require_clean_tree, write_result
from benchmarks.tenants.inside import enter_bed
from e2e import odd_engines
from e2e.bed import DEFAULT_IMAGES, Bed
from e2e.binaries import ensure_binaries
from e2e.errors import BedError
from e2e.hostile.attacks import Attack, attacks
from e2e.hostile.limits import chart_limits
from e2e.hostile.story import AS_INSTALLED, QUICKLY, Story, played
from e2e.stage import OPERATOR_IMAGE, SIMULATED_ENGINE

SERIES, OBJECTS = 300_000, 10
"""Of one pod, and of one tenant."""
IMAGES: Final = (*DEFAULT_IMAGES, SIMULATED_ENGINE, *odd_engines.ROWS, OPERATOR_IMAGE)
TOGETHER: Final = "all of them at once, from before the operator's start"
NOBODY: Final = "none"


def row(what: str, story: Story, *, numbers: str = "") -> dict[str, Any]:
    """One line of the table."""
    return {
        "attack": numbers,
        "what": what,
        "reported": dict(story.reported),
        "faults": story.faults,
        "honest": story.outcome,
        "honest_seconds": round(story.seconds, 1),
        "longest_tick_s": round(story.cost.longest_tick, 3),
        "ticks": story.cost.ticks,
        "loop_lag_s": round(story.cost.loop_lag, 3),
        "peak_rss_mib": round(story.cost.peak_bytes / 2**20, 1),
        "cpu_s": round(story.cost.cpu_seconds, 1),
        "restarts": story.cost.restarts,
        "unhandled": story.cost.failed,
        "exceeded": {name: count for name, count in sorted(story.cost.exceeded.items()) if count},
        "watched_s": round(story.lasted, 1),
    }


async def measured(chosen: Sequence[Attack], *, alone: bool, together: bool, console: Console) -> dict[str, Any]:
    """Play every story and return the figures."""
    rows: dict[str, list[dict[str, Any]]] = {"alone": [], "together": []}
    async with Bed(images=IMAGES) as bed:
        # Everything is scraped by a server of the story; this one would scrape the hostile pods as well.
        bed.prometheus.stop()
        plans: list[tuple[str, str, Sequence[Attack]]] = []
        if alone:
            plans = [("alone", NOBODY, ()), *(("alone", attack.what, (attack,)) for attack in chosen)]
        if together:
            plans += [("together", TOGETHER, chosen)]
        for number, (part, what, those) in enumerate(plans):
            pace = QUICKLY if part == "alone" else AS_INSTALLED
            story = await played(bed, those, name=f"s{number}", pace=pace, first=part == "together")
            found = row(what, story, numbers="; ".join(each.number for each in those))
            rows[part].append(found)
            console.print(_line(found), highlight=False)
    limits = chart_limits()
    everything = [*rows["alone"], *rows["together"]]
    return {
        "summary": {
            "attacks": len(chosen),
            "restarts": sum(each["restarts"] for each in everything),
            "longest_tick_s": max(each["longest_tick_s"] for each in everything),
            "tick_limit_s": limits.tick_seconds,
            "longest_loop_lag_s": max(each["loop_lag_s"] for each in everything),
            "peak_rss_mib": max(each["peak_rss_mib"] for each in everything),
            "rss_limit_mib": limits.memory_bytes / 2**20,
            "honest_outcomes": sorted({each["honest"] for each in everything}),
            "faults": [fault for each in everything for fault in each["faults"]],
        },
        "series": SERIES,
        **rows,
    }


def missed(figures: Mapping[str, Any]) -> list[str]:
    """The targets that do not hold."""
    summary = figures["summary"]
    outcomes = summary["honest_outcomes"]
    return [
        *summary["faults"],
        *([f"{summary['restarts']} restarts"] if summary["restarts"] else []),
        *(["a tick is longer than the interval"] if summary["longest_tick_s"] >= summary["tick_limit_s"] else []),
        *(["the memory exceeds the limit of the chart"] if summary["peak_rss_mib"] >= summary["rss_limit_mib"] else []),
        *([f"the honest change ended as {outcomes}"] if outcomes != ["Succeeded, maxNumSeqs 4 -> 8"] else []),
    ]


def _line(found: Mapping[str, Any]) -> str:
    return (
        f"{found['attack'] or NOBODY:8} honest change: {found['honest']} in {found['honest_seconds']:.0f} s; longest "
        f"tick {found['longest_tick_s']:.2f} s, loop lag {found['loop_lag_s']:.2f} s, {found['peak_rss_mib']:.0f} MiB, "
        f"{found['restarts']} restarts" + (f"; WRONG: {found['faults']}" if found["faults"] else "")
    )


def _table(figures: Mapping[str, Any]) -> Table:
    table = Table("attack", "reported", "longest tick", "loop lag", "peak RSS", "restarts", "honest change")
    for found in (*figures["alone"], *figures["together"]):
        table.add_row(
            f"{found['attack']} {found['what']}".strip(),
            "\n".join(found["reported"].values()),
            f"{found['longest_tick_s']:.2f} s",
            f"{found['loop_lag_s']:.2f} s",
            f"{found['peak_rss_mib']:.0f} MiB",
            str(found["restarts"]),
            f"{found['honest']}, {found['honest_seconds']:.0f} s",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attack", nargs="+", metavar="NUMBER", help="only these, such as B4")
    parser.add_argument("--alone", action="store_true", help="only one after the other")
    parser.add_argument("--together", action="store_true", help="only all of them at once")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/hostile.json")
    given = parser.parse_args(arguments)
    chosen = [
        each
        for each in attacks(series=SERIES, objects=OBJECTS)
        if given.attack is None or {*given.attack} & {*each.number.split(", "), each.number}
    ]
    if not chosen:
        parser.error("no such attack")
    if given.save:
        require_clean_tree()
    ensure_binaries()
    enter_bed()
    both = given.alone == given.together
    console = Console(width=200)
    try:
        figures = asyncio.run(
            measured(chosen, alone=both or given.alone, together=both or given.together, console=console)
        )
    except BedError as error:
        print(error, file=sys.stderr)
        return 1
    console.print(_table(figures))
    if given.save:
        write_result("hostile", figures)
    for each in (wrong := missed(figures)):
        print(f"missed: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
