"""`python -m e2e.recordings [NAME ...] --out FOLDER`: start the real vLLM, load it, write down what it exports.

Writes NAME.om.gz (OpenMetrics with times) and NAME.json (flags, phases, blows, answers by status).
"""

import argparse
import asyncio
import gzip
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from e2e.real_engine import RealEngine, locate
from e2e.recordings.engine import Engine
from e2e.recordings.scenarios import SCENARIOS, Blow, Phase, Scenario, grammar
from vllm_autotuner.simulation.load import Load, Traffic

EVERY: Final = 2.0
"""Seconds between scrapes, as in the recordings that are there."""
FIRST_PORT: Final = 8010
KEPT: Final = ("vllm:", "process_start_time_seconds")
START_SECONDS: Final = 400.0


class Pages:
    """Scraped samples, by series."""

    def __init__(self) -> None:
        self.families: dict[str, str] = {}
        self.samples: dict[str, list[tuple[str, str, float]]] = {}
        self.scrapes = 0

    def add(self, page: str, *, at: float, instance: str) -> None:
        """Keep the samples of one page. `instance`: empty where there is one engine."""
        self.scrapes += 1
        family = ""
        for line in page.splitlines():
            if line.startswith("# TYPE "):
                _, _, family, kind = line.split(" ", 3)
                # In OpenMetrics a counter's family has no _total.
                family = family.removesuffix("_total") if kind == "counter" else family
                self.families.setdefault(family, kind)
            elif line.startswith(KEPT) and not line.partition("{")[0].endswith("_created"):
                series, _, value = line.rpartition(" ")
                if instance:
                    name, brace, rest = series.partition("{")
                    series = f'{name}{{instance="{instance}"{"," + rest if brace else "}"}'
                self.samples.setdefault(family, []).append((series, value, at))

    def write(self, path: Path) -> None:
        """Write OpenMetrics text, one family after the other, each series in order of time."""
        with gzip.open(path, "wt", encoding="utf-8") as text:
            for family, samples in self.samples.items():
                text.write(f"# TYPE {family} {self.families[family]}\n")
                for series, value, at in sorted(samples, key=lambda sample: (sample[0], sample[2])):
                    text.write(f"{series} {value} {at:.3f}\n")
            text.write("# EOF\n")


async def record(name: str, scenario: Scenario, *, found: RealEngine, out: Path) -> None:
    """Make one recording."""
    engines = [
        Engine(found, scenario, port=FIRST_PORT + index, log=out / f"{name}-{index}.log")
        for index in range(scenario.engines)
    ]
    pages = Pages()
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            await engine.ready(within=START_SECONDS)
        started = time.time()
        scraping = [
            asyncio.create_task(_scrape(engine, pages, instance=engine.address if scenario.engines > 1 else ""))
            for engine in engines
        ]
        begun: list[float] = []
        answers: dict[str, int] = {}
        for phase in scenario.phases:
            begun.append(time.time())
            answers = _added(answers, await _run(phase, engines))
        for task in scraping:
            task.cancel()
        await asyncio.gather(*scraping, return_exceptions=True)
    finally:
        for engine in engines:
            engine.stop()
    pages.write(out / f"{name}.om.gz")
    told = {
        "name": name,
        "argv": engines[0].argv,
        "engines": scenario.engines,
        "phases": [_told(phase) for phase in scenario.phases],
        "phase_starts": begun,
        "start": started,
        "end": time.time(),
        "snapshots": pages.scrapes,
        "responses": answers,
    }
    (out / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    print(f"{name}: {pages.scrapes} scrapes, answers {answers}", flush=True)


async def _scrape(engine: Engine, pages: Pages, *, instance: str) -> None:
    async with httpx.AsyncClient(timeout=5.0) as client:
        while True:
            due = time.monotonic() + EVERY
            at = time.time()
            try:
                answer = await client.get(f"{engine.url}/metrics")
                pages.add(answer.text, at=at, instance=instance)
            except httpx.HTTPError:
                pass  # a gap, as a scraper would leave it
            await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _run(phase: Phase, engines: Sequence[Engine]) -> dict[str, int]:
    """Let one phase pass. Requests still under way at its end go on; those of a closed loop are broken off."""
    if phase.blow is Blow.STOP_CORE:
        # With work in hand: stopped idle, it would only look idle.
        asyncio.get_running_loop().call_later(5.0, engines[0].signal_core, signal.SIGSTOP)
    elif phase.blow is Blow.CONTINUE_CORE:
        engines[0].signal_core(signal.SIGCONT)
    elif phase.blow is Blow.RESTART:
        engines[0].stop()
        engines[0].start()
    urls = [engine.url for engine in (engines[:1] if phase.first_only else engines)]
    traffic = Traffic(
        model="tiny",
        prompt_tokens=phase.prompt,
        output_tokens=phase.output,
        more=grammar if phase.grammar else None,
    )
    async with Load(lambda: urls, traffic, rate=phase.rate, clients=phase.clients) as load:
        await asyncio.sleep(phase.seconds)
        return {str(status): count for status, count in load.tally.statuses.items()}


def _added(before: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return {status: before.get(status, 0) + more.get(status, 0) for status in {**before, **more}}


def _told(phase: Phase) -> dict[str, Any]:
    return {
        "seconds": phase.seconds,
        "rate": phase.rate,
        "clients": phase.clients,
        "prompt_tokens": phase.prompt,
        "output_tokens": phase.output,
        "grammar": phase.grammar,
        "first_engine_only": phase.first_only,
        "blow": phase.blow.value if phase.blow is not None else None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.recordings", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(SCENARIOS)}; default: all")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in SCENARIOS]:
        parser.error(f"no such scenario: {', '.join(unknown)}")
    found = locate()
    if found is None:
        print("no real engine is installed: run `make vllm`", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or SCENARIOS:
        asyncio.run(record(name, SCENARIOS[name], found=found, out=options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
