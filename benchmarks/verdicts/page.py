"""The sections of the verdicts in docs/benchmarks.md. Must not: measure, or judge."""

from typing import Final

from benchmarks.markdown import Result, held, table
from benchmarks.verdicts import error_rates
from benchmarks.verdicts.error_rates import MOST_EQUALS_REJECTED, MOST_HARM_KEPT

__all__ = ["verdict", "verdict_in_place", "verdict_routers"]

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
    ("TTFT 20 % longer and over its objective, kept", "late_promotions", MOST_HARM_KEPT),
    ("the same: upper end of its 95 % interval", "late_promotions_95_pct_below", None),
    ("the same for the worst effect from +10 to +50 %", "late_promotions_worst_effect", MOST_HARM_KEPT),
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
        "verdicts drawn from noise fitted to the equal runs, except `on simulated runs`. Intervals are clustered by "
        "service: verdicts on one service share its noise. Where none fell so, only the number of services counts. "
        "Parameter ranges: "
        "`benchmarks/verdicts/drawing.py`; method: `operator/vllm_autotuner/change/comparison.py`. Inconclusive is "
        "rolled back as well, but the value may be tried again."
    )
    lines = [
        about,
        "",
        *table(
            ("figure", "measured", "limit", ""),
            [held(title, summary[name], most) for title, name, most in VERDICT_FIGURES],
        ),
    ]
    for name, curve in result["curves"].items():
        rows = [
            (
                f"{100 * one['effect']:+.0f}",
                *(f"{100 * one[judgement]:.1f}" for judgement in ("keep", "revert", "inconclusive")),
                f"{one['windows']:.1f}",
                *_kept_though_breaking(one["breaking"]),
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
            "95 %: below",
            "in services",
            "verdicts",
        )
        lines += [
            "",
            f"{result['questions'][name][0].upper()}{result['questions'][name][1:]}:",
            "",
            *table(header, rows),
        ]
    return lines


def _kept_though_breaking(found: Result) -> tuple[str, str, str]:
    """Rate in %, upper end of its interval, and in how many services it happened."""
    if not found["trials"]:
        return "-", "-", "-"
    services = f"{found['keep_services']} of {found['services']}"
    return f"{100 * found['keep']:.2f}", f"{100 * found['keep_95_pct_below']:.1f}", services


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
        "equals_for_ttft": "equal, for TTFT",
        "ttft_breaks_its_objective": "TTFT 20 % longer and over its objective, for TTFT",
        "ttft_halved": "TTFT halved, else equal, for TTFT",
        "ttft_halved_but_tpot_breaks_its_objective": "TTFT halved, TPOT 20 % longer and over its objective, for TTFT",
    }
    rows = [
        (windows, told, *(f"{100 * found[kind][one]:.1f}" for one in ("keep", "revert", "inconclusive")))
        for windows, found in result["by_windows_before"].items()
        for kind, told in kinds.items()
    ]
    lines = [about, "", *table(("windows before", "change", "Keep, %", "Revert, %", "Inconclusive, %"), rows)]
    lines += ["", error_rates.in_place_limits(result)]
    if "bake" not in result:
        return lines
    baked = {"equals": "equal", "tpot_breaks_its_objective": "TPOT 20 % longer and over its objective"}
    ended = [(told, f"{100 * result['bake'][kind]['revert']:.1f}") for kind, told in baked.items()]
    told = f"The bake, {result['bake_windows']} windows compared with ten before the change; an alarm rolls back:"
    return [*lines, "", told, "", *table(("change", "alarm, %"), ended)]


def verdict_routers(result: Result) -> list[str]:
    """Render what is kept at each share of the requests, with and without the comparison of the traffic."""
    first, last = result["seeds"]
    about = (
        f"{result['cases']} services (seeds {first} to {last}) behind a router that sends the canary more or less than "
        "each other pod, the fresh baseline included. Candidates are equal, or their TPOT is truly 20 % longer and "
        "over its objective; each rate is the worse of a change for TTFT and one for TPOT. All are of simulated runs, "
        "each under several draws of objectives; intervals are clustered by service. `blind`: the same verdict without "
        "`change/arm_traffic`."
    )
    rows = []
    for share, found in result["by_share"].items():
        for kind, told in (("equals", "equal"), ("slower", "TPOT 20 % longer")):
            seen, blind = (
                max((found[kind][target][how] for target in ("ttft", "tpot")), key=lambda one: one["keep"])
                for how in ("compared", "blind")
            )
            rejected = max(found[kind][target]["compared"]["revert"] for target in ("ttft", "tpot"))
            blind_rejected = max(found[kind][target]["blind"]["revert"] for target in ("ttft", "tpot"))
            rows.append(
                (
                    share,
                    told,
                    f"{100 * seen['keep']:.1f}",
                    f"{100 * seen['keep_95_pct_below']:.1f}",
                    f"{100 * blind['keep']:.1f}",
                    f"{100 * rejected:.1f}",
                    f"{100 * blind_rejected:.1f}",
                )
            )
    header = (
        "requests of the canary over another pod's",
        "candidate",
        "kept, %",
        "95 %: below",
        "kept blind, %",
        "rejected, %",
        "rejected blind, %",
    )
    return [about, "", *table(header, rows)]
