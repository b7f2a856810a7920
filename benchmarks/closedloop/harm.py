"""What secretly bad values cost: one case with them, without any change, and with no bad value, request by request.

All three get the very same requests, so a request that one run serves well and another does not is the doing of what
differs. The replicas stay as they are: only tuning changes anything.
Must not: tell the product anything, or compare cases.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.closedloop.autotuner import Autotuner, Ended
from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.fleets import draw_fleet
from benchmarks.closedloop.playing import play
from benchmarks.closedloop.pods import NAME, Pod
from benchmarks.closedloop.policies import Fixed
from benchmarks.closedloop.scenario import Hardware, Scenario
from benchmarks.closedloop.scoring import served_well
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.service import Owner
from vllm_autotuner.api.status import Outcome

__all__ = ["HarmTask", "HarmTrial", "harm_of", "seconds_below", "suffer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmTask:
    """What to run."""

    scenario: str
    seed: int
    share: float
    """Probability that a value is bad."""
    hardware: Sequence[Hardware]

    def scenario_drawn(self) -> Scenario:
        """The case; the same in every process."""
        return draw_fleet(self.scenario, seed=self.seed, hardware=self.hardware, bad=self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmTrial:
    """What came out, for JSON."""

    task: HarmTask
    figures: dict[str, Any]


def suffer(task: HarmTask) -> HarmTrial:
    """Play one task."""
    began = time.perf_counter()
    figures = asyncio.run(harm_of(task.scenario_drawn()))
    return HarmTrial(task=task, figures={**figures, "real_seconds": round(time.perf_counter() - began, 1)})


async def harm_of(scenario: Scenario) -> dict[str, Any]:
    """Play the three runs of one case and compare them."""
    product, tuned = await _tuned(scenario)
    owner = Owner(scenario)
    off = (await play(scenario, Fixed(owner, scenario.seats, scenario.replicas), owner=owner)).cluster
    bad = [pod for pod in tuned.pods if pod.bad]
    # Where no bad value was tried the run without them is the same run.
    clean = (await _tuned(replace(scenario, bad=0.0)))[1] if bad else tuned
    met = {name: _met(scenario, run) for name, run in (("off", off), ("clean", clean), ("tuned", tuned))}
    good = {name: int(served.sum()) for name, served in met.items()}
    numbers = [pod.virtual.number for pod in bad if pod.virtual is not None]
    spoiled = met["off"] & ~met["tuned"] & np.isin(_pods(tuned), numbers)
    until = scenario.duration
    wrong = {pod.bad for pod in bad if pod.deployment == NAME}
    return {
        "story": scenario.story,
        "engine": scenario.hardware.name,
        "replicas": scenario.replicas,
        "duration": until,
        "requests": len(met["off"]),
        "served_well": good,
        "goodput_lost_to_tuning": _part(good["off"] - good["tuned"], good["off"]),
        "goodput_lost_to_bad_values": _part(good["clean"] - good["tuned"], good["clean"]),
        "spoiled_by_bad_values": _part(int(spoiled.sum()), good["off"]),
        "below_ready_floor_seconds": seconds_below(scenario.replicas, tuned.pods, until=until),
        "own_pods_below_ready_floor_seconds": seconds_below(
            scenario.replicas, [pod for pod in tuned.pods if pod.deployment == NAME], until=until
        ),
        "below_ready_floor_seconds_off": seconds_below(scenario.replicas, off.pods, until=until),
        "bad_pods": len(bad),
        "bad_pod_seconds": sum(max(0.0, min(pod.end, until) - pod.created) for pod in bad),
        "bad_serving_seconds": sum(end - start for pod in bad for start, end in pod.serving(until)),
        "bad_values": sorted({pod.bad for pod in bad}),
        "promoted_bad_values": sorted(wrong),
        "kept_bad_values": sorted(_kept(product.ended, wrong)),
        "changes_kept": sum(one.outcome is Outcome.SUCCEEDED for one in product.ended),
        "changes_rolled_back": sum(one.outcome is Outcome.ROLLED_BACK for one in product.ended),
        "changes": [asdict(one) for one in product.ended],
        "states": product.states,
    }


async def _tuned(scenario: Scenario) -> tuple[Autotuner, SimulatedCluster]:
    owner = Owner(scenario)
    product = Autotuner(scenario, owner, Scraper())
    return product, (await play(scenario, product, owner=owner)).cluster


def _kept(ended: Sequence[Ended], wrong: set[str]) -> set[str]:
    kept = {f"{one.knob}={one.to_value}" for one in ended if one.outcome is Outcome.SUCCEEDED}
    return {told for told in wrong if told.split(":")[0] in kept}


def seconds_below(floor: int, pods: Sequence[Pod], *, until: float) -> float:
    """For how long fewer than `floor` of these pods served, from the start of the run."""
    spans = [span for pod in pods for span in pod.serving(until)]
    moments = sorted({0.0, until, *(at for span in spans for at in span)})
    below = 0.0
    for since, at in pairwise(moments):
        if sum(start <= since < end for start, end in spans) < floor:
            below += at - since
    return below


def _met(scenario: Scenario, cluster: SimulatedCluster) -> NDArray[np.bool_]:
    """Which requests were served well, by number."""
    ended = cluster.fleet.ledger.between(-1.0, cluster.now)
    met = np.zeros(len(ended), dtype=np.bool_)
    met[ended.number] = served_well(scenario, ended)
    return met


def _pods(cluster: SimulatedCluster) -> NDArray[np.int64]:
    """The pod that each request was sent to last, by number of the request."""
    ended = cluster.fleet.ledger.between(-1.0, cluster.now)
    pods = np.full(len(ended), -1, dtype=np.int64)
    pods[ended.number] = ended.pod
    return pods


def _part(value: float, whole: float) -> float:
    return value / whole if whole else 0.0
