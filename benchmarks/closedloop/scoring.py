"""From the ledger of a run to its figures. Each request counts once, by its arrival.

Must not: prefer a policy, or drop a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.scenario import Scenario, Upgrade
from vllm_autotuner.simulation.ledger import Fate, Period

__all__ = ["MINUTE", "Score", "recovery", "score", "served_well", "timeline"]

MINUTE: Final = 60.0
RECOVERED: Final = 0.9
"""Share of a minute's requests that must be served well for that minute to count as recovered: both objectives are
about the 95th percentile, so 5 % may miss each."""
RECOVERED_MINUTES: Final = 5
"""Minutes in a row before recovery is believed; it counts from the first. Our choice: a burst is shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Figures of one run."""

    requests: int
    goodput: float
    """Requests per second, over the whole run, that met both objectives."""
    settled_goodput: float
    """The same from `Scenario.settled_from` on: what a policy reaches once it had time to learn."""
    attainment: float
    """Part of all requests, 0..1, that met both objectives. A failed one met neither."""
    failed: int
    gpu_hours: float
    settled_gpus: float
    """Mean GPUs that were paid for in that time."""
    restarts: int
    """Rollouts that the policy asked for; the user's own are not counted."""
    scalings: int
    """Changes of the number of replicas."""
    recoveries: tuple[float | None, ...]
    """Seconds from each moment of trouble to the first of five good minutes; None: not before the next, or the end."""
    per_minute: tuple[float, ...]
    """Goodput of each minute, requests per second."""
    came_per_minute: tuple[float, ...]
    """Requests per second that came in each minute."""


def score(scenario: Scenario, cluster: SimulatedCluster) -> Score:
    """Reduce a finished run."""
    ledger, settled = cluster.fleet.ledger, scenario.settled_from
    lasting = scenario.duration - settled
    ended = ledger.between(-1.0, cluster.now)
    met = served_well(scenario, ended)
    upgrades = sum(isinstance(one, Upgrade) for one in scenario.disturbances)
    minutes, came, shares = timeline(ended.arrival, met, duration=scenario.duration)
    return Score(
        requests=len(ended),
        goodput=float(met.sum() / scenario.duration),
        settled_goodput=float(met[ended.arrival >= settled].sum() / lasting),
        attainment=float(met.mean()) if len(ended) else 1.0,
        failed=len(ended) - ended.count(Fate.ANSWERED),
        gpu_hours=cluster.gpu_seconds(0.0, scenario.duration) / 3600,
        settled_gpus=cluster.gpu_seconds(settled, scenario.duration) / lasting,
        restarts=max(0, cluster.rollouts - upgrades),
        scalings=max(0, len(cluster.scalings) - 1),
        recoveries=tuple(
            recovery(shares, since=since, until=until)
            for since, until in zip(scenario.moments, (*scenario.moments[1:], scenario.duration), strict=True)
        ),
        per_minute=tuple(round(float(value), 4) for value in minutes),
        came_per_minute=tuple(round(float(value), 4) for value in came),
    )


def served_well(scenario: Scenario, ended: Period) -> NDArray[np.bool_]:
    """Say of each request whether it met both objectives."""
    return (ended.ttft <= scenario.objectives.ttft) & (ended.tpot <= scenario.objectives.tpot)


def timeline(
    arrival: NDArray[np.float64], met: NDArray[np.bool_], *, duration: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Goodput, arrivals and the share served well, by minute of arrival; a minute without arrivals has share 1."""
    count = int(np.ceil(duration / MINUTE))
    minute = np.minimum(arrival // MINUTE, count - 1).astype(np.int64)
    came = np.bincount(minute, minlength=count).astype(np.float64)
    served = np.bincount(minute[met], minlength=count).astype(np.float64)
    share = np.divide(served, came, out=np.ones(count), where=came > 0)
    return served / MINUTE, came / MINUTE, share


def recovery(shares: Sequence[float] | NDArray[np.float64], *, since: float, until: float) -> float | None:
    """Seconds from `since` to the first of enough good minutes in a row before `until`; None when there is none."""
    first, last = int(since // MINUTE), int(until // MINUTE)
    for minute in range(first, last - RECOVERED_MINUTES + 1):
        if all(share >= RECOVERED for share in shares[minute : minute + RECOVERED_MINUTES]):
            return max(0.0, minute * MINUTE - since)
    return None
