"""Cases side by side with their oracle: what was promised, at what price, and how sure that is.

A case is met when its attainment is at least 97 % of its oracle's; its price is GPU-hours against the oracle's. Seeds
are pooled. An interval resamples whole scenarios, because the seeds of one are of one kind and not independent.
Must not: run anything, or leave a case out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.closedloop.trial import ABLATIONS, RIVALS, PolicyName, Trial

__all__ = ["MET", "Compared", "Played", "case_figures", "compared", "policy_summary", "summary_of", "worth_of_flags"]

MET: Final = 0.97
"""Share of the oracle's attainment from which on a case is met."""
RESAMPLES: Final = 2000
"""Of the bootstrap. Our choice: the second digit of an interval stands still."""

Played = Mapping[PolicyName, Trial]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One policy in one case, against the oracle of that case."""

    scenario: str
    attainment: float
    gpu_hours: float
    goodput: float
    kept: int
    rolled_back: int
    restarts: int

    @property
    def met(self) -> bool:
        """Whether the promise was kept."""
        return self.attainment >= MET


def compared(trial: Trial, oracle: Trial) -> Compared:
    """Both figures as parts of the oracle's. Where the oracle attains nothing, nothing could be missed."""
    best = oracle.score.attainment
    return Compared(
        scenario=trial.task.case.scenario,
        attainment=trial.score.attainment / best if best > 0 else 1.0,
        gpu_hours=trial.score.gpu_hours / oracle.score.gpu_hours,
        goodput=trial.score.goodput / oracle.score.goodput if oracle.score.goodput else 1.0,
        kept=len(trial.notes.get("kept_changes", ())),
        rolled_back=len(trial.notes.get("rolled_back", ())),
        restarts=trial.score.restarts,
    )


def worth_of_flags(played: Played) -> float | None:
    """GPU-hours of the oracle with the flags of the start against the free oracle's; None where one was not played."""
    free, frozen = played.get(PolicyName.ORACLE), played.get(PolicyName.ORACLE_FROZEN)
    return None if free is None or frozen is None else frozen.score.gpu_hours / free.score.gpu_hours


def case_figures(played: Played) -> dict[str, Any]:
    """Everything about one case, for JSON."""
    first = next(iter(played.values()))
    scenario = first.task.case.drawn()
    oracle = played.get(PolicyName.ORACLE)
    policies = {name.value: trial.figures() for name, trial in played.items()}
    if oracle is not None:
        for name, trial in played.items():
            found = compared(trial, oracle)
            policies[name.value] |= {
                "attainment_vs_oracle": found.attainment,
                "gpu_hours_vs_oracle": found.gpu_hours,
                "met": found.met,
                "regret": 1 - trial.score.goodput / oracle.score.goodput if oracle.score.goodput else None,
            }
    return {
        "scenario": scenario.name,
        "seed": scenario.seed,
        "story": scenario.story,
        "engine": scenario.hardware.name,
        "hours": scenario.duration / 3600,
        "objectives": {"ttft": scenario.objectives.ttft, "tpot": scenario.objectives.tpot},
        "startup": scenario.startup,
        "start": {
            "seats": scenario.seats,
            "kv_cache_dtype": scenario.kv_cache_dtypes[0],
            "tensor_parallel_size": scenario.hardware.tensor_parallel_size,
            "replicas": scenario.replicas,
        },
        "most_replicas": scenario.max_replicas,
        "noise": {
            "pod_spread": scenario.noise.pod_spread,
            "startup_spread": scenario.noise.startup_spread,
            "scrape_interval": scenario.noise.interval,
            "scrapes_lost": scenario.noise.lost,
        },
        "worth_of_flags": worth_of_flags(played),
        "policies": policies,
    }


def summary_of(cases: Sequence[Played]) -> dict[str, Any]:
    """All cases together, for the product, its rivals and its ablations. Without an oracle only counts are known."""
    found = policy_summary(_against_oracle(cases, PolicyName.AUTOTUNER))
    for group, members in (("rivals", RIVALS), ("ablations", ABLATIONS)):
        known = {name.value: _against_oracle(cases, name) for name in members}
        found[group] = {name: policy_summary(one) for name, one in known.items() if one}
    for name, one in found["ablations"].items():
        one["vs_autotuner"] = _against_ours(cases, PolicyName(name))
    worths = [worth for played in cases if (worth := worth_of_flags(played)) is not None]
    if worths:
        found["worth_of_flags_median"] = median(worths)
        found["cases_with_worth_above_1_3"] = sum(worth > 1.3 for worth in worths)
    found["cases_played"] = len(cases)
    found["against"] = {name.value: counts for name in RIVALS if (counts := _cheaper(cases, name))}
    return found


def policy_summary(found: Sequence[Compared]) -> dict[str, Any]:
    """One policy over all of its cases; None where there is none."""
    met = [one for one in found if one.met]
    return {
        "attainment_vs_oracle_median": _median([one.attainment for one in found]),
        "attainment_vs_oracle_worst": min((one.attainment for one in found), default=None),
        "attainment_vs_oracle_interval": _interval(found, lambda one: one.attainment),
        "gpu_hours_vs_oracle_median": _median([one.gpu_hours for one in found]),
        "gpu_hours_vs_oracle_worst": max((one.gpu_hours for one in found), default=None),
        "gpu_hours_vs_oracle_interval": _interval(found, lambda one: one.gpu_hours),
        "gpu_hours_vs_oracle_median_of_met": _median([one.gpu_hours for one in met]),
        "gpu_hours_vs_oracle_worst_of_met": max((one.gpu_hours for one in met), default=None),
        "goodput_vs_oracle_median": _median([one.goodput for one in found]),
        "goodput_vs_oracle_worst": min((one.goodput for one in found), default=None),
        "cases": len(found),
        "cases_met": len(met),
        "kept_changes": sum(one.kept for one in found),
        "rolled_back": sum(one.rolled_back for one in found),
        "most_restarts": max((one.restarts for one in found), default=None),
    }


def _against_oracle(cases: Sequence[Played], name: PolicyName) -> list[Compared]:
    return [
        compared(played[name], played[PolicyName.ORACLE])
        for played in cases
        if name in played and PolicyName.ORACLE in played
    ]


def _against_ours(cases: Sequence[Played], name: PolicyName) -> dict[str, Any]:
    """What an ablation costs, case by case, against the whole product in the same cases."""
    pairs = [
        (played[name].score, played[PolicyName.AUTOTUNER].score)
        for played in cases
        if name in played and PolicyName.AUTOTUNER in played
    ]
    return {
        "cases": len(pairs),
        "gpu_hours": sum(one.gpu_hours for one, _ in pairs) / max(1e-9, sum(ours.gpu_hours for _, ours in pairs)),
        "points_attained": 100 * sum(one.attainment - ours.attainment for one, ours in pairs) / max(1, len(pairs)),
        "equal": sum(
            math.isclose(one.gpu_hours, ours.gpu_hours, rel_tol=LEVEL)
            and abs(one.attainment - ours.attainment) <= LEVEL
            for one, ours in pairs
        ),
    }


def _cheaper(cases: Sequence[Played], rival: PolicyName) -> dict[str, int]:
    """In how many cases the product meets and takes fewer GPU-hours, or the rival does not meet; and how often not."""
    counts = {"better": 0, "as_good": 0, "worse": 0}
    for played in cases:
        if any(name not in played for name in (rival, PolicyName.AUTOTUNER, PolicyName.ORACLE)):
            continue
        ours, theirs = (compared(played[one], played[PolicyName.ORACLE]) for one in (PolicyName.AUTOTUNER, rival))
        if ours.met != theirs.met:
            counts["better" if ours.met else "worse"] += 1
        elif not ours.met:
            counts["better" if ours.attainment > theirs.attainment else "worse"] += 1
        else:
            level = math.isclose(ours.gpu_hours, theirs.gpu_hours, rel_tol=LEVEL)
            counts["as_good" if level else "better" if ours.gpu_hours < theirs.gpu_hours else "worse"] += 1
    return counts if sum(counts.values()) else {}


LEVEL: Final = 0.01
"""GPU-hours within 1 % are as good: less than one start-up of one pod in a day."""


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _interval(found: Sequence[Compared], figure: Callable[[Compared], float]) -> list[float] | None:
    """The 95 % interval of the median, whole scenarios resampled; None for fewer than two scenarios."""
    by_scenario: dict[str, list[float]] = {}
    for one in found:
        by_scenario.setdefault(one.scenario, []).append(figure(one))
    clusters = list(by_scenario.values())
    if len(clusters) < 2:
        return None
    source = np.random.default_rng(1)
    medians = [
        median([value for index in source.integers(len(clusters), size=len(clusters)) for value in clusters[index]])
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(medians, (0.025, 0.975))
    return [float(low), float(high)]
