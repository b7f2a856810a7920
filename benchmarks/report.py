"""docs/benchmarks.md and the measured part of docs/verdicts.md, from benchmarks/results/*.json.

Usage: python benchmarks/report.py [--check]
To add a benchmark: one row in `SECTIONS` and, if the plain table does not suffice, one function of the result.
Must not: measure, judge, or round a figure across a limit.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]

from benchmarks.closedloop.behind import DEVIATIONS, WINDOW
from benchmarks.closedloop.comparing import LEVEL, MORE_GPUS, MOST_RESTARTS, SETTLED_SHARE
from benchmarks.closedloop.harm_report import MOST_LOST
from benchmarks.verdicts import error_rates
from benchmarks.verdicts.error_rates import MOST_EQUALS_REJECTED, MOST_HARM_KEPT

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
DOCUMENT: Final = ROOT / "docs" / "benchmarks.md"
VERDICTS: Final = ROOT / "docs" / "verdicts.md"
"""Has a part between two markers that is generated; the rest is written by hand."""

Result: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One benchmark: the result file, and how it is rendered."""

    name: str
    """Of `results/NAME.json`."""
    title: str
    question: str
    command: str
    body: Callable[[Result], list[str]]


def plain(result: Result) -> list[str]:
    """Render the figures of the summary unchanged."""
    rows = [(name.replace("_", " "), _plain(value)) for name, value in _flat(result.get("summary", result))]
    return _table(("figure", "value"), rows)


CURVE_FIGURES: Final[tuple[tuple[str, str, float | None], ...]] = (
    ("TPOT, on the curves of the fit: median error, %", "tpot_median_abs_pct_error", 5),
    ("the same: worst point, %", "tpot_worst_abs_pct_error", None),
    ("TPOT, on a length mix outside the fit: median error, %", "tpot_lomo_median_abs_pct_error", 5),
    ("the same: worst point, %", "tpot_lomo_worst_abs_pct_error", None),
    ("TPOT with KV cache or running-sequence slots full: median error, %", "tpot_saturated_median_abs_pct_error", None),
    ("the same: worst point, %", "tpot_saturated_worst_abs_pct_error", None),
    ("TTFT: median error, %", "ttft_median_abs_pct_error", None),
    (
        "share of curves whose simulated saturation is within one step of the measured one",
        "kv_saturation_within_one_step",
        None,
    ),
    ("share of goodput lost by the chosen max-num-seqs: median", "goodput_regret_median", 0.03),
    ("the same: worst", "goodput_regret_worst", 0.10),
    ("share of choices within one step of the best measured point", "knee_within_one_step", None),
    (
        "goodput lost, compared with the best batch between the measured points: median",
        "goodput_regret_between_points_median",
        None,
    ),
    ("the same: worst", "goodput_regret_between_points_worst", None),
    ("goodput lost by a choice from three points: median", "goodput_regret_after_three_points_median", None),
    ("the same: worst", "goodput_regret_after_three_points_worst", None),
    ("KV bytes per token: worst error, %", "kv_bytes_per_token_worst_pct_error", 1),
    ("KV pool from flags alone: median error, %", "kv_pool_median_pct_error", None),
    ("the same: worst, %", "kv_pool_worst_pct_error", None),
)
"""Title of a figure, its key in the summary, and its limit."""


def curves(result: Result) -> list[str]:
    """Render the errors of models and simulator on measured curves, and the cost of choices based on them."""
    summary = result["summary"]
    rows = [_held(title, summary[name], most) for title, name, most in CURVE_FIGURES]
    worst = [
        (
            each["file"].removesuffix(".csv"),
            f"{each['x']:g}{' (saturated)' if each['saturated'] else ''}",
            f"{each['error_pct']:+.1f}",
        )
        for each in result["worst_points"]
    ]
    about = (
        f"{summary['curves']} curves with {summary['points']} points, {summary['points_saturated']} of them saturated; "
        f"{summary['decisions']} choices. `max-num-seqs` is chosen only from points below the first sign of "
        "saturation. A choice that misses its TPOT objective counts as zero goodput."
    )
    lines = [about, "", *_table(("figure", "measured", "limit", ""), rows), "", "The worst points:", ""]
    lines += [
        *_table(("curve", "load", "error, %"), worst),
        "",
        "All curves; errors in % of TPOT, without saturated points:",
        "",
    ]
    lines += _table(
        ("curve", "fit: median", "worst", "mix outside the fit: median", "worst", "full at", "simulated", "worst loss"),
        [_curve_row(each) for each in result["curves"]],
    )
    return lines + [f"\nExcluded: {each['file']}: {each['why']}." for each in result["left_out"]]


def _curve_row(curve: Result) -> tuple[str, ...]:
    return (
        f"{curve['model'].rsplit('/', 1)[-1]} {curve['gpu'].split('-', 1)[0]} TP{curve['tp']} {curve['mix']}",
        _plain(curve["tpot_median_abs_pct_error"]),
        _plain(curve["tpot_worst_abs_pct_error"]),
        _plain(curve["tpot_lomo_median_abs_pct_error"]),
        _plain(curve["tpot_lomo_worst_abs_pct_error"]),
        _plain(curve["saturation_measured_at"]),
        _plain(curve["saturation_played_at"]),
        _plain(curve["goodput_regret_worst"]),
    )


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
        *_table(
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
    lines += ["", *_table(("target", "scenarios that miss it", ""), rows), "", changes, "", "The scenarios:", ""]
    return lines + _table(("scenario", "engine", "case"), stories)


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
        *_table(
            ("figure", "measured", "limit", ""),
            [_held(title, summary[name], most) for title, name, most in HARM_FIGURES],
        ),
        "",
        *_table(("bad value", "tried", "reached replicas of the service", "kept to the end"), told),
        "",
        ended,
        "",
        *_table(header, rows),
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


def replay(result: Result) -> list[str]:
    """Render the errors of the simulated levels, for each source of the engine's step times."""
    rows = [
        (
            each["recording"],
            way["way"],
            *(_error(way, quantity) for quantity in ("running", "waiting", "KV usage")),
            f"{min(way['preemption_ratios']):.2f}-{max(way['preemption_ratios']):.2f}",
            str(max(len(differences) for differences in way["class_differences"])),
        )
        for each in result["recordings"]
        for way in each["ways"]
    ]
    header = (
        "recording",
        "step times",
        "running, %",
        "waiting, %",
        "KV usage, %",
        "preemptions",
        "class differs",
    )
    about = (
        "Errors of time-weighted means; preemptions as a ratio to the recorded ones; `class differs`: the number of "
        "evaluations with another class, in the worst run. The recorded engine shared its CPU with the load generator: "
        "`recorded pace` scales the simulated step times by the recorded counters of the engine, the other rows use "
        f"one law throughout. {_replay_target(result['summary'])}"
    )
    return [about, "", *_table(header, rows)]


def _replay_target(summary: Result) -> str:
    allowed = summary["allowed"]
    return (
        f"The limits apply to `{summary['way']}` only: levels within {allowed['level_error_pct']:g} %, preemptions "
        f"within a factor of {allowed['preemption_ratio']:g}, no other class away from transitions. Measured: "
        f"{summary['level_error_pct']:.1f} %, {summary['preemption_ratio']:.2f}, "
        f"{summary['class_differences_away_from_turns']}: {'holds' if summary['holds'] else '**missed**'}."
    )


def _error(way: Mapping[str, Any], quantity: str) -> str:
    found = [level["error_pct"] for level in way["levels"] if level["quantity"] == quantity]
    return "-" if not found or found[0] is None else f"{found[0]:+.1f}"


def scenes(result: Result) -> list[str]:
    """Render the accuracy of both parts, and which class was named when."""
    rows = [
        (
            each["recording"],
            "held out" if each["held_out"] else "thresholds",
            f"{each['evaluations'] - len(each['wrong'])} of {each['evaluations']}",
            ", ".join(each["named"]),
        )
        for each in result["recordings"]
    ]
    about = "`thresholds`: the recording was used to set thresholds. `held out`: it was not. Accuracies are shares."
    return [*plain(result), "", about, "", *_table(("recording", "part", "correct", "named"), rows)]


VERDICT_FIGURES: Final[tuple[tuple[str, str, float | None], ...]] = (
    ("equals rejected (Revert)", "wrong_rejections_of_equals", MOST_EQUALS_REJECTED),
    ("the same: upper end of its 95 % interval", "wrong_rejections_of_equals_95_pct_below", None),
    ("the same on simulated runs, without fitted noise", "wrong_rejections_of_equals_played", MOST_EQUALS_REJECTED),
    (
        "equals rejected if windows end with the first look",
        "wrong_rejections_of_equals_in_few_windows",
        MOST_EQUALS_REJECTED,
    ),
    ("TPOT 20 % longer and over its objective, kept", "harmful_promotions", MOST_HARM_KEPT),
    ("the same if windows end with the first look", "harmful_promotions_in_few_windows", MOST_HARM_KEPT),
    ("the same: upper end of its 95 % interval", "harmful_promotions_95_pct_below", None),
    ("the same on simulated runs", "harmful_promotions_played", MOST_HARM_KEPT),
    (
        "TPOT 20 % longer but inside its objective, TTFT halved, kept: share of all such changes",
        "promotions_of_20_pct_slower_inside_the_objective",
        None,
    ),
    ("TPOT 20 % longer, kept by a change for TPOT", "promotions_for_tpot_of_20_pct_slower", MOST_HARM_KEPT),
    ("TPOT 20 % longer and over its objective, rejected for it", "regressions_found_for_what_they_are_drawn", None),
    ("the same on simulated runs", "regressions_found_for_what_they_are", None),
    (
        "noise of a window's ratio, TTFT: median over cases (standard deviation of the logarithm)",
        "noise_of_a_window_ttft_median",
        None,
    ),
    ("the same for TPOT", "noise_of_a_window_tpot_median", None),
)
"""Title of a figure, its key in the summary, and its limit."""


def verdict(result: Result) -> list[str]:
    """Render the error rates, then the operating curve of each kind of change."""
    summary, (first, last) = result["summary"], result["seeds"]
    about = (
        f"{summary['cases']} services (seeds {first} to {last}; the method was tuned on other seeds), each with "
        "baseline and candidate under one load, once equal and once with a TPOT that is truly 20 % longer. Pods start "
        "cold, differ by 1.5 % in speed and may queue; ten windows follow a minute of warm-up. Rates are shares of "
        "verdicts drawn from noise fitted to the equal runs, except `on simulated runs`. Parameter ranges: "
        "`benchmarks/verdicts/drawing.py`; method: `operator/vllm_autotuner/change/comparison.py`. Inconclusive is "
        "rolled back as well, but the value may be tried again."
    )
    lines = [
        about,
        "",
        *_table(
            ("figure", "measured", "limit", ""),
            [_held(title, summary[name], most) for title, name, most in VERDICT_FIGURES],
        ),
    ]
    for name, curve in result["curves"].items():
        rows = [
            (
                f"{100 * one['effect']:+.0f}",
                *(f"{100 * one[judgement]:.1f}" for judgement in ("keep", "revert", "inconclusive")),
                f"{one['windows']:.1f}",
                f"{100 * one['breaking']['keep']:.2f}" if one["breaking"]["trials"] else "-",
                str(one["trials"]),
            )
            for one in curve
        ]
        header = (
            "true effect, %",
            "Keep, %",
            "Revert, %",
            "Inconclusive, %",
            "windows",
            "kept of those that miss an objective, %",
            "verdicts",
        )
        lines += [
            "",
            f"{result['questions'][name][0].upper()}{result['questions'][name][1:]}:",
            "",
            *_table(header, rows),
        ]
    return lines


def verdict_in_place(result: Result) -> list[str]:
    """Render the rates by the number of windows before the change."""
    first, last = result["seeds"]
    about = (
        f"{result['cases']} services (seeds {first} to {last}) whose load moves by up to a half in 10 to 40 minutes. "
        "Each is changed in place once to an equal configuration and once to one whose TPOT is truly 20 % longer, and "
        "judged under 20 draws of objectives, so verdicts on one service are not independent. All rates are of "
        "simulated runs."
    )
    kinds = {
        "equals": "equal, for TPOT",
        "ttft_halved": "TTFT halved, else equal, for TTFT",
        "ttft_halved_but_tpot_breaks_its_objective": "TTFT halved, TPOT 20 % longer and over its objective, for TTFT",
    }
    rows = [
        (windows, told, *(f"{100 * found[kind][one]:.1f}" for one in ("keep", "revert", "inconclusive")))
        for windows, found in result["by_windows_before"].items()
        for kind, told in kinds.items()
    ]
    lines = [about, "", *_table(("windows before", "change", "Keep, %", "Revert, %", "Inconclusive, %"), rows)]
    if "bake" not in result:
        return lines
    baked = {"equals": "equal", "tpot_breaks_its_objective": "TPOT 20 % longer and over its objective"}
    ended = [(told, f"{100 * result['bake'][kind]['revert']:.1f}") for kind, told in baked.items()]
    told = f"The bake, {result['bake_windows']} windows compared with ten before the change; an alarm rolls back:"
    return [*lines, "", told, "", *_table(("change", "alarm, %"), ended)]


def confusion(result: Result) -> list[str]:
    """Render the summary, and the classes that are not always named correctly."""
    summary = result["summary"]
    rows = [
        ("windows", _plain(summary["windows"])),
        ("macro-F1 over all classes", _plain(summary["macro_f1"])),
        ("windows named Overloaded where more replicas do not help", _plain(summary["no_capacity_called_overloaded"])),
        ("windows without a problem named otherwise", _plain(summary["fine_called_anything_else"])),
    ]
    flawed = [
        (each["class"], *(f"{each[name]:.3f}" for name in ("precision", "recall", "f1")))
        for each in sorted(result.get("classes", ()), key=lambda each: float(each["f1"]))
        if each["f1"] < 1
    ]
    lines = _table(("figure", "value"), rows)
    if not flawed:
        return [*lines, "", "Every class has precision and recall 1."]
    about = f"{len(flawed)} of {len(result['classes'])} classes are below 1, worst first:"
    return [*lines, "", about, "", *_table(("class", "precision", "recall", "F1"), flawed)]


def diagnosis_speed(result: Result) -> list[str]:
    """Render queries and CPU time by the size of the fleet."""
    rows = [
        (
            str(each["services"]),
            str(each["questions"]),
            f"{each['sorting_ms_per_service']:.2f}",
            f"{each['diagnosis_ms_per_service']:.2f}",
        )
        for each in result["fleets"]
    ]
    return _table(("services", "Prometheus queries", "sorting, ms per service", "diagnosis, ms per service"), rows)


def forecasts(result: Result) -> list[str]:
    """Render the errors of forecasts by their source, and the worst ones."""
    rows = [
        (
            kind,
            f"{each['ttft_foretold']} of {each['pairs']}",
            *(_maybe(each, name, form) for name, form in FORECAST_FIGURES),
        )
        for kind, each in result["summary"].items()
    ]
    worst = [(each["change"], f"{each['foretold_s']:.3g}", f"{each['measured_s']:.3g}") for each in result["worst"]]
    about = (
        "Errors in %: predicted / measured - 1. `within a quarter`: neither exceeds the other by more than 25 %. A "
        "prediction reuses the measured prefill time. It does not model that prompts delay each other less at half the "
        "clients per replica (the `measured` pairs)."
    )
    return [
        about,
        "",
        *_table(
            (
                "pairs", "predicted", "TTFT: median", "signed", "worst", "within a quarter", "TPOT: median", "worst",
            ),
            rows,
        ),
        "",
        "The worst TTFT predictions, seconds:",
        "",
        *_table(("change", "predicted", "measured"), worst),
    ]  # fmt: skip


FORECAST_FIGURES: Final = (
    ("ttft_median_abs_pct", "{:.1f}"),
    ("ttft_median_pct", "{:+.1f}"),
    ("ttft_worst_pct", "{:+.0f}"),
    ("ttft_within_a_quarter", "{:.0%}"),
    ("tpot_median_abs_pct", "{:.1f}"),
    ("tpot_worst_pct", "{:+.0f}"),
)
"""Key of a figure in the summary of a kind, and its format."""


def _maybe(each: Mapping[str, Any], name: str, form: str) -> str:
    return form.format(each[name]) if name in each else "-"


SECTIONS: Final[tuple[Section, ...]] = (
    Section(
        name="curves",
        title="Measured curves",
        question="How closely do models and simulator match GPUs, and how much goodput does a choice by them lose?",
        command="python benchmarks/curves.py --save",
        body=curves,
    ),
    Section(
        name="replay",
        title="Recordings of a real engine",
        question="How close is the simulated engine to a real vLLM under the same arrivals?",
        command="python benchmarks/replay.py --save",
        body=replay,
    ),
    Section(
        name="scenes",
        title="Diagnosis of a real engine",
        question="How often is the correct class named in recordings of a real vLLM with a known problem?",
        command="python benchmarks/scenes.py --save",
        body=scenes,
    ),
    Section(
        name="forecasts",
        title="Predictions of a recommendation",
        question="How close are the TTFT and TPOT that a recommendation predicts to those measured afterwards?",
        command="python benchmarks/forecasts.py --save",
        body=forecasts,
    ),
    Section(
        name="engine_speed",
        title="Speed of the simulator",
        question="How many seconds of one engine are simulated in one second of CPU time?",
        command="python benchmarks/engine_speed.py --save",
        body=plain,
    ),
    Section(
        name="diagnosis_speed",
        title="Cost of an evaluation",
        question="How many Prometheus queries does one evaluation of the fleet take, and how much CPU time?",
        command="python benchmarks/diagnosis_speed.py --save",
        body=diagnosis_speed,
    ),
    Section(
        name="planning_speed",
        title="Speed of planning",
        question="How much CPU time does one planning decision take, and how much does a whole fleet take?",
        command="python benchmarks/planning_speed.py --save",
        body=plain,
    ),
    Section(
        name="confusion",
        title="Diagnosis of simulated engines",
        question="How often does the diagnosis name the true limit of a simulated engine?",
        command="python benchmarks/confusion.py --save",
        body=confusion,
    ),
    Section(
        name="verdict",
        title="Verdicts",
        question="How often is the verdict on a change wrong, by the true effect of the change?",
        command="python benchmarks/verdict.py --save",
        body=verdict,
    ),
    Section(
        name="verdict_in_place",
        title="Verdicts in place",
        question="How often is the verdict wrong if windows before and after are compared while the load moves?",
        command="python benchmarks/verdict.py --in-place --save",
        body=verdict_in_place,
    ),
    Section(
        name="closed_loop",
        title="Closed loop",
        question="How does the whole product compare with defaults, autoscalers, an offline sweep and an oracle?",
        command="python benchmarks/closed_loop.py --save",
        body=closed_loop,
    ),
    Section(
        name="bad_candidates",
        title="Bad values",
        question="How much goodput does tuning lose if an unknown part of all values is bad?",
        command="python benchmarks/closed_loop.py --bad 0.3 --save",
        body=bad_candidates,
    ),
)


def rendered(results: Path = RESULTS) -> str:
    """Return the document. A result without a section is rendered as it is; a section without a result says so."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}
    known = {section.name for section in SECTIONS}
    others = tuple(
        Section(name=name, title=name.replace("_", " "), question="", command="", body=plain)
        for name in found
        if name not in known
    )
    lines = [
        "# Benchmarks",
        "",
        "Generated by `python benchmarks/report.py` from `benchmarks/results`. Do not edit.",
        "",
    ]
    for section in (*SECTIONS, *others):
        lines += [f"## {section.title}", ""]
        lines += [section.question, ""] if section.question else []
        lines += _section(section, found.get(section.name))
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section, result: Result | None) -> list[str]:
    if result is None:
        return [f"Not run: `{section.command}`.", ""]
    run = result.get("provenance", {})
    where = ", ".join(f"{name} {run[name]}" for name in ("commit", "machine", "python") if name in run)
    ran = f"`{run['command']}`" if "command" in run else f"`{section.command}`"
    lines = [*section.body(result), "", f"{ran}; {where}." if where else f"{ran}.", ""]
    return [*lines, *([note, ""] if (note := error_rates.unrepeatable(run.get("commit", ""))) else [])]


def _held(name: str, value: float | None, most: float | None) -> tuple[str, ...]:
    if most is None or value is None:
        return name, _plain(value), "" if most is None else f"{most:g}", ""
    return name, _plain(value), f"{most:g}", "holds" if value <= most else "**missed**"


def _flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [pair for name, each in value.items() for pair in _flat(each, f"{prefix} {name}".strip())]
    return [] if isinstance(value, list) else [(prefix, value)]


def _plain(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        case _:
            return str(value)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], f"|{'---|' * len(header)}", *lines[1:]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both documents, or compare them with the results."""
    parser = argparse.ArgumentParser(description="Write docs/benchmarks.md and part of docs/verdicts.md.")
    parser.add_argument("--check", action="store_true", help="only compare the documents with the results")
    options = parser.parse_args(arguments)
    page = VERDICTS.read_text(encoding="utf-8")
    texts = {DOCUMENT: rendered(), VERDICTS: error_rates.inserted(page, results=RESULTS)}
    if not options.check:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.name} differs from the results; run: python benchmarks/report.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
