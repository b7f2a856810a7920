"""`python -m e2e.demo`: plays the eight acts and ends with a table. Exit code 0 only if every act passed."""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from e2e.bed import Bed
from e2e.binaries import ensure_binaries
from e2e.demo import acts, manifests
from e2e.demo.play import ActFailed, Play, in_words
from e2e.demo.screen import Screen
from e2e.demo.watchers import PodWatch
from e2e.errors import BedError
from e2e.monitor import Monitor
from e2e.real_engine import image_row, locate
from e2e.stage import MODEL, OPERATOR_IMAGE, SIMULATED_ENGINE, NotSeen, Stage
from vllm_autotuner.simulation.load import Traffic

TALK = Traffic(model=MODEL, prompt_tokens=(50, 200), output_tokens=(80, 120))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """The engine, and the services that are shown with it."""

    image: Mapping[str, object]
    patience: float
    traffic: Traffic
    services: tuple[Mapping[str, Any], ...]
    """With chat alone, acts 1 and 2 are played."""


SIMULATED = Cast(image=SIMULATED_ENGINE, patience=1, traffic=TALK, services=manifests.all_services())


def real_cast() -> Cast:
    """The real vLLM, in the two acts that need one service. Raises BedError when it is not installed."""
    engine = locate()
    if engine is None:
        raise BedError("the real vLLM is not installed: run `make vllm` (about 6 GB, once)")
    return Cast(
        image=image_row(engine),
        # It starts in 20 to 190 s instead of one, twice.
        patience=6,
        traffic=manifests.REAL_TALK,
        services=(manifests.real_chat(),),
    )


async def play(screen: Screen, cast: Cast) -> int:
    """Play everything; return the number of acts that failed."""
    opening = screen.chapter()
    opening.say("starting etcd, kube-apiserver, controllers, scheduler, a node and Prometheus")
    async with Bed(images=[cast.image, OPERATOR_IMAGE], gpus=manifests.GPUS) as bed:
        bed.create_namespace(manifests.NAMESPACE)
        async with Stage(bed, manifests.NAMESPACE) as stage, Monitor(stage) as monitor, PodWatch(stage) as pods:
            opening.good(f"the control plane runs ({bed.mode} mode)")
            await stage.install_operator()
            opening.good("the operator runs as a pod of its Helm chart, with the chart's ServiceAccount and RBAC")
            refresher = asyncio.create_task(_refresh(stage, screen, cast))
            try:
                stage.apply(*cast.services)
                play = Play(stage, monitor, pods, opening, cast.traffic, cast.patience)
                for service in cast.services:
                    await play.serves(service["metadata"]["name"])
                opening.close()
                failed = await _all_acts(play, screen, cast)
            finally:
                refresher.cancel()
            screen.print(await _table(stage, monitor, cast))
            return failed


async def _all_acts(play: Play, screen: Screen, cast: Cast) -> int:
    """Play the acts, independent ones at the same time; return how many failed."""
    whole = len(cast.services) > 1
    chapters = {act: screen.chapter() for act in (acts.ALL if whole else acts.OF_CHAT)}

    async def told(*those: acts.Act) -> int:
        failed = 0
        for act in those:
            try:
                await act(replace(play, screen=chapters[act]))
            except (ActFailed, NotSeen, BedError) as error:
                chapters[act].bad(str(error))
                failed += 1
            finally:
                chapters[act].close()
        return failed

    async def of_the_others() -> int:
        failed = sum(await asyncio.gather(told(acts.roll_back), told(acts.find_no_device)))
        # The time to scale out is measured: the engines of the two acts before are idle by then.
        return failed + await told(acts.scale_out, acts.give_back)

    if not whole:
        return await told(*acts.OF_CHAT)
    failed = sum(await asyncio.gather(told(*acts.OF_CHAT), told(acts.lower_seats), of_the_others()))
    return failed + await told(acts.explain)


async def _refresh(stage: Stage, screen: Screen, cast: Cast) -> None:
    names = [service["metadata"]["name"] for service in cast.services]
    while True:
        with suppress(Exception):  # a picture that is late is no reason to end the play
            screen.show({name: await stage.status(name) for name in names})
        await asyncio.sleep(1)


async def _table(stage: Stage, monitor: Monitor, cast: Cast) -> Table:
    table = Table(title="before -> after; with a canary: baseline -> canary, at the same time")
    for column in ("service", "diagnosis", "change", "strategy", "outcome", "TTFT p95", "TPOT p95"):
        table.add_column(column)
    for name in (service["metadata"]["name"] for service in cast.services):
        status = await stage.status(name)
        how = {each["id"]: each["strategy"] for one in monitor.statuses(name) if (each := one.get("activeChange"))}
        for entry in status.get("history", []):
            before, after = entry.get("before", {}), entry.get("after", {})
            table.add_row(
                name,
                (entry.get("grounds") or {}).get("diagnosis", ""),
                f"{entry['knob']} {entry.get('fromValue')} -> {entry.get('toValue')}",
                {"Canary": "canary", "InPlace": "in place"}.get(how.get(entry["id"], ""), ""),
                entry["outcome"],
                _pair(before, after, "ttftSeconds"),
                _pair(before, after, "tpotSeconds"),
            )
        if name == "api":
            counts = [(each.get("effective") or {}).get("replicas", 1) for each in monitor.statuses(name)]
            most, last = max(counts), counts[-1]
            table.add_row(name, "waiting for capacity", f"replicas 1 -> {most}", "", "ScaledOut", "", "")
            if last < most:
                table.add_row(name, "fewer are enough", f"replicas {most} -> {last}", "", "ScaledIn", "", "")
    return table


def _pair(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> str:
    return " -> ".join(in_words(each.get(name)) for each in (before, after)) if after else "not measured"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description=__doc__)
    parser.add_argument("--plain", action="store_true", help="print plain lines, also in a terminal")
    parser.add_argument(
        "--engine",
        choices=["simulated", "vllm"],
        default="simulated",
        help="vllm: the real vLLM on the CPU, for acts 1 and 2 (install it with `make vllm`)",
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
    told = "all acts passed" if not failed else f"{failed} act(s) failed"
    print(f"demo: {told}, in {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
