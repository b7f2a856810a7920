"""One policy in one scenario, from names to figures: what a worker process is asked to do.

Apart from the command, because it must be picklable and knows no terminal. Must not: compare policies.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from benchmarks.closedloop.autotuner import Autotuner
from benchmarks.closedloop.playing import play
from benchmarks.closedloop.policies import Fixed, Policy, Ruled
from benchmarks.closedloop.rivals import Hpa, Keda, Rule, Saturation
from benchmarks.closedloop.scenario import Hardware, Scenario
from benchmarks.closedloop.scenarios import draw
from benchmarks.closedloop.scoring import Score, score
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.searching import best_fixed, sweep
from benchmarks.closedloop.service import Owner
from vllm_autotuner.api.status import Outcome

__all__ = ["PolicyName", "Task", "Trial", "run"]


class PolicyName(StrEnum):
    """Who decides."""

    AUTOTUNER = "autotuner"
    """This product, mode Automatic."""
    ORACLE = "oracle"
    """The best fixed setting, found by trying all of them on the same requests. Nobody can have it."""
    DEFAULTS = "defaults"
    """The engine's own defaults and the replicas of the start."""
    HPA = "hpa"
    KEDA = "keda"
    SATURATION = "saturation"
    SWEEP = "sweep"
    """max-num-seqs from an offline sweep before the run; the replicas of the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to run."""

    scenario: str
    policy: PolicyName
    seed: int
    hardware: Sequence[Hardware]
    quick: bool

    def scenario_drawn(self) -> Scenario:
        """The case; the same in every process."""
        return draw(self.scenario, seed=self.seed, hardware=self.hardware, quick=self.quick)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came out."""

    task: Task
    score: Score
    notes: dict[str, Any]
    """What only this policy has to tell."""
    seconds: float
    """Of real time."""

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        told = {name: value for name, value in asdict(self.score).items() if not name.endswith("per_minute")}
        return {**told, **self.notes, "real_seconds": round(self.seconds, 1)}


def run(task: Task) -> Trial:
    """Play one task."""
    began = time.perf_counter()
    found, notes = asyncio.run(_played(task.scenario_drawn(), task))
    return Trial(task=task, score=found, notes=notes, seconds=time.perf_counter() - began)


async def _played(scenario: Scenario, task: Task) -> tuple[Score, dict[str, Any]]:
    owner, scraper = Owner(scenario), Scraper()
    notes: dict[str, Any] = {}
    match task.policy:
        case PolicyName.ORACLE:
            best = await best_fixed(scenario, fine=not task.quick)
            setting = {"seats": best.seats, "replicas": best.replicas, "kv_cache_dtype": best.kv_cache_dtype}
            return best.score, {"setting": setting, "runs": best.tried, "settings": best.covered}
        case PolicyName.AUTOTUNER:
            product = Autotuner(scenario, owner, scraper)
            cluster = await play(scenario, product, owner=owner)
            kept = sum(one.outcome is Outcome.SUCCEEDED for one in product.ended)
            undone = sum(one.outcome is Outcome.ROLLED_BACK for one in product.ended)
            notes = {
                "changes_kept": kept,
                "changes_rolled_back": undone,
                "changes": [asdict(one) for one in product.ended],
                "ticks_by_class": dict(product.classes.most_common()),
                "classes": product.named,
            }
        case PolicyName.SWEEP:
            swept = await sweep(scenario)
            cluster = await play(scenario, Fixed(owner, swept.seats, scenario.replicas), owner=owner)
            notes = {"trial_restarts": swept.restarts, "trial_gpu_hours": swept.gpu_hours}
        case PolicyName.DEFAULTS:
            cluster = await play(scenario, Fixed(owner, None, scenario.replicas), owner=owner)
        case PolicyName.HPA | PolicyName.KEDA | PolicyName.SATURATION:
            policy: Policy = Ruled(scenario, owner, _rule(task.policy), scraper)
            cluster = await play(scenario, policy, owner=owner)
    notes |= {"seats_over_time": cluster.seats, "replicas_over_time": cluster.scalings}
    return score(scenario, cluster), notes


def _rule(name: PolicyName) -> Rule:
    rules: dict[PolicyName, Rule] = {
        PolicyName.HPA: Hpa(),
        PolicyName.KEDA: Keda(),
        PolicyName.SATURATION: Saturation(),
    }
    return rules[name]
