"""How good are the forecasts of a plan: TTFT and TPOT foretold from one setting, against what the other setting does?

Usage: python benchmarks/forecasts.py [--scenes N] [--data FOLDER] [--json] [--save]
Simulated: arrivals grow to a rate and stay; the forecast is made from the metrics of one setting in its last half
minute, and held against the same rate at another setting. Measured: two replicas instead of one, where nothing
waits, are on a curve the point at half the load (TTFT only: `curves.py` has TPOT). The error is foretold over measured,
less one; "foretold" is what the operator writes into a recommendation. Pairs without a forecast are counted only.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]

from rich.console import Console
from rich.table import Table

from benchmarks.measured_curves.command import data_folder
from benchmarks.measured_curves.groups import usable_points
from benchmarks.measured_curves.read import Curve, CurveError, Point, read_curves
from benchmarks.result_files import require_clean_tree, write_result
from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import Objectives
from vllm_autotuner.cli.diagnosis.request import subject_from
from vllm_autotuner.cli.options.objective_options import ObjectiveOptions
from vllm_autotuner.cli.simulate.request import Load, engine_flags, length_of, profile_of
from vllm_autotuner.cli.simulate.run_figures import figures_of
from vllm_autotuner.cli.simulate.simulated_service import Run, Scenario, run
from vllm_autotuner.diagnosis.case import Case, queues
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.capacity import FirstToken, Replica, load_at
from vllm_autotuner.performance.step_time import StepTime, fit_step_time
from vllm_autotuner.planning.current_replica import limits_of
from vllm_autotuner.planning.forecast import current_setting, outlook, setting_with
from vllm_autotuner.planning.situation import Situation
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.traffic import Content, Mix, OpenLoop

GROWING: Final = 400.0
"""Seconds over which the rate grows: without a spread of batches there is no fit of step times."""
MEASURED: Final = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One engine under one load, at settings that are tried in pairs."""

    profile: str
    prompt: str
    output: str
    rate: float
    """Requests per second."""
    args: str
    knob: Knob
    values: tuple[int, ...]


CHAT: Final = ("lognormal:p50=600,p95=2000", "lognormal:p50=150,p95=400")
LONG: Final = ("uniform:3000-5000", "uniform:100-200")


def _scenes() -> Iterator[Scene]:
    for profile, degree, faster in (("llama-3.1-8b-h100", 1, 2.5), ("qwen3-32b-h100", 2, 1.0)):
        for (prompt, output), rates in ((CHAT, (3.0, 6.0)), (LONG, (0.8, 1.6))):
            common = {"profile": profile, "prompt": prompt, "output": output}
            args = f"--tensor-parallel-size {degree}"
            for rate, seats in zip(rates, ((16, 32, 64), (32, 64, 128)), strict=True):
                yield Scene(**common, rate=rate * faster, args=args, knob=Knob.MAX_NUM_SEQS, values=seats)
            fixed = f"{args} --max-num-seqs 32"
            for rate in rates:
                yield Scene(**common, rate=rate * faster, args=fixed, knob=Knob.REPLICAS, values=(1, 2))


SCENES: Final = tuple(_scenes())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One forecast and what came. Seconds; None: no forecast, or nothing measured."""

    source: str
    change: str
    queued: bool
    ttft: tuple[float | None, float | None]
    """Foretold and measured."""
    tpot: tuple[float | None, float | None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=len(SCENES), help="only so many of the simulated scenes")
    parser.add_argument(
        "--data", type=Path, default=None, help="folder that holds curves/; default: VLLM_AUTOTUNER_DATA"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/forecasts.json")
    given = parser.parse_args(arguments)
    if given.save:
        require_clean_tree()
    pairs = [pair for scene in SCENES[: given.scenes] for pair in simulated(scene)]
    try:
        curves = read_curves((given.data or data_folder()) / "curves")
    except CurveError as error:
        curves = ()
        Console(stderr=True).print(f"measured curves left out: {error}")
    pairs += [pair for curve in curves for pair in measured(curve)]
    figures = {"summary": summary(pairs), "worst": worst(pairs)}
    if given.save:
        write_result("forecasts", figures)
    if given.json:
        print(json.dumps(figures, indent=2))
    else:
        _print(figures)
    return 0


def simulated(scene: Scene) -> list[Pair]:
    """Try every value, and foretell each from those within one step of it."""
    runs = {value: run(_scenario(scene, value)) for value in scene.values}
    return [
        _pair(scene, runs[now], then, came=runs[then])
        for now in scene.values
        for then in scene.values
        if now != then and max(now, then) <= 2 * min(now, then)
    ]


def measured(curve: Curve) -> list[Pair]:
    """Two replicas instead of one, where the curve has the point at half the load and neither is saturated."""
    points = {point.x: point for point in usable_points(curve) if point.ttft is not None and curve.load.closed}
    return [_split(curve, point, points[x / 2]) for x, point in points.items() if x / 2 in points]


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return median and worst errors in percent, by where they come from."""
    kinds: dict[str, list[Pair]] = {}
    for pair in pairs:
        kinds.setdefault(f"{pair.source}, {'with' if pair.queued else 'without'} a queue", []).append(pair)
    return {kind: _errors(found) for kind, found in sorted(kinds.items())}


def worst(pairs: Sequence[Pair], count: int = 6) -> list[dict[str, Any]]:
    """Return the forecasts of TTFT that were furthest off."""
    known = [(pair, error) for pair in pairs if (error := miss(pair.ttft)) is not None]
    known.sort(key=lambda each: -max(each[1], -each[1] / (1 + each[1]) if each[1] > -1 else each[1]))
    return [
        {"change": pair.change, "queued": pair.queued, "foretold_s": pair.ttft[0], "measured_s": pair.ttft[1]}
        for pair, _ in known[:count]
    ]


def miss(values: tuple[float | None, float | None]) -> float | None:
    """Return foretold over measured, less one; None where one of them is not known."""
    foretold, came = values
    return foretold / came - 1 if foretold is not None and came else None


def _errors(pairs: Sequence[Pair]) -> dict[str, Any]:
    found: dict[str, Any] = {"pairs": len(pairs)}
    for name, values in (("ttft", [pair.ttft for pair in pairs]), ("tpot", [pair.tpot for pair in pairs])):
        misses = [error for each in values if (error := miss(each)) is not None]
        found[f"{name}_foretold"] = len(misses)
        if misses:
            found[f"{name}_median_abs_pct"] = statistics.median(map(abs, misses)) * 100
            found[f"{name}_median_pct"] = statistics.median(misses) * 100
            found[f"{name}_worst_pct"] = max(misses, key=abs) * 100
            found[f"{name}_within_a_quarter"] = sum(-0.2 <= error <= 0.25 for error in misses) / len(misses)
    return found


def _scenario(scene: Scene, value: int) -> Scenario:
    seats = "" if scene.knob is Knob.REPLICAS else f" --max-num-seqs {value}"
    args = scene.args + seats
    mix = Mix(prompt=length_of("--prompt-tokens", scene.prompt), output=length_of("--output-tokens", scene.output))

    def traffic(seed: int) -> OpenLoop:
        curve = RateCurve(((0.0, scene.rate / 4), (GROWING, scene.rate), (GROWING + MEASURED, scene.rate)))
        return OpenLoop(curve, Content(mix), burstiness=1.0, seed=seed)

    return Scenario(
        flags=engine_flags(args),
        profile=profile_of(scene.profile),
        replicas=value if scene.knob is Knob.REPLICAS else 1,
        load=Load(f"{scene.rate:g}/s", traffic),
        warm_up=GROWING,
        measured=MEASURED,
        seed=1,
        subject=subject_from(ObjectiveOptions(), engine_args=args),
    )


def _pair(scene: Scene, now: Run, then: int, *, came: Run) -> Pair:
    situation = _situation(now)
    after = outlook(
        setting_with(current_setting(situation), scene.knob, then, situation=situation), situation=situation
    )
    figures = figures_of(came)
    current = now.scenario.replicas if scene.knob is Knob.REPLICAS else now.config.max_num_seqs
    change = f"{scene.profile} {scene.prompt} {scene.rate:g}/s, {scene.knob.value} {current} -> {then}"
    return Pair(
        source="simulated",
        change=change,
        queued=queues(situation.observation),
        ttft=(after.ttft, figures.ttft_at_objective),
        tpot=(after.tpot, figures.tpot_at_objective),
    )


def _split(curve: Curve, now: Point, half: Point) -> Pair:
    """What one more replica is foretold to do to the clients of a point; of each replica it is the point at half."""
    steps = tuple(StepPoint(running=point.x, itl=point.tpot, tokens=1000.0) for point in usable_points(curve))
    line, ttft = fit_step_time(steps), None
    if isinstance(line, StepTime) and now.ttft is not None:
        rate = now.x / now.output_tokens / now.tpot
        first = FirstToken(seconds=now.ttft, rate=rate, batch=now.x, prompts=0.0)
        replica = Replica(step=line, output=now.output_tokens, first=first)
        ttft = load_at(replica, rate / 2, limits=limits_of(targets_of(Objectives()))).ttft
    return Pair(
        source="measured",
        change=f"{curve.file.removesuffix('.csv')} at {now.x:g}, replicas 1 -> 2",
        queued=False,
        ttft=(ttft, half.ttft),
        tpot=(None, None),
    )


def _situation(now: Run) -> Situation:
    report, config = now.report, now.config
    return Situation(
        case=Case(
            observation=report.observation,
            targets=report.targets,
            knobs=EngineKnobs(max_num_seqs=config.max_num_seqs, tensor_parallel_size=config.tensor_parallel_size),
        ),
        diagnosis=report.diagnosis,
        replicas=now.scenario.replicas,
    )


def _print(figures: Mapping[str, Any]) -> None:
    table = Table(title="forecasts against what came, errors in %")
    for name in ("", "pairs", "TTFT: median", "worst", "within a quarter", "TPOT: median", "worst"):
        table.add_column(name, justify="right" if name else "left")
    for kind, each in figures["summary"].items():
        table.add_row(kind, str(each["pairs"]), *_cells(each))
    Console().print(table)


def _cells(each: Mapping[str, Any]) -> Iterable[str]:
    for name, form in (
        ("ttft_median_abs_pct", "{:.1f}"),
        ("ttft_worst_pct", "{:+.0f}"),
        ("ttft_within_a_quarter", "{:.0%}"),
        ("tpot_median_abs_pct", "{:.1f}"),
        ("tpot_worst_pct", "{:+.0f}"),
    ):
        yield form.format(each[name]) if name in each else "-"


if __name__ == "__main__":
    sys.exit(main())
