"""`python -m e2e.demo`: plays the six acts and ends with a table. Exit code 0 only if every act really happened."""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from e2e.bed import Bed
from e2e.binaries import ensure_binaries
from e2e.demo import acts, manifests
from e2e.demo.acts import ActFailed, Play
from e2e.demo.screen import Screen
from e2e.demo.watchers import ReadyWatch
from e2e.errors import BedError
from e2e.real_engine import image_row, locate
from e2e.stage import MODEL, OPERATOR_IMAGE, SIMULATED_ENGINE, NotSeen, Stage
from vllm_autotuner.simulation.load import Traffic

TALK = Traffic(model=MODEL, prompt_tokens=(50, 200), output_tokens=(80, 120))
RAMP = (4, 8, 14, 20)
"""Clients of search, step by step: a knee can only be seen by whoever has seen smaller batches."""
RAMP_SECONDS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who plays the engine, and what can be shown with it."""

    image: Mapping[str, object]
    acts: tuple[acts.Act, ...]
    patience: float
    chat: Mapping[str, Any]
    traffic: Traffic


SIMULATED = Cast(image=SIMULATED_ENGINE, acts=acts.ALL, patience=1, chat=manifests.chat(), traffic=TALK)


def real_cast() -> Cast:
    """The real vLLM, in the two acts that need one service. Raises BedError when it is not installed."""
    engine = locate()
    if engine is None:
        raise BedError("the real vLLM is not installed: run `make vllm` (about 6 GB, once)")
    return Cast(
        image=image_row(engine),
        acts=(acts.recommend, acts.raise_seats),
        # It starts in 20 to 190 s instead of one, twice.
        patience=6,
        chat=manifests.real_chat(),
        traffic=manifests.REAL_TALK,
    )


async def play(screen: Screen, cast: Cast) -> int:
    """Play everything; return the number of acts that failed."""
    screen.say("starting etcd, kube-apiserver, controllers, scheduler, a node and Prometheus")
    async with Bed(images=[cast.image, OPERATOR_IMAGE]) as bed:
        bed.create_namespace(manifests.NAMESPACE)
        async with Stage(bed, manifests.NAMESPACE) as stage:
            screen.good(f"the control plane runs ({bed.mode} mode)")
            await stage.install_operator()
            screen.good("the operator runs as a pod of its Helm chart, under the chart's ServiceAccount and rights")
            refresher = asyncio.create_task(_refresh(stage, screen))
            play = Play(stage, screen, patience=cast.patience)
            others = asyncio.create_task(_others(stage, play) if cast is SIMULATED else asyncio.sleep(0))
            try:
                stage.apply(cast.chat)
                await stage.load_on("chat", clients=8, traffic=cast.traffic)
                failed = await _all_acts(play, cast, others)
            finally:
                for task in (refresher, others):
                    task.cancel()
                for watch in play.watches.values():
                    watch.end()
            screen.print(await _table(stage))
            return failed


async def _all_acts(play: Play, cast: Cast, others: "asyncio.Task[None]") -> int:
    failed = 0
    for act in cast.acts:
        try:
            await act(play)
        except (ActFailed, NotSeen, BedError) as error:
            play.screen.bad(str(error))
            failed += 1
        if others.done() and (problem := others.exception()):
            play.screen.bad(f"the services of the later acts: {problem}")
            return failed + 1
    return failed


async def _others(stage: Stage, play: Play) -> None:
    """The services of acts 3 to 5 live beside the first, so that the story takes minutes."""
    stage.apply(manifests.batch(), manifests.api(), manifests.search())
    await stage.load_on("batch", clients=6, traffic=TALK)
    await stage.load_on("api", clients=4, traffic=TALK)
    search = await stage.load_on("search", clients=RAMP[0], traffic=TALK)
    await play.status_when("batch", "batch is Ready", lambda found: found.get("readyReplicas", 0) >= 1, seconds=60)
    play.watches["batch"] = ReadyWatch(stage, "batch")
    for clients in RAMP[1:]:
        await asyncio.sleep(RAMP_SECONDS)
        search.clients = clients
    stage.loads["batch"].clients = 16


async def _refresh(stage: Stage, screen: Screen) -> None:
    while True:
        with suppress(Exception):  # a picture that is late is no reason to end the play
            screen.show({name: await stage.status(name) for name in ("chat", "search", "api", "batch")})
        await asyncio.sleep(1)


async def _table(stage: Stage) -> Table:
    table = Table(title="before and after")
    for column in ("service", "was", "change", "outcome", "TTFT p95", "TPOT p95"):
        table.add_column(column)
    for name in ("chat", "search", "batch"):
        for entry in (await stage.status(name)).get("history", []):
            before, after = entry.get("before", {}), entry.get("after", {})
            table.add_row(
                name,
                _reason(entry),
                f"{entry['knob']} {entry.get('fromValue')} -> {entry.get('toValue')}",
                entry["outcome"],
                _pair(before.get("ttftSeconds"), after.get("ttftSeconds")),
                _pair(before.get("tpotSeconds"), after.get("tpotSeconds")),
            )
    if replicas := (await stage.status("api")).get("effective", {}).get("replicas"):
        table.add_row("api", "waiting for capacity", f"replicas 1 -> {replicas}", "ScaledOut", "", "")
    return table


def _reason(entry: Mapping[str, Any]) -> str:
    raised = int(entry.get("toValue") or 0) > int(entry.get("fromValue") or 0)
    return "ConcurrencyCapped" if raised else "PastTPOTKnee"


def _pair(before: float | None, after: float | None) -> str:
    return " -> ".join("unknown" if value is None else f"{value * 1000:.0f} ms" for value in (before, after))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description=__doc__)
    parser.add_argument("--plain", action="store_true", help="plain lines, also in a terminal")
    parser.add_argument(
        "--engine",
        choices=["simulated", "vllm"],
        default="simulated",
        help="vllm: the real one on the CPU, acts 1 and 2 (install it with `make vllm`)",
    )
    options = parser.parse_args(arguments)
    try:
        cast = SIMULATED if options.engine == "simulated" else real_cast()
        ensure_binaries()
        with Screen(plain=options.plain) as screen:
            failed = asyncio.run(play(screen, cast))
            seconds = screen.seconds
    except BedError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    told = "every act really happened" if not failed else f"{failed} act(s) failed"
    print(f"demo: {told}, in {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
