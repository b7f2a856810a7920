"""What one look at a fleet costs: questions to Prometheus, and CPU time of observing and diagnosing each service.

Usage: python benchmarks/diagnosis_speed.py [--services N [N ...]] [--json] [--save]
Each service is one simulated engine under load, scraped every 15 s for half an hour, the longest that a question looks
back. The answers are prepared beforehand: parsing what Prometheus sends is not in it, planning neither.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]

from rich.console import Console
from rich.table import Table

from benchmarks.result_files import require_clean_tree, write_result
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Objectives
from vllm_autotuner.diagnosis.diagnose import History, case_of, diagnose
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.observation.metrics_text import read_samples
from vllm_autotuner.observation.observation import observe
from vllm_autotuner.observation.questions import Question
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.snapshot import WindowSettings, take_snapshot
from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.metrics_page import render
from vllm_autotuner.simulation.scheduler import SimulatedEngine
from vllm_autotuner.simulation.sequence import Request

EPOCH: Final = 1_800_000_000.0
SECONDS: Final = 1800.0
EVERY: Final = 15.0
SEATS: Final = 32


class Prepared:
    """Answers of one engine, repeated under the names of many pods; counts what is asked."""

    def __init__(self, recording: Recording, *, services: int) -> None:
        self.asked = 0
        self._recording = recording
        self._services = services
        self._answers: dict[Question, Sequence[Series]] = {}

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        """See MetricsSource.ask. The second time the answer costs nothing, as somebody else's work should."""
        self.asked += 1
        if question not in self._answers:
            one = await self._recording.ask(question, at=at)
            self._answers[question] = [
                Series(labels={**each.labels, "namespace": "demo", "pod": f"chat-{pod}"}, times=each.times,
                       values=each.values)
                for pod in range(self._services)
                for each in one
            ]  # fmt: skip
        return self._answers[question]


def recorded() -> Recording:
    """Half an hour of one engine whose seats are taken while requests wait."""
    recording = Recording()
    config = EngineConfig(max_num_seqs=SEATS, max_model_len=4096, num_gpu_blocks=8192)
    engine, arrival, at = SimulatedEngine(config), 0.0, EVERY
    while at <= SECONDS:
        while arrival <= at:
            engine.advance(arrival)
            engine.submit(Request(arrival=arrival, prompt_tokens=400, max_tokens=200, eos_after=None))
            arrival += 0.055
        engine.advance(at)
        for sample in read_samples(render(engine.metrics, config, created=EPOCH).splitlines()):
            recording.add(sample, time=EPOCH + at)
        at += EVERY
    return recording


async def looked(recording: Recording, *, services: int) -> dict[str, Any]:
    """Return what one look at so many services costs, and what the services were named."""
    source, at = Prepared(recording, services=services), EPOCH + SECONDS
    await take_snapshot(source, at=at, settings=WindowSettings())
    source.asked = 0
    begun = time.process_time()
    snapshot = await take_snapshot(source, at=at, settings=WindowSettings())
    sorted_out = time.process_time()
    targets, knobs = targets_of(Objectives()), EngineKnobs(max_num_seqs=SEATS)
    named = {
        diagnose(case_of(observe(snapshot, [key]), targets=targets, knobs=knobs, history=History()), history=History())[
            0
        ].primary.value
        for key in snapshot.engines
    }
    done = time.process_time()
    return {
        "services": services,
        "questions": source.asked,
        "sorting_ms_per_service": (sorted_out - begun) / services * 1e3,
        "diagnosis_ms_per_service": (done - sorted_out) / services * 1e3,
        "named": sorted(named),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, nargs="+", default=[1, 10, 100, 500], metavar="N")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/diagnosis_speed.json")
    given = parser.parse_args(arguments)
    if min(given.services) < 1:
        parser.error("--services must be at least 1")
    if given.save:
        require_clean_tree()
    recording = recorded()
    fleets = [asyncio.run(looked(recording, services=services)) for services in given.services]
    figures = {
        "summary": {
            "questions_for_one_service": fleets[0]["questions"],
            "questions_for_the_largest_fleet": fleets[-1]["questions"],
            "services_of_the_largest_fleet": fleets[-1]["services"],
            "cpu_ms_per_service": fleets[-1]["sorting_ms_per_service"] + fleets[-1]["diagnosis_ms_per_service"],
        },
        "fleets": fleets,
    }
    if given.save:
        write_result("diagnosis_speed", figures)
    if given.json:
        print(json.dumps(figures, indent=2))
        return 0
    table = Table("services", "questions", "sorting, ms each", "observing and diagnosing, ms each", "named")
    for fleet in fleets:
        table.add_row(
            str(fleet["services"]), str(fleet["questions"]), f"{fleet['sorting_ms_per_service']:.2f}",
            f"{fleet['diagnosis_ms_per_service']:.2f}", ", ".join(fleet["named"]),
        )  # fmt: skip
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
