"""The section of the measured curves in docs/benchmarks.md. Must not: measure, or judge."""

from typing import Final

from benchmarks.markdown import Result, held, table, told

__all__ = ["CURVE_FIGURES", "curves"]

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
    rows = [held(title, summary[name], most) for title, name, most in CURVE_FIGURES]
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
    lines = [about, "", *table(("figure", "measured", "limit", ""), rows), "", "The worst points:", ""]
    lines += [
        *table(("curve", "load", "error, %"), worst),
        "",
        "All curves; errors in % of TPOT, without saturated points:",
        "",
    ]
    lines += table(
        ("curve", "fit: median", "worst", "mix outside the fit: median", "worst", "full at", "simulated", "worst loss"),
        [_curve_row(each) for each in result["curves"]],
    )
    return lines + [f"\nExcluded: {each['file']}: {each['why']}." for each in result["left_out"]]


def _curve_row(curve: Result) -> tuple[str, ...]:
    return (
        f"{curve['model'].rsplit('/', 1)[-1]} {curve['gpu'].split('-', 1)[0]} TP{curve['tp']} {curve['mix']}",
        told(curve["tpot_median_abs_pct_error"]),
        told(curve["tpot_worst_abs_pct_error"]),
        told(curve["tpot_lomo_median_abs_pct_error"]),
        told(curve["tpot_lomo_worst_abs_pct_error"]),
        told(curve["saturation_measured_at"]),
        told(curve["saturation_played_at"]),
        told(curve["goodput_regret_worst"]),
    )
