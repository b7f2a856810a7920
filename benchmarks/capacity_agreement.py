"""How well is the capacity of a replica told from one load: against bisection on the simulator and measured curves?

Usage: python benchmarks/capacity_agreement.py [--scenes N] [--data FOLDER] [--json] [--save]
Simulated: the true capacity is the highest rate of independent arrivals at which a run of 15 minutes meets both
objectives, found by bisection; the told one is what the metrics of one run at a share of that rate say. Measured: the
line is fitted on the points up to half of the largest batch below saturation, and the objective is the TPOT that was
measured at a larger batch: what it tells, over tokens per second there. 1 is right, above 1 promises too much. The low
end is what replicas are taken away by: it should not be above 1.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measured_curves.command import data_folder
from benchmarks.measured_curves.groups import batch_of, usable_points
from benchmarks.measured_curves.read import Curve, CurveError, read_curves
from benchmarks.result_files import require_clean_tree, write_result
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.cli.diagnosis.request import subject_from
from vllm_autotuner.cli.options.objective_options import ObjectiveOptions
from vllm_autotuner.cli.simulate.request import Load, engine_flags, length_of, profile_of
from vllm_autotuner.cli.simulate.run_figures import figures_of
from vllm_autotuner.cli.simulate.simulated_service import Run, Scenario, run
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.capacity import Limits, Replica, capacity
from vllm_autotuner.performance.step_time import NoFit, fit_step_time
from vllm_autotuner.planning.current_replica import UnknownReplica, current_replica, limits_of
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.traffic import Content, Mix, OpenLoop

LOADS: Final = (0.25, 0.5, 0.75, 0.95, 1.15, 1.4)
"""Of the true capacity."""
STEP: Final = 1.6
"""By which the bracket of the true capacity grows."""
HALVINGS: Final = 6
"""Of the bracket, on a logarithm: down to 0.7 %."""
LARGER: Final = (0.6, 0.8, 1.0)
"""Of the largest batch of a curve: where the objective is set, beyond the half that the line was fitted on."""
FOLDERS: Final = ("curves", "curves-blackwell", "curves-moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One engine under one length mix, with its objectives (seconds)."""

    name: str
    profile: str
    prompt: str
    output: str
    args: str
    ttft: float
    tpot: float


CHAT: Final = {"prompt": "lognormal:p50=600,p95=2000", "output": "lognormal:p50=200,p95=600"}
SCENES: Final = (
    Scene(name="knee", profile="qwen3-32b-h100", **CHAT, args="--tensor-parallel-size 2", ttft=2.0, tpot=0.030),
    Scene(
        name="max-num-seqs 24",
        profile="qwen3-32b-h100",
        **CHAT,
        args="--tensor-parallel-size 2 --max-num-seqs 24",
        ttft=2.0,
        tpot=0.040,
    ),
    Scene(name="knee, 8B", profile="llama-3.1-8b-h100", **CHAT, args="--tensor-parallel-size 1", ttft=2.0, tpot=0.020),
    Scene(
        name="KV cache",
        profile="qwen3-32b-h100",
        prompt="lognormal:p50=1000,p95=2000",
        output="lognormal:p50=1500,p95=3000",
        args="--tensor-parallel-size 2 --max-num-seqs 1024",
        ttft=3.0,
        tpot=0.060,
    ),
    Scene(
        name="prompts",
        profile="llama-3.1-8b-h100",
        prompt="uniform:3000-5000",
        output="uniform:30-60",
        args="--tensor-parallel-size 1",
        ttft=2.0,
        tpot=0.100,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One capacity as told, over the true one; None where nothing was told."""

    source: str
    what: str
    likely: float | None
    low: float = 0.0
    limited_by: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=len(SCENES), help="only so many of the simulated scenes")
    parser.add_argument(
        "--data", type=Path, default=None, help="folder that holds curves/; default: VLLM_AUTOTUNER_DATA"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/capacity_agreement.json")
    given = parser.parse_args(arguments)
    if given.save:
        require_clean_tree()
    truths = {scene: true_capacity(scene) for scene in SCENES[: given.scenes]}
    found = [told for scene, truth in truths.items() for told in simulated(scene, truth)]
    for name in FOLDERS:
        try:
            curves = read_curves((given.data or data_folder()) / name)
        except CurveError as error:
            Console(stderr=True).print(f"measured curves left out: {error}")
        else:
            found += [replace(told, source=f"measured, {name}") for curve in curves for told in measured(curve)]
    figures = {
        "summary": summary(found),
        "simulated": [_row(each, truths) for each in found if each.source == "simulated"],
        "worst": [{"what": each.what, "told": each.likely, "low": each.low} for each in worst(found)],
        "true_capacity": {scene.name: truth for scene, truth in truths.items()},
    }
    if given.save:
        write_result("capacity_agreement", figures)
    if given.json:
        print(json.dumps(figures, indent=2))
    else:
        _print(figures)
    return 0


def played(scene: Scene, rate: float, *, seed: int, warm_up: float, measured: float) -> Run:
    """Return a run of one replica at a steady rate."""
    mix = Mix(prompt=length_of("--prompt-tokens", scene.prompt), output=length_of("--output-tokens", scene.output))
    curve = RateCurve.steps([(0.0, rate), (warm_up + measured, 0.0)])
    return run(
        Scenario(
            flags=engine_flags(scene.args),
            profile=profile_of(scene.profile),
            replicas=1,
            load=Load(f"{rate:.2f}/s", lambda seed: OpenLoop(curve, Content(mix), burstiness=1.0, seed=seed)),
            warm_up=warm_up,
            measured=measured,
            seed=seed,
            subject=subject_from(
                ObjectiveOptions(ttft=f"{scene.ttft}s", tpot=f"{scene.tpot * 1000:.0f}ms"), engine_args=scene.args
            ),
        )
    )


def true_capacity(scene: Scene) -> float:
    """Return the highest rate (requests per second) at which both objectives are met."""

    def met(rate: float) -> bool:
        figures = figures_of(played(scene, rate, seed=5, warm_up=200.0, measured=900.0))
        ttft, tpot = figures.ttft_at_objective, figures.tpot_at_objective
        return ttft is not None and tpot is not None and ttft <= scene.ttft and tpot <= scene.tpot

    low = 0.25
    while met(low * STEP):
        low *= STEP
    high = low * STEP
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if met(middle) else (low, middle)
    return math.sqrt(low * high)


def case_at(scene: Scene, rate: float, *, seed: int = 1, warm_up: float = 700.0) -> Case:
    """Return what the operator knows at the end of a run at this rate."""
    done = played(scene, rate, seed=seed, warm_up=warm_up, measured=300.0)
    knobs = EngineKnobs(max_num_seqs=done.config.max_num_seqs, tensor_parallel_size=done.config.tensor_parallel_size)
    return Case(observation=done.report.observation, targets=done.report.targets, knobs=knobs)


def simulated(scene: Scene, truth: float) -> Iterator[Told]:
    """Tell the capacity from each of `LOADS`."""
    for share in LOADS:
        case = case_at(scene, truth * share)
        replica = current_replica(case)
        what = f"{scene.name} at {share:g} of it"
        if isinstance(replica, UnknownReplica):
            yield Told(source="simulated", what=what, likely=None)
        else:
            yield _told("simulated", what, replica, limits=limits_of(case.targets), truth=truth)


def measured(curve: Curve) -> Iterator[Told]:
    """Tell the capacity for the TPOT of larger batches from the line of the smaller half."""
    points = usable_points(curve)
    if not points:
        return
    batches, tpots = [batch_of(curve, point) for point in points], [point.tpot for point in points]
    output = points[0].output_tokens * curve.mean_share
    half = [
        StepPoint(running=batch, itl=tpot, tokens=1000.0)
        for batch, tpot in zip(batches, tpots, strict=True)
        if batch <= max(batches) / 2
    ]
    line = fit_step_time(half)
    for part in LARGER:
        batch = part * max(batches)
        tpot = float(np.interp(batch, batches, tpots))
        what = f"{curve.file.removesuffix('.csv')} within {tpot * 1000:.1f} ms"
        if isinstance(line, NoFit):
            yield Told(source="measured", what=what, likely=None)
            continue
        limits = Limits(tpot=tpot, ttft=math.inf, ttft_quantile=0.95)
        yield _told("measured", what, Replica(step=line, output=output), limits=limits, truth=batch / tpot / output)


def _told(source: str, what: str, replica: Replica, *, limits: Limits, truth: float) -> Told:
    found = capacity(replica, limits=limits)
    return Told(
        source=source,
        what=what,
        likely=found.rate / truth,
        low=found.low / truth,
        limited_by=found.limited_by,
    )


def summary(found: Sequence[Told]) -> dict[str, Any]:
    """Return told over true by source: median, middle nine tenths, ends, and how often the low end is kept."""
    kinds: dict[str, list[Told]] = {}
    for each in found:
        kinds.setdefault(each.source, []).append(each)
    return {kind: _figures(members) for kind, members in sorted(kinds.items())}


def _figures(members: Sequence[Told]) -> dict[str, Any]:
    known = [each for each in members if each.likely is not None]
    ratios = [each.likely for each in known if each.likely is not None]
    figures: dict[str, Any] = {"asked": len(members), "told": len(known)}
    if not known:
        return figures
    return figures | {
        "told_over_true_median": statistics.median(ratios),
        "told_over_true_p05": float(np.quantile(ratios, 0.05)),
        "told_over_true_p95": float(np.quantile(ratios, 0.95)),
        "told_over_true_least": min(ratios),
        "told_over_true_most": max(ratios),
        "median_abs_pct": statistics.median(abs(ratio - 1) for ratio in ratios) * 100,
        "low_end_kept": sum(each.low <= 1 for each in known) / len(known),
        "low_end_median": statistics.median(each.low for each in known),
    }


def worst(found: Sequence[Told], count: int = 6) -> list[Told]:
    """Return those that were furthest off; twice as much is as far as half as much."""
    known = [each for each in found if each.likely]
    return sorted(known, key=lambda each: -abs(math.log(each.likely or 1.0)))[:count]


def _row(told: Told, truths: Mapping[Scene, float]) -> dict[str, Any]:
    truth = next(rate for scene, rate in truths.items() if told.what.startswith(f"{scene.name} at "))
    return {
        "what": told.what,
        "true_per_s": truth,
        "told": told.likely,
        "low": told.low,
        "limited_by": told.limited_by,
    }


def _print(figures: Mapping[str, Any]) -> None:
    told = Table(title="capacity as told from one load, over the true one")
    for name in ("", "true, requests/s", "told", "at least", "limited by"):
        told.add_column(name, justify="left" if name in ("", "limited by") else "right")
    for each in figures["simulated"]:
        told_of = (_cell(each[name]) for name in ("told", "low"))
        told.add_row(each["what"], f"{each['true_per_s']:.2f}", *told_of, each["limited_by"])
    totals = Table(title="told over true")
    for name in ("", "told", "median", "p05", "p95", "least", "most", "low end kept"):
        totals.add_column(name, justify="right" if name else "left")
    for kind, each in figures["summary"].items():
        parts = (each.get(f"told_over_true_{name}") for name in ("median", "p05", "p95", "least", "most"))
        totals.add_row(kind, f"{each['told']} of {each['asked']}", *map(_cell, parts), _cell(each.get("low_end_kept")))
    console = Console()
    for table in (told, totals):
        console.print(table)
    for each in figures["worst"]:
        console.print(f"{each['told']:.2f} (at least {each['low']:.2f}) {each['what']}", soft_wrap=True)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
