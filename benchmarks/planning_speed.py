"""How long one planning decision takes: CPU time from a diagnosis to a proposal, for one service and for a fleet.

Usage: python benchmarks/planning_speed.py [--services N] [--repeats N] [--json] [--save]
Each decision is `plan` on a service that is limited by something, with everything known (the dearest case): candidates,
feasibility, forecasts, order. CPU time of one process on one core; collecting and diagnosing are not in it.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]

from rich.console import Console
from rich.table import Table

from benchmarks.result_files import require_clean_tree, write_result
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import AllowedInts, AllowedStrings, IntBounds, Objectives, Scaling, Tuning
from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.engine_window import EngineWindow, KVPool, Moment
from vllm_autotuner.observation.observation import Observation, StepPoint
from vllm_autotuner.observation.reading import Measured
from vllm_autotuner.observation.snapshot import EngineKey
from vllm_autotuner.planning.plan import LADDER, plan
from vllm_autotuner.planning.platform import platform_named
from vllm_autotuner.planning.situation import Situation

TARGET: Final = 0.002
"""Seconds of CPU for one decision, median."""
WINDOWS: Final = 120
"""Windows of a fit: half an hour of 30 s of two engines."""


def service(index: int, primary: DiagnosisClass) -> Situation:
    """One service with two engines and half an hour of windows; figures differ from service to service."""
    running = 40.0 + index % 60
    moments = tuple(Moment(2.0 * scrape, running, 30.0 + index % 7, None, 0.97) for scrape in range(15))
    engines = tuple(
        EngineWindow(
            key=EngineKey("demo", f"chat-{pod}", "0"),
            moments=moments,
            preemptions=5.0,
            finished=60.0,
            prompt_tokens=60_000.0,
            generation_tokens=15_000.0,
            stalled_for=2.0,
            itl=Measured(0.03),
            pool=KVPool(tokens=282_496, cache_dtype="auto", max_model_len=32_768),
        )
        for pod in range(2)
    )
    # Late, but within reach of another setting: a search that finds nothing ends at once.
    first = Distribution(buckets={0.5: 10.0, 5.0: 50.0, 50.0: 60.0, float("inf"): 60.0}, total=300.0, count=60.0)
    tokens = Distribution(buckets={0.025: 10.0, 0.05: 50.0, 0.1: 60.0, float("inf"): 60.0}, total=2.4, count=60.0)
    lengths = Distribution(buckets={512.0: 10.0, 2048.0: 900.0, 4096.0: 1000.0, float("inf"): 1000.0}, count=1000.0)
    steps = tuple(
        StepPoint(
            running=8.0 + step,
            itl=0.012 + 0.0004 * (8 + step) * (1 + 0.01 * ((step * index) % 3)),
            tokens=900.0,
            time=30.0 * (step // 2 + 1 - WINDOWS // 2) + 30.0,
        )
        for step in range(WINDOWS)
    )
    mean = Distribution(total=60_000.0, count=60.0)
    seen = Observation(
        at=30.0, window=30.0, engines=engines, ttft=first, itl=tokens, tpot=tokens, steps=steps,
        prompt_length=lengths, output_length=lengths, recent_prompt_length=mean,
        recent_output_length=replace(mean, total=15_000.0), prefill_time=Distribution(total=6.0, count=60.0),
    )  # fmt: skip
    return Situation(
        case=Case(
            observation=seen,
            targets=targets_of(Objectives()),
            knobs=EngineKnobs(max_num_seqs=256, max_model_len=32_768, tensor_parallel_size=2),
        ),
        diagnosis=Diagnosis(primary=primary, confidence=Confidence.HIGH, since=0.0, message="Limited."),
        tuning=Tuning(
            max_num_seqs=IntBounds(min=8, max=512),
            kv_cache_dtype=AllowedStrings(allowed=("auto", "fp8")),
            tensor_parallel_size=AllowedInts(allowed=(1, 2, 4)),
        ),
        replicas=2,
        scaling=Scaling(min_replicas=1, max_replicas=8),
        platform=platform_named("Qwen/Qwen3-32B", gpu="NVIDIA-H100-80GB-HBM3", catalogue=Catalogue()),
    )


def decision_times(primary: DiagnosisClass, *, repeats: int) -> list[float]:
    """CPU seconds of each decision on a class, after one to warm up."""
    found = []
    for index in range(repeats + 1):
        given = service(index, primary)
        start = time.process_time()
        plan(given)
        found.append(time.process_time() - start)
    return found[1:]


def fleet_time(services: int) -> float:
    """CPU seconds of one decision for each of a fleet's services, of every class in turn."""
    classes = tuple(LADDER)
    fleet = [service(index, classes[index % len(classes)]) for index in range(services)]
    start = time.process_time()
    for each in fleet:
        plan(each)
    return time.process_time() - start


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; exit code 1 when the median misses its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=10_000, help="of the fleet")
    parser.add_argument("--repeats", type=int, default=200, help="decisions of each class")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/planning_speed.json")
    given = parser.parse_args(arguments)
    if given.services < 1 or given.repeats < 1:
        parser.error("--services and --repeats must be at least 1")
    if given.save:
        require_clean_tree()
    by_class = {each.value: decision_times(each, repeats=given.repeats) for each in LADDER}
    everything = [seconds for times in by_class.values() for seconds in times]
    figures: Mapping[str, Any] = {
        "summary": {
            "decision_median_ms": statistics.median(everything) * 1e3,
            "decision_p99_ms": statistics.quantiles(everything, n=100)[98] * 1e3,
            "dearest_class_median_ms": max(statistics.median(times) for times in by_class.values()) * 1e3,
            "target_ms": TARGET * 1e3,
            "fleet_services": given.services,
            "fleet_seconds": fleet_time(given.services),
        },
        "median_ms": {name: statistics.median(times) * 1e3 for name, times in by_class.items()},
    }
    if given.save:
        write_result("planning_speed", figures)
    if given.json:
        print(json.dumps(figures, indent=2))
    else:
        _print(figures)
    return 0 if figures["summary"]["decision_median_ms"] <= TARGET * 1e3 else 1


def _print(figures: Mapping[str, Any]) -> None:
    table = Table(title="CPU time of one planning decision, median")
    table.add_column("class")
    table.add_column("ms", justify="right")
    for name, value in figures["median_ms"].items():
        table.add_row(name, f"{value:.2f}")
    console, summary = Console(), figures["summary"]
    console.print(table)
    console.print(
        f"all classes: median {summary['decision_median_ms']:.2f} ms, p99 {summary['decision_p99_ms']:.2f} ms "
        f"(target {summary['target_ms']:.0f}); {summary['fleet_services']} services: {summary['fleet_seconds']:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
