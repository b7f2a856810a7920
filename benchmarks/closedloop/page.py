"""The sections of the closed loop and of bad values in docs/benchmarks.md. Must not: measure, or judge."""

from collections.abc import Sequence
from typing import Final

from benchmarks.closedloop.harm_report import MOST_LOST
from benchmarks.closedloop.summary import MET
from benchmarks.markdown import Result, held, table

__all__ = ["ablations", "bad_candidates", "closed_loop", "shortened"]


FIXED: Final = (
    " The GPUs: those of the start, or as many as the best flags need by the approximation where that is more. The "
    "operator sees room for one replica more, for the pod of a trial, and so never takes a larger tensor-parallel size "
    "in place of replicas; the oracle does. The simulated cluster has no limit: while a kept value is rolled out, "
    "the canary still serves beside one pod more."
)

FLAGS_OF_THE_START: Final = "flags of the start"
ABOUT: Final = {
    "keda-calibrated": "keeps the flags of the start and adds replicas by running and waiting requests, from 0.8 of "
    "the batch at the knee on",
    FLAGS_OF_THE_START: "is what any autoscaler leaves where replicas are fixed",
    "defaults": "are the flags that vLLM takes by itself",
}
"""What a rival does, by the name that the page shows."""


def closed_loop(result: Result) -> list[str]:
    """Render each policy over all cases, and each case with what its flags are worth."""
    summary, cases = result["summary"], result["cases"]
    scenarios = list(dict.fromkeys(case["scenario"] for case in cases))
    seeds = sorted({case["seed"] for case in cases})
    runs = sum(len(case["policies"]) for case in cases)
    shortened = [
        policy["extrapolated_from_hours"]
        for case in cases
        for policy in case["policies"].values()
        if policy["extrapolated_from_hours"] is not None
    ]
    # Results of before the oracle's choice was played to its end must not claim that it was.
    oracles = [policy for case in cases for name, policy in case["policies"].items() if "oracle" in name]
    whole = bool(oracles) and all(each["extrapolated_from_hours"] is None for each in oracles)
    lines = [
        f"{_broken_off(result)}"
        f"{len(cases)} cases: {len(scenarios)} scenarios, seeds {', '.join(map(str, seeds))}, setting "
        f"`{result['setting']}`, noise {result['noise']}. Pace: {result['pace']}. `attained`: share of five-minute "
        "windows with load in which every objective held at p95, relative to the oracle of the case. A case is met "
        f"from {MET:.0%} on. GPU-hours are relative to that oracle's and include trials and starts. Intervals of 95 % "
        "resample whole scenarios. The oracle knows the day: the cheapest fixed flags with the best replicas or "
        "schedule of replicas whose attainment is within 1 % of the best; searched on a fluid approximation, its best "
        f"few played{', and what won to the end of the day' if whole else ''}. {_about_rivals(result)}"
        + (
            f"{len(shortened)} of {runs} runs were played until they had settled (the longest for "
            f"{max(shortened):.1f} h), and the rest of the day was extrapolated from settled rates."
            if shortened
            else "Every hour was played."
        )
        + _played_before(cases)
        + (FIXED if result["setting"] == "fixed" else ""),
        "",
    ]
    everybody = [("autotuner", summary), *summary["rivals"].items(), *summary["ablations"].items()]
    lines += _policies([(name, found) for name, found in everybody if found["cases"]], setting=result["setting"])
    if beaten := _beaten(cases):
        told = ", ".join(f"{case} ({points:.1f} points by {name})" for case, name, points in beaten)
        lines += ["", f"The oracle's search missed a plan where another attained over a point more: {told}."]
    if summary.get("against"):
        lines += ["", "The autotuner against each, by cases met, then by GPU-hours (level within 1 %):", ""]
        lines += [
            f"- {_shown(name, setting=result['setting'])}: better {one['better']}, level {one['as_good']}, "
            f"worse {one['worse']}"
            for name, one in summary["against"].items()
        ]
    if "worth_of_flags_median" in summary:
        told = (
            "`worth of flags`: GPU-hours of the oracle that keeps the flags of the start, relative to the oracle's. "
            f"Median {summary['worth_of_flags_median']:.2f}; above 1.3 in {summary['cases_with_worth_above_1_3']} of "
            f"{summary['cases_played']} cases."
        )
        lines += ["", told]
    lines += ["", "Each case; `attained` and GPU-hours of the autotuner are relative to the oracle's:", ""]
    columns = (
        "case", "engine", "story", "worth of flags", "oracle", "oracle attained, GPU-hours", "attained", "GPU-hours",
        "changes kept", "hours played",
    )  # fmt: skip
    return lines + table(columns, [_case(case) for case in cases])


def _played_before(cases: Sequence[Result]) -> str:
    """Name the commits of runs that were kept (`--keep`)."""
    commits = [policy["played_at"] for case in cases for policy in case["policies"].values() if "played_at" in policy]
    told = ", ".join(dict.fromkeys(commits))
    runs = "1 run" if len(commits) == 1 else f"{len(commits)} runs"
    return f" {runs} had been played before, at {told}: what has changed since does not change them." if commits else ""


def ablations(result: Result) -> list[str]:
    """Render what each flag, all flags and the replicas are worth: the same cases with and without them."""
    rows = [
        (
            name,
            str(found["cases"]),
            f"{found['cases'] - found['equal']}",
            f"{found['gpu_hours']:.2f}",
            f"{found['points_attained']:+.1f}",
        )
        for name, found in ((name, one["vs_autotuner"]) for name, one in result["summary"]["ablations"].items())
        if found["cases"]
    ]
    seeds, summary = sorted({case["seed"] for case in result["cases"]}), result["summary"]
    about = (
        f"{_broken_off(result)}Seeds {', '.join(map(str, seeds))}, setting `{result['setting']}`, noise "
        f"{result['noise']}. Pace: {result['pace']}. The autotuner with all flags keeps {summary['kept_changes']} "
        f"changes and rolls {summary['rolled_back']} back in {summary['cases']} cases. Each row: the cases in which "
        "the user lets this flag change, played again where he does not; `replicas-only`: no flag may change, "
        "`flags-only`: the replicas are fixed. GPU-hours: those without over those with, all cases of the row "
        "together. Attained: points lost (-) or gained without, on average. Differing: more than 1 % in either."
    ) + _played_before(result["cases"])
    header = ("what may change", "cases", "differing", "GPU-hours", "attained, points")
    return [about, "", *table(header, rows)]


def shortened(result: Result) -> list[str]:
    """Render what a shortened run would have told beside what the whole day was."""
    rows, worst = [], 0.0
    for case in result["cases"]:
        for name, exact in case["policies"].items():
            if (short := exact.get("shortened")) is None:
                continue
            off = {
                "attainment": short["attainment"] - exact["attainment"],
                "gpu_hours": short["gpu_hours"] / exact["gpu_hours"] - 1,
                "goodput": short["goodput"] / max(exact["goodput"], 1e-9) - 1,
            }
            worst = max(worst, *(abs(off[one]) for one in ("attainment", "gpu_hours")))
            rows.append(
                (
                    f"{case['scenario']} {case['seed']}, {name}",
                    f"{short['extrapolated_from_hours']:.1f} of {case['hours']:.0f}",
                    f"{exact['attainment']:.1%}",
                    f"{100 * off['attainment']:+.1f}",
                    f"{exact['gpu_hours']:.1f}",
                    f"{100 * off['gpu_hours']:+.1f}",
                    f"{100 * off['goodput']:+.1f}",
                )
            )
    header = (
        "run", "hours until settled", "attained, the whole day", "extrapolated: points off", "GPU-hours, the whole day",
        "extrapolated: % off", "goodput: % off",
    )  # fmt: skip
    about = (
        "Runs that were played in full; beside each what it would have told if it had ended when it had settled. "
        f"Attainment and GPU-hours: at most {100 * worst:.1f} % off."
    ) + _played_before(result["cases"])
    return [about, "", *table(header, rows)]


def _broken_off(result: Result) -> str:
    """How far a run came that has not played all of its cases; empty for a whole one."""
    played, asked = len(result["cases"]), result["asked_for"]
    return f"The run ended after {played} of {asked} cases. " if played < asked else ""


def _policies(found: Sequence[tuple[str, Result]], *, setting: str) -> list[str]:
    """With a fixed number of GPUs goodput and restarts tell the policies apart, else GPU-hours."""
    fixed = setting == "fixed"
    price = ("goodput: median", "worst", "most restarts")
    if not fixed:
        price = ("GPU-hours: median (interval)", "worst", "median where met")
    header = ("policy", "cases met", "attained: median (interval)", "worst", *price, "changes kept, rolled back")
    rows = [
        (
            _shown(name, setting=setting),
            f"{one['cases_met']} of {one['cases']}",
            f"{one['attainment_vs_oracle_median']:.1%}" + _interval(one["attainment_vs_oracle_interval"], "{:.1%}"),
            f"{one['attainment_vs_oracle_worst']:.1%}",
            *(_goodput(one) if fixed else _gpu_hours(one)),
            f"{one['kept_changes']}, {one['rolled_back']}",
        )
        for name, one in found
    ]
    return table(header, rows)


def _shown(name: str, *, setting: str) -> str:
    """Where replicas are fixed, an autoscaler changes nothing."""
    return FLAGS_OF_THE_START if setting == "fixed" and name == "keda-calibrated" else name


def _about_rivals(result: Result) -> str:
    """What those that were played do; each sentence ends with a space."""
    played = [name for name, one in result["summary"]["rivals"].items() if one["cases"]]
    shown = [_shown(name, setting=result["setting"]) for name in played]
    return "".join(f"`{name}` {ABOUT[name]}. " for name in shown if name in ABOUT)


def _gpu_hours(found: Result) -> tuple[str, str, str]:
    met = found["gpu_hours_vs_oracle_median_of_met"]
    return (
        f"{found['gpu_hours_vs_oracle_median']:.2f}" + _interval(found["gpu_hours_vs_oracle_interval"], "{:.2f}"),
        f"{found['gpu_hours_vs_oracle_worst']:.2f}",
        "-" if met is None else f"{met:.2f}",
    )


def _goodput(found: Result) -> tuple[str, str, str]:
    middle, worst = (f"{found[f'goodput_vs_oracle_{name}']:.1%}" for name in ("median", "worst"))
    return middle, worst, str(found["most_restarts"])


def _beaten(cases: Sequence[Result]) -> list[tuple[str, str, float]]:
    """Where a policy attained over a point more than the oracle: then the oracle is none."""
    found = []
    for case in cases:
        known = {name: one["attainment"] for name, one in case["policies"].items() if not name.startswith("oracle")}
        if "oracle" not in case["policies"] or not known:
            continue
        best = max(known, key=lambda name: known[name])
        points = 100 * (known[best] - case["policies"]["oracle"]["attainment"])
        if points > 1:
            found.append((f"{case['scenario']} {case['seed']}", best, points))
    return found


def _interval(found: Sequence[float] | None, form: str) -> str:
    return "" if found is None else f" ({form.format(found[0])} to {form.format(found[1])})"


def _case(case: Result) -> tuple[str, ...]:
    oracle, ours = case["policies"].get("oracle"), case["policies"].get("autotuner")
    worth = case["worth_of_flags"]
    about = (
        f"{case['scenario']} {case['seed']}",
        case["engine"],
        case["story"],
        "" if worth is None else f"{worth:.2f}",
    )
    best = ("", "") if oracle is None else (_setting(oracle["setting"]), _promised(oracle))
    if ours is None:
        return (*about, *best, "", "", "", "")
    hours = ours["extrapolated_from_hours"]
    return (
        *about,
        *best,
        f"{ours.get('attainment_vs_oracle', 0):.1%}",
        f"{ours.get('gpu_hours_vs_oracle', 0):.2f}",
        ", ".join(f"{one['knob']} {one['from']} to {one['to']}" for one in ours["kept_changes"]) or "none",
        "all" if hours is None else f"{hours:.1f}",
    )


def _setting(setting: Result) -> str:
    replicas = [count for _, count in setting["replicas"]]
    count = str(replicas[0]) if len(replicas) == 1 else f"{min(replicas)} to {max(replicas)}"
    seats = "engine's" if setting["seats"] is None else setting["seats"]
    return f"{count} x TP {setting['tensor_parallel_size']}, max-num-seqs {seats}, {setting['kv_cache_dtype']}"


def _promised(found: Result) -> str:
    return f"{found['attainment']:.1%}, {found['gpu_hours']:.1f}"


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
    about = (
        f"{_broken_off(result)}"
        f"{len(cases)} fleets of 3 and 4 replicas ({', '.join(kinds)}; seeds {seeds[0]} to {seeds[-1]}), about an "
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
    kept = "; ".join(
        f"{case['scenario']} {case['seed']} kept {', '.join(case['kept_bad_values'])} and lost "
        f"{case['goodput_lost_to_bad_values']:.0%}"
        for case in cases
        if case["kept_bad_values"]
    )
    return (
        f"Compared with the run without bad values, the worst case ({worst['scenario']} {worst['seed']}) lost "
        f"{worst['goodput_lost_to_bad_values']:.0%} of its goodput; {kept or 'no bad value was kept'}. No limit is set "
        "for this comparison."
    )
