"""All of it over one folder, and what it comes to: the JSON object of `benchmarks/curves.py`.

Apart from the command, so that tests call it. Errors are in percent, regrets and shares are fractions, latencies ms.
Must not: average over what was not judged. What was left out is listed with its reason.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.measured_curves.choose import Choice, choices, choices_after, held_by_pool
from benchmarks.measured_curves.compare import ComparedCurve, ComparedPoint, compare
from benchmarks.measured_curves.groups import SetUp, first_sign, fit_set_up, set_ups
from benchmarks.measured_curves.kv_rows import KvRow, read_kv_rows
from benchmarks.measured_curves.profile_fit import Family, families
from benchmarks.measured_curves.read import Curve, read_curves
from vllm_autotuner.performance.step_time import NoFit

__all__ = ["Decided", "Study", "report_of", "study", "without_measurements"]

FIRST_POINTS: Final = 3
"""What the harder of the two tests of a choice sees: the fewest points that make a line."""
WORST: Final = 8
"""Points that the report names as the worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The choices on one curve."""

    curve: Curve
    choices: tuple[Choice, ...]
    after_three: tuple[Choice, ...]
    """Those of one who saw the first three points only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Everything that was found out about a folder."""

    families: tuple[Family, ...]
    compared: tuple[ComparedCurve, ...]
    decided: tuple[Decided, ...]
    left_out: tuple[tuple[SetUp, str], ...]
    """Set-ups without a law, and why."""
    kv_rows: tuple[KvRow, ...]


def study(
    folder: Path, *, kv_capacity: Path | None, seed: int, progress: Callable[[str], None] = lambda _: None
) -> Study:
    """Read, fit, play, choose. Raises CurveError."""
    groups = set_ups(read_curves(folder))
    kv_rows = () if kv_capacity is None else read_kv_rows(kv_capacity)
    found = families(groups)
    decided = []
    for family in found:
        for set_up, law in family.laws.values():
            for curve in set_up.curves:
                held = held_by_pool(set_up, curve)
                decided.append(
                    Decided(
                        curve=curve,
                        choices=choices(curve, law=law, held=held),
                        after_three=choices_after(curve, FIRST_POINTS, law=law, held=held),
                    )
                )
    return Study(
        families=found,
        compared=compare(found, seed=seed, progress=progress),
        decided=tuple(decided),
        left_out=tuple((group, fit.why) for group in groups if isinstance(fit := fit_set_up(group), NoFit)),
        kv_rows=kv_rows,
    )


def report_of(study: Study) -> dict[str, Any]:
    """Return the report: figures only, ready for JSON."""
    return {
        "summary": _summary(study),
        "worst_points": _worst_points(study.compared),
        "curves": [_curve(each, choice) for each, choice in zip(study.compared, study.decided, strict=True)],
        "left_out": [
            {"file": curve.file, "why": why, "saturation": None if (sign := first_sign(curve)) is None else sign.why}
            for set_up, why in study.left_out
            for curve in set_up.curves
        ],
        "kv_capacity": [_kv(row) for row in study.kv_rows],
    }


def without_measurements(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report without the figures of others: what the repository keeps are errors, not their tables."""
    kept = ("x", "saturated", "error_pct", "lomo_error_pct", "ttft_error_pct")
    curves = [
        {**curve, "points": [{name: point[name] for name in kept} for point in curve["points"]], "decisions": len(
            curve["decisions"]
        )}
        for curve in report["curves"]
    ]  # fmt: skip
    rows = [{name: row[name] for name in ("model", "tp", "bytes_error_pct", "pool_error_pct", "why")}
            for row in report["kv_capacity"]]  # fmt: skip
    return {**report, "curves": curves, "kv_capacity": rows}


def _summary(study: Study) -> dict[str, Any]:
    points = [point for curve in study.compared for point in curve.points]
    below = [point for point in points if not point.saturated]
    above = [abs(point.error) * 100 for point in points if point.saturated]
    fitted = [abs(point.error) * 100 for point in below]
    unseen = [abs(point.unseen_error) * 100 for point in below if point.unseen_error is not None]
    ttft = [abs(error) * 100 for point in points if (error := point.ttft_error) is not None]
    agree = [curve.saturates_within_one_step for curve in study.compared]
    chosen = [choice for each in study.decided for choice in each.choices]
    early = [choice for each in study.decided for choice in each.after_three]
    size = [abs(row.bytes_error) * 100 for row in study.kv_rows if row.bytes_error is not None]
    pool = [abs(row.pool_error) * 100 for row in study.kv_rows if row.pool_error is not None]
    return {
        "curves": len(study.compared),
        "curves_left_out": sum(len(set_up.curves) for set_up, _ in study.left_out),
        "points": len(points),
        "points_saturated": len(above),
        **_spread("tpot", fitted),
        **_spread("tpot_lomo", unseen),
        **_spread("tpot_saturated", above),
        **_spread("ttft", ttft),
        "kv_saturation_within_one_step": _share(agree),
        "curves_saturated_measured": sum(curve.measured_sign is not None for curve in study.compared),
        "curves_saturated_played": sum(curve.played_sign is not None for curve in study.compared),
        "decisions": len(chosen),
        "goodput_regret_median": _median([choice.regret for choice in chosen]),
        "goodput_regret_worst": _worst([choice.regret for choice in chosen]),
        "knee_within_one_step": _share([choice.steps_apart <= 1 for choice in chosen]),
        "goodput_regret_between_points_median": _median([choice.regret_between for choice in chosen]),
        "goodput_regret_between_points_worst": _worst([choice.regret_between for choice in chosen]),
        "goodput_regret_after_three_points_median": _median([choice.regret for choice in early]),
        "goodput_regret_after_three_points_worst": _worst([choice.regret for choice in early]),
        "kv_bytes_per_token_worst_pct_error": _worst(size),
        "kv_pool_median_pct_error": _median(pool),
        "kv_pool_worst_pct_error": _worst(pool),
    }


def _spread(name: str, errors: Sequence[float]) -> dict[str, float | None]:
    return {
        f"{name}_median_abs_pct_error": _median(errors),
        f"{name}_worst_abs_pct_error": _worst(errors),
    }


def _curve(compared: ComparedCurve, decided: Decided) -> dict[str, Any]:
    curve = compared.curve
    below = [abs(point.error) * 100 for point in compared.points if not point.saturated]
    unseen = [
        abs(point.unseen_error) * 100
        for point in compared.points
        if point.unseen_error is not None and not point.saturated
    ]
    sign = first_sign(curve)
    return {
        "file": curve.file,
        "model": curve.model,
        "gpu": curve.gpu,
        "tp": curve.tensor_parallel_size,
        "mix": curve.mix,
        "profile": compared.profile,
        **_spread("tpot", below),
        **_spread("tpot_lomo", unseen),
        "saturation_measured_at": None if sign is None else curve.points[sign.index].x,
        "saturation_measured_why": None if sign is None else sign.why,
        "saturation_played_at": None if compared.played_sign is None else curve.points[compared.played_sign].x,
        "saturation_within_one_step": compared.saturates_within_one_step,
        "goodput_regret_worst": _worst([choice.regret for choice in decided.choices]),
        "points": [_point(each) for each in compared.points],
        "decisions": [_choice(each) for each in decided.choices],
    }


def _point(compared: ComparedPoint) -> dict[str, Any]:
    point, played, unseen = compared.point, compared.played, compared.unseen
    return {
        "x": point.x,
        "saturated": compared.saturated,
        "tpot_ms": point.tpot * 1e3,
        "played_tpot_ms": played.tpot * 1e3,
        "lomo_tpot_ms": None if unseen is None else unseen.tpot * 1e3,
        "error_pct": compared.error * 100,
        "lomo_error_pct": None if compared.unseen_error is None else compared.unseen_error * 100,
        "ttft_ms": None if point.ttft is None else point.ttft * 1e3,
        "played_ttft_ms": played.ttft * 1e3,
        "ttft_error_pct": None if compared.ttft_error is None else compared.ttft_error * 100,
        "throughput_tok_s": point.throughput,
        "preemptions": played.preemptions,
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "objective_ms": None if choice.objective is None else choice.objective * 1e3,
        "points_seen": choice.seen,
        "chosen": choice.chosen,
        "goodput_tok_s": choice.goodput,
        "best": choice.best,
        "best_goodput_tok_s": choice.best_goodput,
        "regret": choice.regret,
        "regret_between_points": choice.regret_between,
        "steps_apart": choice.steps_apart,
    }


def _kv(row: KvRow) -> dict[str, Any]:
    return {
        "line": row.line,
        "model": row.model,
        "tp": row.tensor_parallel_size,
        "bytes_per_token_per_gpu": row.bytes_per_token,
        "bytes_error_pct": None if row.bytes_error is None else row.bytes_error * 100,
        "pool_tokens": row.pool,
        "pool_error_pct": None if row.pool_error is None else row.pool_error * 100,
        "why": row.why,
    }


def _worst_points(compared: Sequence[ComparedCurve]) -> list[dict[str, Any]]:
    errors = [(abs(point.error), curve.curve.file, point) for curve in compared for point in curve.points]
    return [
        {"file": file, "x": point.point.x, "saturated": point.saturated, "error_pct": point.error * 100}
        for _, file, point in sorted(errors, key=lambda each: -each[0])[:WORST]
    ]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _worst(values: Sequence[float]) -> float | None:
    return max(values) if values else None


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
