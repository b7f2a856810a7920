"""The sections of the closed loop and of bad values in docs/benchmarks.md. Must not: measure, or judge."""

from collections.abc import Sequence
from typing import Final

from benchmarks.closedloop.behind import DEVIATIONS, WINDOW
from benchmarks.closedloop.comparing import LEVEL, MORE_GPUS, MOST_RESTARTS, SETTLED_SHARE
from benchmarks.closedloop.harm_report import MOST_LOST
from benchmarks.markdown import Result, held, table

__all__ = ["bad_candidates", "closed_loop"]


def closed_loop(result: Result) -> list[str]:
    """Render every scenario and policy, and wins and losses of the autotuner against each policy."""
    summary, scenarios = result["summary"], result["scenarios"]
    names = list(summary["gpu_hours_in_all"])
    lines = [
        f"{summary['scenarios']} scenarios drawn with seed {result['seed']}"
        + (", short runs and a coarse oracle (`--quick`)" if result["quick"] else "")
        + ". Cells: goodput (requests per second that met both objectives), then GPU-hours in parentheses, over the "
        "whole run. `oracle`: the best fixed setting, found by trying all settings on the same requests. `hpa`, `keda` "
        "and `saturation` scale replicas and keep the initial flags. `below`: the longest time in which the autotuner "
        f"served clearly fewer requests within the objectives than the defaults ({WINDOW} minutes at a time, by more "
        f"than {LEVEL:.0%} and more than {DEVIATIONS:g} standard deviations of the late requests); in parentheses, the "
        "longest duration of one canary. The targets below use the settled part of a run, after the initial changes. "
        f"{_lowest_share(scenarios)}",
        "",
        *table(
            ("scenario", *names, "below (canary)"),
            [(name, *_goodputs(one, names), _below(one)) for name, one in scenarios.items()],
        ),
        "",
        f"The autotuner, compared by goodput, and by GPU-hours where goodput is equal within {LEVEL:.0%}:",
        "",
    ]
    for rival, found in summary["autotuner_against"].items():
        loses = f" (worse: {', '.join(found['loses'])})" if found["loses"] else ""
        wins, level, lost = (len(found[verdict]) for verdict in ("wins", "level", "loses"))
        lines.append(f"- against {rival}: better {wins}, equal {level}, worse {lost}{loses}")
    rows = [
        (title, ", ".join(summary[name]) or "none", "holds" if not summary[name] else "**missed**")
        if name in summary
        else (title, "", "not measured")
        for title, name in (
            (f"settled goodput below {SETTLED_SHARE:.0%} of the oracle's", "below_95_pct_of_the_oracle"),
            (
                f"settled GPUs above {MORE_GPUS:.0%} of the oracle's, per goodput where the autotuner serves more",
                "over_110_pct_of_its_gpus",
            ),
            (f"more than {MOST_RESTARTS} restarts", "over_three_restarts"),
            (
                "below the defaults for longer than one canary",
                "below_the_defaults_for_longer_than_a_canary",
            ),
        )
    ]
    changes = f"Changes in all scenarios: {summary['changes_kept']} kept, {summary['changes_rolled_back']} rolled back."
    stories = [(name, one["engine"], one["story"]) for name, one in scenarios.items()]
    lines += ["", *table(("target", "scenarios that miss it", ""), rows), "", changes, "", "The scenarios:", ""]
    return lines + table(("scenario", "engine", "case"), stories)


def _lowest_share(scenarios: Result) -> str:
    """The worst scenario against the oracle over the whole run, which no target covers."""
    shares = {
        name: 1 - one["policies"]["autotuner"]["regret"]
        for name, one in scenarios.items()
        if one["policies"].get("autotuner", {}).get("regret") is not None
    }
    if not shares:
        return ""
    worst = min(shares, key=lambda name: shares[name])
    return f"Over the whole run no target is set; the lowest goodput is {shares[worst]:.0%} of the oracle's ({worst})."


HARM_FIGURES: Final[tuple[tuple[str, str, float | None], ...]] = (
    (
        "goodput lost to tuning, as a share of goodput without changes (negative: gained)",
        "goodput_lost_to_tuning",
        MOST_LOST,
    ),
    ("the same in the worst case", "goodput_lost_to_tuning_in_the_worst_case", MOST_LOST),
    ("share of goodput lost, compared with the same runs without bad values", "goodput_lost_to_bad_values", None),
    (
        "share of requests that met the objectives without changes, and missed them on a pod with a bad value",
        "spoiled_by_bad_values",
        0.01,
    ),
    ("seconds with fewer serving pods than spec.replicas, all cases", "below_ready_floor_seconds", 0.0),
    ("the same, not counting canary pods", "own_pods_below_ready_floor_seconds", 0.0),
)


def bad_candidates(result: Result) -> list[str]:
    """Render the cost of bad values, in total and for each case."""
    summary, cases = result["summary"], result["cases"]
    seeds = sorted({case["seed"] for case in cases})
    kinds = list(dict.fromkeys(case["scenario"] for case in cases))
    ways = {way for name in ("tried", "promoted", "kept") for way in summary[f"bad_values_{name}"]}
    rows = [
        (
            f"{case['scenario']} {case['seed']}",
            f"{case['served_well']['off'] / case['requests']:.0%}",
            *(
                f"{100 * case[name]:.2f}"
                for name in ("goodput_lost_to_tuning", "goodput_lost_to_bad_values", "spoiled_by_bad_values")
            ),
            f"{case['below_ready_floor_seconds']:.0f}",
            f"{case['changes_kept']}, {case['changes_rolled_back']}",
            f"{case['bad_pods']} for {case['bad_serving_seconds'] / 60:.0f} min",
            "; ".join(case["bad_values"]) or "-",
        )
        for case in cases
    ]
    header = (
        "case", "met objectives without changes", "lost to tuning, %", "lost to bad values, %",
        "missed on bad pods, %", "s below spec.replicas", "changes kept, rolled back", "bad pods, serving",
        "bad values tried",
    )  # fmt: skip
    broken_off = len(cases) < result["asked_for"]
    about = (
        (f"The run ended after {len(cases)} of {result['asked_for']} cases. " if broken_off else "")
        + f"{len(cases)} fleets of 3 and 4 replicas ({', '.join(kinds)}; seeds {seeds[0]} to {seeds[-1]}), about an "
        "hour each, in mode Automatic with the default strategy, except a cooldown of 5 minutes and 12 changes a day. "
        f"Each value that the user has not set is bad with probability {result['bad']:g}: 20 to 200 % slower tokens, "
        "no start, a crash after minutes, never ready, 5 to 50 % failed requests, or slower with every minute. "
        f"Replicas are fixed, and each case runs three times with the same requests: with tuning, without changes, and "
        "with tuning but without bad values. "
        f"Changes were tried in {sum(bool(case['states']) for case in cases)} cases, bad values in only "
        f"{summary['cases_with_bad_values']} of them, on {summary['bad_pods']} pods: the limits below are tested on "
        f"these. {_most_lost(cases)}"
    )
    ended = (
        f"{summary['changes_kept']} changes kept, {summary['changes_rolled_back']} rolled back. More than "
        f"{MOST_LOST:.0%} lost to tuning: {', '.join(summary['over_1_pct_lost']) or 'no case'}. Below spec.replicas: "
        f"{', '.join(summary['below_ready_floor']) or 'no case'}."
    )
    told = [
        (way, *(str(summary[f"bad_values_{name}"].get(way, 0)) for name in ("tried", "promoted", "kept")))
        for way in sorted(ways)
    ]
    return [
        about,
        "",
        *table(
            ("figure", "measured", "limit", ""),
            [held(title, summary[name], most) for title, name, most in HARM_FIGURES],
        ),
        "",
        *table(("bad value", "tried", "reached replicas of the service", "kept to the end"), told),
        "",
        ended,
        "",
        *table(header, rows),
    ]


def _most_lost(cases: Sequence[Result]) -> str:
    """The case that bad values cost most, which no limit covers."""
    worst = max(cases, key=lambda case: float(case["goodput_lost_to_bad_values"]))
    return (
        f"Compared with the run without bad values, the worst case ({worst['scenario']} {worst['seed']}) lost "
        f"{worst['goodput_lost_to_bad_values']:.0%} of its goodput; no limit is set for this comparison."
    )


def _goodputs(scenario: Result, names: Sequence[str]) -> list[str]:
    found = (scenario["policies"][name] for name in names)
    return [f"{one['goodput']:.2f} ({one['gpu_hours']:.1f})" for one in found]


def _below(scenario: Result) -> str:
    """Minutes; empty if one of the two did not run."""
    found = scenario["policies"].get("autotuner", {})
    if "seconds_below_the_defaults" not in found:
        return ""
    return f"{found['seconds_below_the_defaults'] / 60:.0f} min ({found['seconds_of_one_canary'] / 60:.0f} min)"
