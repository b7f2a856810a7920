"""From the ledger of a run to its figures. Each request counts once, by its arrival.

Attainment is what the spec promises (`windows`), the price is GPU-hours; goodput stays as a raw figure. Where a run was
played until it had settled, the rest of the day is what the settled part says, for all of them alike.
Must not: prefer a policy, or drop a request.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.closedloop.playing import Run
from benchmarks.closedloop.scenario import Scenario, Upgrade
from benchmarks.closedloop.windows import judged
from vllm_autotuner.simulation.ledger import Fate, Period

__all__ = ["Score", "score", "served_well"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Figures of one run, for the whole of the load."""

    requests: int
    """Played."""
    attainment: float
    """Share of the five-minute windows with load in which every objective held at its quantile."""
    settled_attainment: float
    gpu_hours: float
    settled_gpus: float
    """Mean GPUs that were paid for in the settled part."""
    goodput: float
    """Requests per second that met both objectives."""
    settled_goodput: float
    in_time: float
    """Part of the requests played that met both objectives. A failed one met neither."""
    failed: int
    restarts: int
    """Rollouts that the policy asked for; the user's own are not counted."""
    scalings: int
    """Changes of the number of replicas."""
    extrapolated_from_hours: float | None
    """Hours that were played where the rest was left out; None: all were."""


def score(scenario: Scenario, run: Run) -> Score:
    """Reduce a finished run."""
    cluster, played = run.cluster, run.played
    settled = scenario.settled_from if run.settled_since is None else run.settled_since
    ended = cluster.fleet.ledger.between(-1.0, cluster.now)
    # After the last tick requests come for as long as a client waits; they belong to no whole window of this run.
    known = played if run.settled_since is None else played - scenario.patience
    windows = judged(scenario, ended, since=0.0, until=known)
    lasting = windows.within(settled, known)
    left = scenario.duration - played if run.settled_since is not None else 0.0
    met = served_well(scenario, ended)
    settled_goodput = _rate(ended.arrival[met], since=settled, until=known)
    settled_gpus = cluster.gpu_seconds(settled, played) / max(1.0, played - settled)
    inside = ended.arrival < played
    upgrades = sum(isinstance(one, Upgrade) and one.at <= played for one in scenario.disturbances)
    return Score(
        requests=int(inside.sum()),
        attainment=_longer(windows.attainment, lasting.attainment, played=played, left=left),
        settled_attainment=lasting.attainment,
        gpu_hours=(cluster.gpu_seconds(0.0, played) + settled_gpus * left) / 3600,
        settled_gpus=settled_gpus,
        goodput=_longer(_rate(ended.arrival[met], since=0.0, until=known), settled_goodput, played=played, left=left),
        settled_goodput=settled_goodput,
        in_time=float(met[inside].mean()) if inside.any() else 1.0,
        failed=int((ended.fate[inside] != Fate.ANSWERED).sum()),
        restarts=max(0, cluster.rollouts - upgrades),
        scalings=max(0, len(cluster.scalings) - 1),
        extrapolated_from_hours=played / 3600 if left else None,
    )


def _rate(arrival: NDArray[np.float64], *, since: float, until: float) -> float:
    return float(((arrival >= since) & (arrival < until)).sum() / max(1.0, until - since))


def _longer(played_value: float, settled_value: float, *, played: float, left: float) -> float:
    return (played_value * played + settled_value * left) / (played + left)


def served_well(scenario: Scenario, ended: Period) -> NDArray[np.bool_]:
    """Say of each request whether it met both objectives."""
    return (ended.ttft <= scenario.objectives.ttft) & (ended.tpot <= scenario.objectives.tpot)
