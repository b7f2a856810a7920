"""One policy in one case, from names to figures: what a worker process is asked to do.

Apart from the command, because it must be picklable and knows no terminal. Must not: compare policies.
"""

import asyncio
import gc
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from benchmarks.closedloop.autotuner import Autotuner
from benchmarks.closedloop.capacity import engine_of
from benchmarks.closedloop.offline import knee_of, sweep
from benchmarks.closedloop.oracle import Found, best_on_demand, best_with_fixed_gpus, enough_gpus
from benchmarks.closedloop.playing import Run, play
from benchmarks.closedloop.policies import Fixed, Policy, Ruled
from benchmarks.closedloop.rivals import Hpa, Keda, Rule, Saturation, TokenCapacity
from benchmarks.closedloop.scenario import Hardware, Scenario
from benchmarks.closedloop.scenarios import draw
from benchmarks.closedloop.scoring import Score, score
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.service import Owner
from benchmarks.closedloop.settling import QUICK, USUAL, Patience, Settling
from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import Outcome

__all__ = ["ABLATIONS", "ORACLES", "RIVALS", "WITHOUT", "CaseOf", "PolicyName", "Setting", "Task", "Trial", "run"]

KNEE_SHARE: Final = 0.8
"""Of the knee batch that an offline load test found, as the target of running and waiting requests per pod."""


class Setting(StrEnum):
    """What the user has."""

    ON_DEMAND = "on-demand"
    """Replicas are free within bounds; GPUs come when they are asked for."""
    FIXED = "fixed"
    """A fixed number of GPUs, with which the best flags keep the objectives: `spec.replicas` in place of
    `spec.scaling`. The operator sees one more replica's GPUs free, for the pod of a trial."""


class PolicyName(StrEnum):
    """Who decides."""

    AUTOTUNER = "autotuner"
    """This product, mode Automatic."""
    ORACLE = "oracle"
    ORACLE_FROZEN = "oracle-frozen"
    """The same with the flags of the start."""
    DEFAULTS = "defaults"
    """The engine's own defaults and the replicas of the start."""
    HPA = "hpa"
    KEDA = "keda"
    KEDA_CALIBRATED = "keda-calibrated"
    SATURATION = "saturation"
    TOKEN_CAPACITY = "token-capacity"
    SWEEP_HPA = "sweep-hpa"
    """max-num-seqs from an offline sweep before the run, then an HPA."""
    REPLICAS_ONLY = "replicas-only"
    """This product where the user lets no flag change."""
    FLAGS_ONLY = "flags-only"
    """This product where replicas are fixed."""
    WITHOUT_MAX_NUM_SEQS = "without-max-num-seqs"
    """This product where the user lets this one flag not change; likewise the others. Only where he else does."""
    WITHOUT_KV_CACHE_DTYPE = "without-kv-cache-dtype"
    WITHOUT_TENSOR_PARALLEL_SIZE = "without-tensor-parallel-size"
    WITHOUT_MAX_MODEL_LEN = "without-max-model-len"


ORACLES: Final = (PolicyName.ORACLE, PolicyName.ORACLE_FROZEN)
WITHOUT: Final = {
    PolicyName.WITHOUT_MAX_NUM_SEQS: Knob.MAX_NUM_SEQS,
    PolicyName.WITHOUT_KV_CACHE_DTYPE: Knob.KV_CACHE_DTYPE,
    PolicyName.WITHOUT_TENSOR_PARALLEL_SIZE: Knob.TENSOR_PARALLEL_SIZE,
    PolicyName.WITHOUT_MAX_MODEL_LEN: Knob.MAX_MODEL_LEN,
}
"""The flag that each takes away."""
ABLATIONS: Final = (PolicyName.REPLICAS_ONLY, PolicyName.FLAGS_ONLY, *WITHOUT)
RIVALS: Final = tuple(one for one in PolicyName if one not in (*ORACLES, *ABLATIONS, PolicyName.AUTOTUNER))
PRODUCT: Final = (PolicyName.AUTOTUNER, *ABLATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOf:
    """How a case is drawn and played: what all policies of a table have in common."""

    scenario: str
    seed: int
    hardware: Sequence[Hardware]
    setting: Setting = Setting.ON_DEMAND
    quick: bool = False
    noise: bool = True
    exact: bool = False
    prefers_warm: bool = False
    reads_whole: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """Which case of a table it is."""
        return self.scenario, self.seed

    @property
    def patience(self) -> Patience:
        """When a run has settled."""
        return QUICK if self.quick else USUAL

    def drawn(self) -> Scenario:
        """The case; the same in every process."""
        found = draw(self.scenario, seed=self.seed, hardware=self.hardware, quick=self.quick, noise=self.noise)
        if self.setting is Setting.FIXED:
            # With fewer than the best flags need, nobody keeps the objectives, and no flag is told from another.
            size = found.hardware.tensor_parallel_size
            replicas = max(found.replicas, math.ceil(enough_gpus(found) / size))
            found = replace(found, scales=False, replicas=replicas, gpus_there=(replicas + 1) * size)
        return replace(found, prefers_warm=self.prefers_warm)

    def tells(self, policy: PolicyName) -> bool:
        """Whether this policy can differ here from those that are played anyway."""
        return policy not in WITHOUT or WITHOUT[policy] in self.drawn().adjustable


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to run."""

    case: CaseOf
    policy: PolicyName


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came out."""

    task: Task
    score: Score
    notes: dict[str, Any]
    """What only this policy has to tell."""
    seconds: float
    """Of CPU time."""
    commit: str | None = None
    """That played it; None: what is checked out, just now."""

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        played = {} if self.commit is None else {"played_at": self.commit}
        return {**asdict(self.score), **self.notes, "cpu_seconds": round(self.seconds, 1), **played}


def run(task: Task) -> Trial:
    """Play one task."""
    began = time.process_time()
    # Millions of requests are kept and none is a cycle: looking for cycles among them takes a tenth of the time.
    gc.set_threshold(200_000, 50, 100)
    found, notes = asyncio.run(_outcome(task.case.drawn(), task))
    return Trial(task=task, score=found, notes=notes, seconds=time.process_time() - began)


async def _outcome(scenario: Scenario, task: Task) -> tuple[Score, dict[str, Any]]:
    if task.policy in ORACLES:
        return await _oracle(scenario, task)
    if task.policy in PRODUCT:
        return await _product(scenario, task)
    return await _rival(scenario, task)


async def _oracle(scenario: Scenario, task: Task) -> tuple[Score, dict[str, Any]]:
    search = best_on_demand if task.case.setting is Setting.ON_DEMAND else best_with_fixed_gpus
    frozen = task.policy is PolicyName.ORACLE_FROZEN
    found: Found = await search(scenario, frozen=frozen, patience=None if task.case.exact else task.case.patience)
    flags = asdict(found.plan.flags)
    return found.score, {
        "setting": {**flags, "replicas": [list(one) for one in found.plan.schedule]},
        "plans_played": found.played,
        "searched_on": "a fluid approximation; the named number of plans was played",
    }


async def _product(scenario: Scenario, task: Task) -> tuple[Score, dict[str, Any]]:
    if task.policy is PolicyName.REPLICAS_ONLY:
        scenario = replace(scenario, tunes=False)
    if task.policy is PolicyName.FLAGS_ONLY:
        scenario = replace(scenario, scales=False)
    scenario = replace(scenario, frozen=WITHOUT.get(task.policy))
    owner, scraper = Owner(scenario), Scraper()
    product = Autotuner(scenario, owner, scraper, reads_whole=task.case.reads_whole)
    found = await _played(scenario, product, owner, task)
    kept = [one for one in product.ended if one.outcome is Outcome.SUCCEEDED]
    notes = {
        "kept_changes": [
            {"knob": one.knob, "from": one.from_value, "to": one.to_value, "hours": round(one.at / 3600, 2)}
            for one in kept
        ],
        "rolled_back": [
            {"knob": one.knob, "from": one.from_value, "to": one.to_value, "reason": one.reason}
            for one in product.ended
            if one.outcome is Outcome.ROLLED_BACK
        ],
        "ticks_by_class": dict(product.classes.most_common()),
        "states": product.states,
    }
    return score(scenario, found), {**notes, **_about(scenario, found)}


async def _rival(scenario: Scenario, task: Task) -> tuple[Score, dict[str, Any]]:
    owner, notes, seats = Owner(scenario), dict[str, Any](), scenario.seats
    policy: Policy
    if task.policy is PolicyName.DEFAULTS:
        policy = Fixed(owner, None, scenario.replicas)
    else:
        if task.policy is PolicyName.SWEEP_HPA:
            swept = await sweep(scenario)
            seats = swept.seats
            notes = {"sweep": asdict(swept)}
        rule = _rule(task.policy, scenario)
        if isinstance(rule, Keda) and rule.running:
            notes = {"threshold": rule.threshold}
        policy = (
            Ruled(scenario, owner, rule, Scraper(records=False), seats)
            if scenario.scales
            else Fixed(owner, seats, scenario.replicas)
        )
    found = await _played(scenario, policy, owner, task)
    return score(scenario, found), {**notes, **_about(scenario, found)}


async def _played(scenario: Scenario, policy: Policy, owner: Owner, task: Task) -> Run:
    settling = Settling(scenario=scenario, patience=task.case.patience)
    return await play(scenario, policy, owner=owner, settling=settling, exact=task.case.exact)


def _about(scenario: Scenario, found: Run) -> dict[str, Any]:
    shorter = {} if found.shorter is None else {"shortened": asdict(score(scenario, found.shorter))}
    return {**shorter, "seats_over_time": found.cluster.seats, "replicas_over_time": found.cluster.scalings}


def _rule(name: PolicyName, scenario: Scenario) -> Rule:
    match name:
        case PolicyName.KEDA:
            return Keda()
        case PolicyName.KEDA_CALIBRATED:
            return Keda(threshold=KNEE_SHARE * knee_of(scenario), running=True)
        case PolicyName.SATURATION:
            return Saturation()
        case PolicyName.TOKEN_CAPACITY:
            engine = engine_of(scenario.hardware, seats=scenario.seats)
            return TokenCapacity(seats=engine.max_num_seqs, batched_tokens=engine.max_num_batched_tokens)
        case _:
            return Hpa()
