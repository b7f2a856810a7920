"""All of it over one folder of recordings, as the JSON object of `benchmarks/h200_sweeps.py`.

Apart from the command, so that tests call it. Errors are in percent, lost goodput is a share, latencies are in ms.
Must not: judge, or leave out what is missing: it is null, with its reason.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu_sweeps.foretold import PART_NAMES, Told, kv_bytes, priors_of, prompts_of, told_before, told_from_one
from benchmarks.gpu_sweeps.kv_types import Pair, pairs_of
from benchmarks.gpu_sweeps.left_out import Fit, Knee, LeftOut, fits_of
from benchmarks.gpu_sweeps.tables import Sweep, read_sweep
from benchmarks.measured_curves.compare import ComparedCurve
from benchmarks.measured_curves.groups import SetUp, sample_at, usable_points
from benchmarks.measured_curves.kv_rows import KvRow
from benchmarks.measured_curves.priors import LawPriors, Prior
from benchmarks.measured_curves.read import Curve
from benchmarks.measured_curves.structured_law import StructuredLaw, fit_structured_law
from benchmarks.measured_curves.study import study
from vllm_autotuner.performance.step_time import FEWEST_POINTS, NoFit

__all__ = ["report_of"]

PARAMETERS: Final = ("base", "per_sequence", "per_held_token", "per_prefill_token")
CONTENDED: Final = ("h200-prefill", "h200-prefill-near", "h200-prefill-queue")
"""The recordings of contending prompts, which come in the second phase of each."""


def report_of(data: Path, *, seed: int) -> dict[str, Any]:
    """Read, fit, play, compare. Raises BadRecording.

    `data` holds sweeps/, curves/, recordings/, kv-types/ and kv_capacity.csv.
    """
    sweeps = [read_sweep(path) for path in sorted((data / "sweeps").glob("*.om.gz"))]
    found = study(data / "curves", kv_capacity=data / "kv_capacity.csv", seed=seed)
    set_ups = [each for family in found.families for each, _ in family.laws.values()]
    owners = {curve.file: set_up for set_up in set_ups for curve in set_up.curves}
    one_mix = [curve for set_up in set_ups for curve in set_up.curves if len(curve.points) >= FEWEST_POINTS]
    fits = {curve.file: fits_of(curve, owners[curve.file]) for curve in one_mix}
    return {
        "summary": _summary(fits, sweeps, found.compared, found.kv_rows),
        "sweeps": [_sweep(each, fits.get(f"{each.name}.csv", ())) for each in sweeps],
        "laws": [_law(each) for each in set_ups],
        "simulated": [_simulated(each) for each in found.compared],
        "kv_pool": [_pool(each) for each in found.kv_rows],
        "kv_types": [_pair(each) for each in pairs_of(data / "kv-types")],
        "prompts": [_prompts(data, name) for name in CONTENDED],
    }


def _summary(
    fits: dict[str, tuple[Fit, ...]],
    sweeps: Sequence[Sweep],
    compared: Sequence[ComparedCurve],
    rows: Sequence[KvRow],
) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for file, some in fits.items():
        name = file.removesuffix(".csv")
        lines = [each for each in some if each.law == "line" and each.half != "all"]
        points = [point for each in lines for point in each.points]
        summary[f"{name}_left_out_median_abs_pct_error"] = _median(points)
        summary[f"{name}_left_out_worst_abs_pct_error"] = _worst(points)
        knees = [knee for each in lines for knee in each.knees if knee.measured]
        over = [knee.tpot / knee.objective - 1 for knee in knees if knee.tpot is not None]
        summary[f"{name}_knee_worst_tpot_over_objective_pct"] = max(over) * 100 if over else None
    for sweep in sweeps:
        errors = [abs(each.error) * 100 for each in told_before(sweep)[0] if each.error is not None]
        summary[f"{sweep.name}_priors_median_abs_pct_error"] = statistics.median(errors) if errors else None
    for curve in compared:
        errors = [abs(each.error) * 100 for each in curve.points]
        name = f"{curve.curve.file.removesuffix('.csv')}_{curve.curve.mix}_simulated_median_abs_pct_error"
        summary[name] = statistics.median(errors)
    summary["kv_pool_pct_error"] = rows[0].pool_error * 100 if rows and rows[0].pool_error is not None else None
    return summary


def _sweep(sweep: Sweep, fits: Sequence[Fit]) -> dict[str, Any]:
    before, why = told_before(sweep)
    measured, told = kv_bytes(sweep)
    return {
        "name": sweep.name,
        "model": sweep.model,
        "max_num_seqs": sweep.max_num_seqs,
        "points": [
            {
                "clients": each.clients,
                "prompt_tokens": each.prompt_tokens,
                "output_tokens": each.output_tokens,
                "tpot_ms": each.itl * 1e3,
                "ttft_ms": each.ttft * 1e3,
                "throughput_tok_s": each.throughput,
                "waiting": each.waiting,
            }
            for each in sweep.points
        ],
        "fits": [_fit(each) for each in fits],
        "before": [_told(each) for each in before],
        "before_why": why,
        "from_one": [_told(each) for each in told_from_one(sweep)],
        "kv_tokens": sweep.kv_tokens,
        "kv_bytes_per_token": measured,
        "kv_bytes_per_token_told": told,
    }


def _fit(fit: Fit) -> dict[str, Any]:
    return {
        "law": fit.law,
        "fitted_on": fit.half,
        "why": fit.model.why if isinstance(fit.model, NoFit) else "",
        "median_abs_pct_error": _median(fit.points),
        "worst_abs_pct_error": _worst(fit.points),
        "points": [
            {
                "clients": each.clients,
                "measured_ms": each.measured * 1e3,
                "foretold_ms": each.foretold * 1e3,
                "error_pct": each.error * 100,
                "beyond": each.beyond,
            }
            for each in fit.points
        ],
        "knees": [_knee(each) for each in fit.knees],
    }


def _knee(knee: Knee) -> dict[str, Any]:
    return {
        "objective_ms": knee.objective * 1e3,
        "measured": knee.measured,
        "chosen": knee.chosen,
        "tpot_there_ms": None if knee.tpot is None else knee.tpot * 1e3,
        "lost": knee.lost,
    }


def _told(told: Told) -> dict[str, Any]:
    return {
        "clients": told.clients,
        "measured_ms": told.measured * 1e3,
        "foretold_ms": None if told.foretold is None else told.foretold * 1e3,
        "error_pct": None if told.error is None else told.error * 100,
        "parts_ms": {name: part * 1e3 for name, part in zip(PART_NAMES, told.parts, strict=False)},
    }


def _law(set_up: SetUp) -> dict[str, Any]:
    samples = [sample_at(curve, point) for curve in set_up.curves for point in usable_points(curve)]
    priors = priors_of(set_up.first.model)
    ways = {"with_priors": set_up.priors, "without_priors": LawPriors()}
    fitted = {name: fit_structured_law(samples, priors=way) for name, way in ways.items()}
    return {
        "model": set_up.first.model,
        "mixes": [curve.mix for curve in set_up.curves],
        "parameters_us": {
            name: {
                "prior": prior.mean * 1e6 if isinstance(prior := getattr(priors, name), Prior) else None,
                **{way: getattr(law, name) * 1e6 for way, law in fitted.items() if isinstance(law, StructuredLaw)},
            }
            for name in PARAMETERS
        },
        "mean_abs_pct_error": {
            way: law.error * 100 if isinstance(law, StructuredLaw) else None for way, law in fitted.items()
        },
    }


def _simulated(compared: ComparedCurve) -> dict[str, Any]:
    curve: Curve = compared.curve
    return {
        "file": curve.file,
        "mix": curve.mix,
        "points": [
            {
                "clients": each.point.x,
                "tpot_error_pct": each.error * 100,
                "ttft_error_pct": None if each.ttft_error is None else each.ttft_error * 100,
                "unseen_mix_tpot_error_pct": None if each.unseen_error is None else each.unseen_error * 100,
            }
            for each in compared.points
        ],
    }


def _pool(row: KvRow) -> dict[str, Any]:
    return {
        "model": row.model,
        "logged_tokens": row.pool_given,
        "told_tokens": row.pool,
        "error_pct": None if row.pool_error is None else row.pool_error * 100,
        "why": row.why,
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "clients": pair.in_16_bit.clients,
        "prompt_tokens": pair.in_16_bit.prompt_tokens,
        "output_tokens": pair.in_16_bit.output_tokens,
        "auto_tpot_ms": pair.in_16_bit.itl * 1e3,
        "fp8_tpot_ms": pair.in_8_bit.itl * 1e3,
        "change_pct": pair.change * 100,
    }


def _prompts(data: Path, name: str) -> dict[str, Any]:
    speed = prompts_of(data / "recordings" / f"{name}.om.gz", phase=1)
    return {
        "recording": name,
        "told_tok_s": speed.foretold,
        "mean_tok_s": speed.mean,
        "busy_tok_s": speed.busy,
        "busy_share": speed.busy_share,
        "error_pct": (speed.foretold / speed.busy - 1) * 100,
    }


def _median(points: Sequence[LeftOut]) -> float | None:
    return statistics.median(abs(each.error) * 100 for each in points) if points else None


def _worst(points: Sequence[LeftOut]) -> float | None:
    return max((abs(each.error) * 100 for each in points), default=None)
