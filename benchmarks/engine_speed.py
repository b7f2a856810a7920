"""How fast the simulated engine is: engine-seconds per second of CPU, over running sequences and over engines.

Usage: python benchmarks/engine_speed.py [--seconds CPU] [--running N ...] [--engines N ...] [--json] [--save]
Poisson arrivals with lengths as in measured chat keep about the wanted number running; what really ran is reported.
CPU time of one process on one core, so a busy machine lengthens the run more than it lowers a figure.
"""

import argparse
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]

from rich.console import Console
from rich.table import Table

from benchmarks.result_files import require_clean_tree, write_result
from vllm_autotuner.engine.flags import EngineFlags
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.configuration import EngineConfig, configure
from vllm_autotuner.simulation.lengths import Lengths, LogNormal
from vllm_autotuner.simulation.profiles import load_profile
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Request
from vllm_autotuner.simulation.traffic import Content, Mix, OpenLoop
from vllm_autotuner.simulation.virtual import VirtualFleet

TARGET: Final = 1000.0
"""Engine-seconds per CPU second at 64 running sequences: what the simulator promises."""
MODELS: Final = {"llama-3.1-8b-h100": 1, "llama-3.1-70b-h100": 4}
"""Profile -> tensor parallel size."""
MIXES: Final = {
    # Median and 95th percentile of the Azure conversation trace of 2023.
    "chat": Mix(prompt=LogNormal(p50=1020, p95=4083, longest=6000), output=LogNormal(p50=129, p95=451, longest=1000)),
    # Reasoning: short questions, long answers. Our choice.
    "long answers": Mix(
        prompt=LogNormal(p50=300, p95=1200, longest=4000), output=LogNormal(p50=1500, p95=6000, longest=8000)
    ),
}
LOOK_EVERY: Final = 15.0
"""Virtual seconds between two looks, as the fleet loop and a scrape do."""
SLICE: Final = 60.0
"""Virtual seconds played between two readings of the CPU clock."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One measurement."""

    model: str
    mix: str
    engines: int
    wanted_running: int
    running: float
    """Mean per engine, over looks."""
    engine_seconds: float
    cpu_seconds: float
    speed: float
    """Engine-seconds per CPU second."""
    requests_per_cpu_second: float
    steps_per_cpu_second: float


def config_of(model: str) -> EngineConfig:
    flags = EngineFlags(model=model, max_num_seqs=1024, max_model_len=16_384, tensor_parallel_size=MODELS[model])
    return configure(flags, profile=load_profile(model))


def mean_length(lengths: Lengths) -> float:
    return sum(lengths.at((index + 0.5) / 1000) for index in range(1000)) / 1000


def rate_for(running: int, *, config: EngineConfig, mix: Mix) -> float:
    """Return requests per second that keep about so many running: Little's law with the law of the steps."""
    prompt, output = mean_length(mix.prompt), mean_length(mix.output)
    step = config.law.seconds(
        batch=running,
        held_tokens=round(running * (prompt + output / 2)),
        prefill_tokens=round(running * prompt / output),
    )
    return running / (output * step)


def requests(rate: float, *, mix: Mix, seed: int) -> Iterator[Request]:
    traffic = OpenLoop(RateCurve.constant(rate), Content(mix), seed=seed)
    while True:
        asked = traffic.take()
        yield Request(arrival=asked.at, prompt_tokens=asked.prompt_tokens, max_tokens=asked.max_tokens)


def speed_of_one(model: str, mix_name: str, *, running: int, cpu: float, seed: int, every_step: bool = False) -> Speed:
    """Drive one engine for so many CPU seconds, after a virtual warm-up of three lives of a request."""
    config, mix = config_of(model), MIXES[mix_name]
    engine, rate = SimulatedEngine(config), rate_for(running, config=config, mix=mix)
    coming = requests(rate, mix=mix, seed=seed)
    upcoming, now, levels = next(coming), 0.0, []
    finished = 0

    def play(until: float) -> None:
        nonlocal upcoming, now, finished
        while now < until:
            now = min(now + LOOK_EVERY, until)
            batch = []
            while upcoming.arrival <= now:
                batch.append(upcoming)
                upcoming = next(coming)
            began = time.process_time()
            for request in batch:
                finished += pass_to(request.arrival)
                engine.submit(request)
            finished += pass_to(now)
            spent.append(time.process_time() - began)
            levels.append(engine.metrics.running)

    def pass_to(until: float) -> int:
        count = 0
        while every_step and (due := engine.next_step_end) is not None and due <= until:
            count += len(engine.advance(due))
        return count + len(engine.advance(until))

    spent: list[float] = []
    play(max(SLICE, 3 * running / rate))
    began, begun_steps, finished = now, engine.metrics.iteration_tokens.count, 0
    spent.clear()
    levels.clear()
    while sum(spent) < cpu:
        play(now + SLICE)
    used, passed = sum(spent), now - began
    return Speed(
        model=model, mix=mix_name, engines=1, wanted_running=running, running=sum(levels) / len(levels),
        engine_seconds=passed, cpu_seconds=used, speed=passed / used, requests_per_cpu_second=finished / used,
        steps_per_cpu_second=(engine.metrics.iteration_tokens.count - begun_steps) / used,
    )  # fmt: skip


def speed_of_fleet(model: str, *, engines: int, running: int, cpu: float, seed: int) -> Speed:
    """Drive a fleet behind its router, ledger included."""
    config, mix = config_of(model), MIXES["chat"]
    rate = rate_for(running, config=config, mix=mix) * engines
    fleet = VirtualFleet(OpenLoop(RateCurve.constant(rate), Content(mix), seed=seed), seed=seed)
    pods = [fleet.start_pod(config) for _ in range(engines)]
    fleet.advance(max(SLICE, 3 * running * engines / rate))
    levels: list[int] = []

    def steps() -> int:
        return sum(pod.engine.metrics.iteration_tokens.count for pod in pods if pod.engine is not None)

    began, begun_steps, begun_requests = fleet.now, steps(), len(fleet.ledger)
    used = 0.0
    while used < cpu:
        start = time.process_time()
        fleet.advance(fleet.now + LOOK_EVERY)
        used += time.process_time() - start
        levels += [pod.engine.metrics.running for pod in pods if pod.engine is not None]
    passed = (fleet.now - began) * engines
    return Speed(
        model=model, mix="chat", engines=engines, wanted_running=running, running=sum(levels) / len(levels),
        engine_seconds=passed, cpu_seconds=used, speed=passed / used,
        requests_per_cpu_second=(len(fleet.ledger) - begun_requests) / used,
        steps_per_cpu_second=(steps() - begun_steps) / used,
    )  # fmt: skip


def memory_of(running: int, *, seed: int, engines: int = 20) -> dict[str, Any]:
    """Return the bytes of one engine with so many sequences, or idle; Python's own objects included."""
    config, draws = config_of("llama-3.1-8b-h100"), random.Random(seed)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    alive = []
    for _ in range(engines):
        engine = SimulatedEngine(config)
        for index in range(running):
            arrival = index * 0.05
            engine.advance(arrival)
            engine.submit(Request(arrival=arrival, prompt_tokens=draws.randint(200, 1500), max_tokens=10_000))
        engine.advance(running * 0.05 + 10)
        alive.append(engine)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(engine.metrics.running == running for engine in alive)
    return {"running": running, "bytes_per_engine": round((after - before) / engines)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    options = _options(arguments)
    if options.save:
        require_clean_tree()
    notes, cpu, seed = Console(stderr=True), options.seconds, options.seed
    with notes.status("one engine") as status:
        single = [
            speed_of_one(model, mix, running=running, cpu=cpu, seed=seed)
            for model in MODELS for mix in MIXES for running in options.running
        ]  # fmt: skip
        status.update("one engine, step by step")
        stepped = [
            speed_of_one(model, mix, running=64, cpu=cpu, seed=seed, every_step=True)
            for model in MODELS for mix in MIXES
        ]  # fmt: skip
        status.update("fleets")
        fleets = [
            speed_of_fleet("llama-3.1-8b-h100", engines=engines, running=64, cpu=cpu, seed=seed)
            for engines in options.engines
        ]
        status.update("memory")
        memory = [memory_of(running, seed=seed) for running in (0, *options.running)]
    at_64 = [each.speed for each in single if each.wanted_running == 64]
    report = {
        "summary": {
            "target": TARGET,
            "slowest_at_64_running": min(at_64) if at_64 else None,
            "holds": bool(at_64) and min(at_64) >= TARGET,
        },
        "one_engine": [asdict(each) for each in single],
        "one_engine_asked_after_every_step": [asdict(each) for each in stepped],
        "fleets": [asdict(each) for each in fleets],
        "memory": memory,
    }
    if options.save:
        write_result("engine_speed", report)
    if options.json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        _print([*single, *fleets], stepped=stepped, memory=memory)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/engine_speed.py", description="How fast the simulated engine is.")
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds for each figure (default 2)")
    parser.add_argument("--running", type=int, nargs="+", default=[8, 64, 256], metavar="N", help="default 8 64 256")
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 4, 16], metavar="N", help="default 1 4 16")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/engine_speed.json")
    options = parser.parse_args(arguments)
    if not 0 < options.seconds < 3600:
        parser.error("--seconds must be above 0 and below an hour")
    if min(*options.running, *options.engines, 1) < 1:
        parser.error("--running and --engines take numbers from 1")
    return options


def _print(rows: Sequence[Speed], *, stepped: Sequence[Speed], memory: Sequence[dict[str, Any]]) -> None:
    table = Table(title="Engine-seconds per CPU second", title_justify="left")
    for name in ("model", "lengths", "engines", "running", "speed", "requests/CPU s", "steps/CPU s", "step by step"):
        table.add_column(name, justify="left" if name in ("model", "lengths") else "right")
    slow = {(each.model, each.mix): each.speed for each in stepped}
    for each in rows:
        by_step = slow.get((each.model, each.mix)) if each.engines == 1 and each.wanted_running == 64 else None
        table.add_row(
            each.model, each.mix, str(each.engines), f"{each.running:.1f}", f"{each.speed:,.0f}",
            f"{each.requests_per_cpu_second:,.0f}", f"{each.steps_per_cpu_second:,.0f}",
            "" if by_step is None else f"{by_step:,.0f}",
        )  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    for row in memory:
        console.print(f"{row['running']} running: {row['bytes_per_engine'] / 1024:,.0f} KiB per engine")


if __name__ == "__main__":
    sys.exit(main())
