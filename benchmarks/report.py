"""docs/benchmarks.md from benchmarks/results/*.json: every figure of the document comes from a run.

Usage: python benchmarks/report.py [--check]
To add a benchmark: one row in `SECTIONS` and, where the plain table does not do, one function of the result.
Must not: measure, judge, or round a figure across a limit.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
DOCUMENT: Final = ROOT / "docs" / "benchmarks.md"

Result: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One benchmark: the result file, and how it is told."""

    name: str
    """Of `results/NAME.json`."""
    title: str
    question: str
    command: str
    body: Callable[[Result], list[str]]


def plain(result: Result) -> list[str]:
    """Tell the figures of the summary, as they stand."""
    rows = [(name.replace("_", " "), _plain(value)) for name, value in _flat(result.get("summary", result))]
    return _table(("figure", "value"), rows)


CURVE_FIGURES: Final[tuple[tuple[str, str, float | None], ...]] = (
    ("TPOT, curves it was fitted on: median error, %", "tpot_median_abs_pct_error", 5),
    ("the same: worst point, %", "tpot_worst_abs_pct_error", None),
    ("TPOT, a length mix it has not seen: median error, %", "tpot_lomo_median_abs_pct_error", 5),
    ("the same: worst point, %", "tpot_lomo_worst_abs_pct_error", None),
    ("TPOT where KV cache or seats are full: median error, %", "tpot_saturated_median_abs_pct_error", None),
    ("the same: worst point, %", "tpot_saturated_worst_abs_pct_error", None),
    ("TTFT: median error, %", "ttft_median_abs_pct_error", None),
    ("curves that saturate within one step of the measured one", "kv_saturation_within_one_step", None),
    ("goodput lost by the chosen max-num-seqs: median", "goodput_regret_median", 0.03),
    ("the same: worst", "goodput_regret_worst", 0.10),
    ("choices within one step of the best measured point", "knee_within_one_step", None),
    ("goodput lost against the best batch between the points: median", "goodput_regret_between_points_median", None),
    ("the same: worst", "goodput_regret_between_points_worst", None),
    ("goodput lost by one who saw three points: median", "goodput_regret_after_three_points_median", None),
    ("the same: worst", "goodput_regret_after_three_points_worst", None),
    ("KV bytes per token: worst error, %", "kv_bytes_per_token_worst_pct_error", 1),
    ("KV pool from flags alone: median error, %", "kv_pool_median_pct_error", None),
    ("the same: worst, %", "kv_pool_worst_pct_error", None),
)
"""What to call a figure, where it stands in the summary, and what it may be at most."""


def curves(result: Result) -> list[str]:
    """Tell how well the models and the simulator meet measured curves, and what a choice by them costs."""
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
        f"{summary['decisions']} choices. `max-num-seqs` is chosen from the points below the first sign of saturation "
        "only; a choice past its TPOT objective counts as no goodput at all."
    )
    lines = [about, "", *_table(("figure", "measured", "at most", ""), rows), "", "The worst points:", ""]
    lines += [*_table(("curve", "load", "error, %"), worst), "", "Every curve; errors in % of TPOT, not saturated:", ""]
    lines += _table(
        ("curve", "fitted: median", "worst", "unseen mix: median", "worst", "full at", "played", "worst regret"),
        [_curve_row(each) for each in result["curves"]],
    )
    return lines + [f"\nLeft out: {each['file']}: {each['why']}." for each in result["left_out"]]


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
    """Tell every scenario and policy, whom the product beats and to whom it loses."""
    summary, scenarios = result["summary"], result["scenarios"]
    names = list(summary["gpu_hours_in_all"])
    lines = [
        f"{summary['scenarios']} scenarios drawn with seed {result['seed']}"
        + (", short runs and a coarse oracle (`--quick`)" if result["quick"] else "")
        + ". Goodput: requests per second that met both objectives; behind it GPU-hours. The oracle is the best fixed "
        "setting, found by trying all on the same requests; autoscalers keep the flags of the start. Below: the "
        "longest time for which the autotuner served clearly fewer well than the engine's defaults did of the same "
        "requests (three minutes at a time, by more than 1 % and twice what chance does to the late ones), and how "
        "long one canary takes at most.",
        "",
        *_table(
            ("scenario", *names, "below (canary)"),
            [(name, *_goodputs(one, names), _below(one)) for name, one in scenarios.items()],
        ),
        "",
        "By goodput, and where that is level within 1 % by GPU-hours, the autotuner:",
        "",
    ]
    for rival, found in summary["autotuner_against"].items():
        loses = f" (loses: {', '.join(found['loses'])})" if found["loses"] else ""
        wins, level, lost = (len(found[verdict]) for verdict in ("wins", "level", "loses"))
        lines.append(f"- against {rival}: wins {wins}, level {level}, loses {lost}{loses}")
    rows = [
        (title, ", ".join(summary[name]) or "none", "holds" if not summary[name] else "**missed**")
        if name in summary
        else (title, "", "not measured")
        for title, name in (
            ("settled part below 95 % of the oracle's goodput", "below_95_pct_of_the_oracle"),
            ("settled part on more than 110 % of its GPUs for as much goodput", "over_110_pct_of_its_gpus"),
            ("more than 3 restarts", "over_three_restarts"),
            (
                "below the engine's defaults for longer than one canary",
                "below_the_defaults_for_longer_than_a_canary",
            ),
        )
    ]
    changes = f"{summary['changes_kept']} changes kept, {summary['changes_rolled_back']} rolled back."
    stories = [(name, one["engine"], one["story"]) for name, one in scenarios.items()]
    lines += ["", *_table(("target", "scenarios that miss it", ""), rows), "", changes, "", "What was drawn:", ""]
    return lines + _table(("scenario", "engine", "case"), stories)


HARM_FIGURES: Final[tuple[tuple[str, str, float | None], ...]] = (
    ("goodput lost to tuning, part of that without any change (below 0: gained)", "goodput_lost_to_tuning", 0.01),
    ("the same in the worst case", "goodput_lost_to_tuning_in_the_worst_case", 0.01),
    ("goodput lost against the same runs without bad values", "goodput_lost_to_bad_values", None),
    (
        "requests served well without any change, and badly by a pod with a bad value, part",
        "spoiled_by_bad_values",
        0.01,
    ),
    ("seconds with fewer serving pods than spec.replicas, all cases", "below_ready_floor_seconds", 0.0),
    ("the same, without the pods of trials", "own_pods_below_ready_floor_seconds", 0.0),
)


def bad_candidates(result: Result) -> list[str]:
    """Tell what secretly bad values cost, each case by itself as well."""
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
        "case", "served well without any change", "lost to tuning, %", "lost to bad values, %", "spoiled, %",
        "s below the floor", "changes kept, rolled back", "bad pods, serving", "bad values tried",
    )  # fmt: skip
    broken_off = len(cases) < result["asked_for"]
    about = (
        (f"The run was broken off after {len(cases)} of {result['asked_for']} cases. " if broken_off else "")
        + f"{len(cases)} fleets of 3 and 4 replicas ({', '.join(kinds)}; seeds {seeds[0]} to {seeds[-1]}), about an "
        "hour each, in mode Automatic with the default strategy, but a cooldown of 5 minutes and 12 changes a day. "
        f"Every value that the user has not written is bad with probability {result['bad']:g}: tokens 20 to 200 % "
        "slower, no start, death after minutes, never ready, 5 to 50 % of the requests failed, or slower by the "
        f"minute. Something was tried in {sum(bool(case['states']) for case in cases)} cases, bad values in "
        f"{summary['cases_with_bad_values']} of them, on {summary['bad_pods']} pods. "
        "Replicas are fixed, and each case is played three times with the same requests: as told, without any change, "
        "and without bad values."
    )
    ended = (
        f"{summary['changes_kept']} changes kept, {summary['changes_rolled_back']} rolled back. Over 1 % lost: "
        f"{', '.join(summary['over_1_pct_lost']) or 'no case'}. Below the floor: "
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
            ("figure", "measured", "at most", ""),
            [_held(title, summary[name], most) for title, name, most in HARM_FIGURES],
        ),
        "",
        *_table(("bad value", "tried", "reached the service's own pods", "kept to the end"), told),
        "",
        ended,
        "",
        *_table(header, rows),
    ]


def _goodputs(scenario: Result, names: Sequence[str]) -> list[str]:
    found = (scenario["policies"][name] for name in names)
    return [f"{one['goodput']:.2f} ({one['gpu_hours']:.1f})" for one in found]


def _below(scenario: Result) -> str:
    """Minutes; empty where one of the two was not played."""
    found = scenario["policies"].get("autotuner", {})
    if "seconds_below_the_defaults" not in found:
        return ""
    return f"{found['seconds_below_the_defaults'] / 60:.0f} min ({found['seconds_of_one_canary'] / 60:.0f} min)"


def replay(result: Result) -> list[str]:
    """Tell how far the simulated levels are from the real ones, for each way of giving the engine its pace."""
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
        "pace of the engine",
        "running, %",
        "waiting, %",
        "KV usage, %",
        "preemptions",
        "class differs",
    )
    about = (
        "Errors of time-weighted means; preemptions as a ratio to the real ones; evaluations in which the class "
        "differs. The recordings share a CPU with their load: `recorded pace` slows the simulated engine as the real "
        "one was slowed by its own counters, the others keep one law throughout."
    )
    return [about, "", *_table(header, rows)]


def _error(way: Mapping[str, Any], quantity: str) -> str:
    found = [level["error_pct"] for level in way["levels"] if level["quantity"] == quantity]
    return "-" if not found or found[0] is None else f"{found[0]:+.1f}"


def scenes(result: Result) -> list[str]:
    """Tell the accuracy of both parts apart, and what was named when."""
    rows = [
        (
            each["recording"],
            "held out" if each["held_out"] else "thresholds",
            f"{each['evaluations'] - len(each['wrong'])} of {each['evaluations']}",
            ", ".join(each["named"]),
        )
        for each in result["recordings"]
    ]
    about = "`held out`: the recording had no part in setting a threshold."
    return [*plain(result), "", about, "", *_table(("recording", "part", "right", "named"), rows)]


VERDICT_FIGURES: Final[tuple[tuple[str, str, float | None], ...]] = (
    ("equals rejected (Revert)", "wrong_rejections_of_equals", 0.05),
    ("the same: upper end of its 95 % interval", "wrong_rejections_of_equals_95_pct_below", None),
    ("the same on arms as played, without fitted noise", "wrong_rejections_of_equals_played", 0.05),
    ("equals rejected where windows end with the first look", "wrong_rejections_of_equals_in_few_windows", None),
    ("TPOT 20 % longer and over its objective, kept", "harmful_promotions", 0.01),
    ("the same where windows end with the first look", "harmful_promotions_in_few_windows", None),
    ("the same: upper end of its 95 % interval", "harmful_promotions_95_pct_below", None),
    ("the same on arms as played", "harmful_promotions_played", 0.01),
    (
        "TPOT 20 % longer but inside its objective, kept for a TTFT that halves",
        "promotions_of_20_pct_slower_inside_the_objective",
        None,
    ),
    ("TPOT 20 % longer, kept by a change for TPOT", "promotions_for_tpot_of_20_pct_slower", 0.01),
    ("TPOT 20 % longer and over its objective, rejected for it", "regressions_found_for_what_they_are_drawn", None),
    ("the same on arms as played", "regressions_found_for_what_they_are", None),
    (
        "noise of a window's ratio, TTFT: median over cases (standard deviation of the logarithm)",
        "noise_of_a_window_ttft_median",
        None,
    ),
    ("the same for TPOT", "noise_of_a_window_tpot_median", None),
)
"""What to call a figure, where it stands in the summary, and what it may be at most."""


def verdict(result: Result) -> list[str]:
    """Tell the error rates, then the operating curve of each kind of change."""
    summary, (first, last) = result["summary"], result["seeds"]
    about = (
        f"{summary['cases']} services (seeds {first} to {last}; the method was chosen on others), each with two arms "
        "under one load, once equal and once with a TPOT that is truly 20 % longer. Pods start cold, differ by 1.5 % "
        "in speed and may queue; ten windows after a minute of warm-up. Rates are of verdicts drawn from noise fitted "
        "to the equal arms, unless it says `as played`. Ranges: `benchmarks/verdicts/drawing.py`; the method: "
        "`operator/vllm_autotuner/change/comparison.py`. Inconclusive is undone as well, without blame."
    )
    lines = [
        about,
        "",
        *_table(
            ("figure", "measured", "at most", ""),
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
            "kept of those that break an objective, %",
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
    """Tell the rates by the number of windows before the change."""
    first, last = result["seeds"]
    about = (
        f"{result['cases']} services (seeds {first} to {last}) whose load moves by up to a half in 10 to 40 minutes, "
        "each changed in place once to an equal and once to a TPOT that is truly 20 % longer; each is judged "
        "under 20 draws of objectives, so that verdicts of one service are not independent. All as played."
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
    told = f"The bake, {result['bake_windows']} windows against ten before; an alarm takes the change back:"
    return [*lines, "", told, "", *_table(("change", "alarm, %"), ended)]


def forecasts(result: Result) -> list[str]:
    """Tell how far off the forecasts were, by where they come from, and the worst of them."""
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
        "Errors in %, foretold over measured less one. *Within a quarter*: neither is over a quarter above the other. "
        "A forecast carries the measured prefill over: prompts that disturb each other less (`measured`: half the "
        "clients per replica) are in none, so what more replicas gain is foretold too small."
    )
    return [
        about,
        "",
        *_table(
            (
                "pairs", "foretold", "TTFT: median", "signed", "worst", "within a quarter", "TPOT: median", "worst",
            ),
            rows,
        ),
        "",
        "The forecasts of TTFT that were furthest off, seconds:",
        "",
        *_table(("change", "foretold", "measured"), worst),
    ]  # fmt: skip


FORECAST_FIGURES: Final = (
    ("ttft_median_abs_pct", "{:.1f}"),
    ("ttft_median_pct", "{:+.1f}"),
    ("ttft_worst_pct", "{:+.0f}"),
    ("ttft_within_a_quarter", "{:.0%}"),
    ("tpot_median_abs_pct", "{:.1f}"),
    ("tpot_worst_pct", "{:+.0f}"),
)
"""Where a figure stands in the summary of a kind, and how it is written."""


def _maybe(each: Mapping[str, Any], name: str, form: str) -> str:
    return form.format(each[name]) if name in each else "-"


SECTIONS: Final[tuple[Section, ...]] = (
    Section(
        name="curves",
        title="Measured curves",
        question="Do step-time law, KV arithmetic and simulator agree with GPUs, and what does a choice by them cost?",
        command="python benchmarks/curves.py --save",
        body=curves,
    ),
    Section(
        name="replay",
        title="Recordings of a real engine",
        question="Does the simulated engine do what a real vLLM did under the same arrivals?",
        command="python benchmarks/replay.py --save",
        body=replay,
    ),
    Section(
        name="scenes",
        title="Diagnosis of a real engine",
        question="How often is the right class named in recordings of a real vLLM in known trouble?",
        command="python benchmarks/scenes.py --save",
        body=scenes,
    ),
    Section(
        name="forecasts",
        title="Forecasts of a plan",
        question="How near do the TTFT and TPOT that a recommendation foretells come to what the other setting does?",
        command="python benchmarks/forecasts.py --save",
        body=forecasts,
    ),
    Section(
        name="engine_speed",
        title="Speed of the simulator",
        question="How much faster than real time is one engine in virtual time?",
        command="python benchmarks/engine_speed.py --save",
        body=plain,
    ),
    Section(
        name="diagnosis_speed",
        title="Cost of looking",
        question="How many questions does a look at the fleet take, and how much CPU time does each service?",
        command="python benchmarks/diagnosis_speed.py --save",
        body=plain,
    ),
    Section(
        name="planning_speed",
        title="Speed of planning",
        question="How much CPU time does one planning decision take, and one for each of 10,000 services?",
        command="python benchmarks/planning_speed.py --save",
        body=plain,
    ),
    Section(
        name="confusion",
        title="Diagnosis where the truth is known",
        question="How often does the diagnosis name the limit that a simulated engine really has?",
        command="python benchmarks/confusion.py --save",
        body=plain,
    ),
    Section(
        name="verdict",
        title="Verdicts",
        question="How often does the verdict on a change err, by the true effect of the change?",
        command="python benchmarks/verdict.py --save",
        body=verdict,
    ),
    Section(
        name="verdict_in_place",
        title="Verdicts in place",
        question="And where before is compared with after while the load moves?",
        command="python benchmarks/verdict.py --in-place --save",
        body=verdict_in_place,
    ),
    Section(
        name="closed_loop",
        title="Closed loop",
        question="What does the whole product gain over defaults, autoscalers and an offline sweep?",
        command="python benchmarks/closed_loop.py --save",
        body=closed_loop,
    ),
    Section(
        name="bad_candidates",
        title="Secretly bad values",
        question="What does tuning cost a fleet when 30 % of all values are bad, and nobody knows which?",
        command="python benchmarks/closed_loop.py --bad 0.3 --save",
        body=bad_candidates,
    ),
)


def rendered(results: Path = RESULTS) -> str:
    """Return the document. A result without a section is told as it stands; a section without a result was not run."""
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
    return [*section.body(result), "", f"{ran}; {where}." if where else f"{ran}.", ""]


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
    parser = argparse.ArgumentParser(description="Write docs/benchmarks.md from benchmarks/results.")
    parser.add_argument("--check", action="store_true", help="only say whether it is what the results say")
    options = parser.parse_args(arguments)
    text = rendered()
    if not options.check:
        DOCUMENT.write_text(text, encoding="utf-8")
        return 0
    if DOCUMENT.is_file() and DOCUMENT.read_text(encoding="utf-8") == text:
        return 0
    print("docs/benchmarks.md is not what the results say: python benchmarks/report.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
