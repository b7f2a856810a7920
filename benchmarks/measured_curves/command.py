"""The command `benchmarks/curves.py`: its options, its report as JSON and as a table.

Must not: compute a figure that the report does not say the meaning of.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measured_curves.compare import ComparedCurve, compare
from benchmarks.measured_curves.groups import first_sign, fit_set_up, set_ups
from benchmarks.measured_curves.profile_fit import families, profile_of
from benchmarks.measured_curves.read import CurveError, read_curves
from vllm_autotuner.performance.step_time import NoFit
from vllm_autotuner.simulation.profiles import profile_text


def measure(folder: Path, *, seed: int) -> tuple[dict[str, Any], tuple[ComparedCurve, ...]]:
    began = time.perf_counter()
    groups = set_ups(read_curves(folder))
    compared = compare(families(groups), seed=seed)
    report = {
        "summary": {**summary(compared), "seconds": round(time.perf_counter() - began, 1)},
        "curves": [curve_row(each) for each in compared],
        "not_fitted": [
            {"file": curve.file, "why": fit.why, "saturation": None if (s := first_sign(curve)) is None else s.why}
            for group in groups
            if isinstance(fit := fit_set_up(group), NoFit)
            for curve in group.curves
        ],
    }
    return report, compared


def summary(compared: Sequence[ComparedCurve]) -> dict[str, Any]:
    points = [point for curve in compared for point in curve.points]
    fitted = [abs(point.error) * 100 for point in points if not point.saturated]
    saturated = [abs(point.error) * 100 for point in points if point.saturated]
    unseen = [
        abs(point.unseen_error) * 100 for point in points if point.unseen_error is not None and not point.saturated
    ]
    agree = [curve.saturates_within_one_step for curve in compared]
    return {
        "curves": len(compared),
        "points": len(points),
        "tpot_median_abs_pct_error": middle(fitted),
        "tpot_worst_abs_pct_error": worst(fitted),
        "tpot_saturated_median_abs_pct_error": middle(saturated),
        "tpot_saturated_worst_abs_pct_error": worst(saturated),
        "tpot_lomo_median_abs_pct_error": middle(unseen),
        "tpot_lomo_worst_abs_pct_error": worst(unseen),
        "kv_saturation_within_one_step": sum(agree) / len(agree) if agree else None,
    }


def curve_row(compared: ComparedCurve) -> dict[str, Any]:
    curve = compared.curve
    return {
        "file": curve.file,
        "mix": curve.mix,
        "profile": compared.profile,
        "measured_saturation": compared.measured_sign,
        "played_saturation": compared.played_sign,
        "points": [
            {
                "x": each.point.x,
                "saturated": each.saturated,
                "tpot_ms": each.point.tpot * 1e3,
                "played_tpot_ms": each.played.tpot * 1e3,
                "error_pct": each.error * 100,
                "lomo_error_pct": None if each.unseen_error is None else each.unseen_error * 100,
                "ttft_ms": None if each.point.ttft is None else each.point.ttft * 1e3,
                "played_ttft_ms": each.played.ttft * 1e3,
                "preemptions": each.played.preemptions,
            }
            for each in compared.points
        ],
    }


def middle(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def worst(values: Sequence[float]) -> float | None:
    return max(values) if values else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/curves.py")
    parser.add_argument("--curves", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write-profiles", type=Path, metavar="DIR")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        if options.write_profiles:
            options.write_profiles.mkdir(parents=True, exist_ok=True)
            for family in families(set_ups(read_curves(options.curves))):
                document = profile_of(family)
                if family.impossible is not None:
                    print(f"{document.name}: not written: {family.impossible}", file=sys.stderr)
                    continue
                (options.write_profiles / f"{document.name}.json").write_text(profile_text(document))
        report, compared = measure(options.curves, seed=options.seed)
    except CurveError as error:
        print(f"curves: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(report, indent=2, allow_nan=False))
        return 0
    for curve in compared:
        print(curve.curve.file, curve.measured_sign, curve.played_sign)
        for each in curve.points:
            unseen = "" if each.unseen_error is None else f"{each.unseen_error * 100:+.1f}"
            print(
                f"   {each.point.x:6g} {'*' if each.saturated else ' '} {each.point.tpot * 1e3:8.2f} "
                f"{each.played.tpot * 1e3:8.2f} {each.error * 100:+6.1f} {unseen:6} "
                f"ttft {(each.point.ttft or 0) * 1e3:9.0f} {each.played.ttft * 1e3:9.0f} pre {each.played.preemptions}"
            )
    print(json.dumps(report["summary"], indent=2))
    return 0
