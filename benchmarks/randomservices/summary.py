"""Counts what recommendations did and what forecasts were worth: by knob, and of all together.

Each share stands beside its counts and has a 95 % interval: services are independent of each other.
Must not: play, or judge one service.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from benchmarks.intervals import wilson_interval
from benchmarks.randomservices.judging import Came, Change, Outcome
from vllm_autotuner.diagnosis.classes import DiagnosisClass

__all__ = ["ALL", "FEWEST", "figures_of"]

ALL: Final = "all"
"""The name of the row of all knobs together."""
EFFECT: Final = 0.05
"""Goodput that differs by less counts as the same."""
FEWEST: Final = 50
"""Requests, below which a p95 is that of two or three: its forecast is not scored, and its goodput not compared."""
WITHIN: Final = (("2x", 2.0), ("1.25x", 1.25))
"""How far a forecast may be off, either way."""
NO_TROUBLE: Final = frozenset({DiagnosisClass.HEALTHY, DiagnosisClass.UNCLEAR})


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return everything that is saved. `to_look_at`: seeds, for `--show`."""
    pairs = [(outcome, change) for outcome in outcomes for change in outcome.changes]
    knobs = sorted({change.knob for _, change in pairs})
    return {
        "services": {
            "drawn": len(outcomes),
            "diagnosed_other_than_healthy_or_unclear": sum(_in_trouble(each) for each in outcomes),
            "with_a_recommendation": sum(bool(each.changes) for each in outcomes),
        },
        "by_knob": {
            ALL: _figures(pairs),
            **{knob: _figures([pair for pair in pairs if pair[1].knob == knob]) for knob in knobs},
        },
        "by_class": _by_class(outcomes),
        "to_look_at": {
            "worse": sorted({outcome.service.seed for outcome, change in pairs if _effect(outcome, change) == "worse"}),
            "no_help": sorted({outcome.service.seed for outcome, change in pairs if _is_no_help(outcome, change)}),
            "foretold_beyond_2x": sorted(
                {
                    outcome.service.seed
                    for outcome, change in pairs
                    for pair in (_ttft(change), _tpot(change))
                    if pair is not None and not _is_within(pair, 2.0)
                }
            ),
        },
    }


def _in_trouble(outcome: Outcome) -> bool:
    return outcome.report.diagnosis.primary not in NO_TROUBLE


def _figures(pairs: Sequence[tuple[Outcome, Change]]) -> dict[str, Any]:
    compared = [pair for pair in pairs if _effect(*pair)]
    saving = [(outcome, change) for outcome, change in compared if _saves(outcome, change)]
    others = [pair for pair in compared if pair not in saving]
    return {
        "recommended": len(pairs),
        "not_simulated": sum(change.came is None for _, change in pairs),
        "compared": len(compared),
        "gpus_before": sum(outcome.gpus for outcome, _ in compared),
        "gpus_after": sum(change.gpus or 0 for _, change in compared),
        "others": _effects(others),
        "saving_gpus": _effects(saving),
        "no_help_though_an_objective_is_missed": sum(_is_no_help(*pair) for pair in compared),
        "ttft": _foretold(_ttft(change) for _, change in pairs),
        "tpot": _foretold(_tpot(change) for _, change in pairs),
    }


def _effects(pairs: Sequence[tuple[Outcome, Change]]) -> dict[str, Any]:
    effects = [_effect(*pair) for pair in pairs]
    worse = effects.count("worse")
    return {
        "compared": len(pairs),
        "better": effects.count("better"),
        "between": effects.count("between"),
        "worse": worse,
        "worse_interval": _interval(worse, of=len(pairs)),
        "goodput_before": sum(outcome.stayed.goodput for outcome, _ in pairs),
        "goodput_after": sum(change.came.goodput for _, change in pairs if change.came is not None),
    }


def _effect(outcome: Outcome, change: Change) -> str:
    """Return `better`, `worse` or `between`; empty where it cannot be compared."""
    before, after = outcome.stayed, change.came
    if after is None or max(before.requests, after.requests) < FEWEST:
        return ""
    if after.goodput > before.goodput * (1 + EFFECT):
        return "better"
    return "worse" if after.goodput < before.goodput * (1 - EFFECT) else "between"


def _saves(outcome: Outcome, change: Change) -> bool:
    return change.gpus is not None and change.gpus < outcome.gpus


def _is_no_help(outcome: Outcome, change: Change) -> bool:
    """Whether goodput stays while an objective is missed, by a change that does not save GPUs."""
    missed = bool(_missed(outcome, outcome.stayed))
    return missed and not _saves(outcome, change) and _effect(outcome, change) == "between"


def _missed(outcome: Outcome, came: Came) -> list[str]:
    targets = {"ttft": (came.ttft, outcome.targets.ttft), "tpot": (came.tpot, outcome.targets.tpot)}
    return [name for name, (value, target) in targets.items() if value is not None and value > target.seconds]


def _ttft(change: Change) -> tuple[float, float] | None:
    return _pair(change, change.ttft, None if change.came is None else change.came.ttft)


def _tpot(change: Change) -> tuple[float, float] | None:
    return _pair(change, change.tpot, None if change.came is None else change.came.tpot)


def _pair(change: Change, foretold: float | None, came: float | None) -> tuple[float, float] | None:
    """Return foretold and came; None where one is missing."""
    if foretold is None or not came or change.came is None or change.came.requests < FEWEST:
        return None
    return foretold, came


def _is_within(pair: tuple[float, float], times: float) -> bool:
    foretold, came = pair
    return came / times <= foretold <= came * times


def _foretold(pairs: Iterable[tuple[float, float] | None]) -> dict[str, Any]:
    known = [pair for pair in pairs if pair is not None]
    found: dict[str, Any] = {"foretold": len(known)}
    for name, times in WITHIN:
        count = sum(_is_within(pair, times) for pair in known)
        found[f"within_{name}"] = count
        found[f"within_{name}_interval"] = _interval(count, of=len(known))
    return found


def _by_class(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """How many services of each class truly missed which objective before the diagnosis."""
    found: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        row = found.setdefault(
            outcome.report.diagnosis.primary.value,
            {"services": 0, "compared": 0, "ttft_missed": 0, "tpot_missed": 0, "none_missed": 0, "recommended": 0},
        )
        row["services"] += 1
        row["recommended"] += bool(outcome.changes)
        if outcome.seen.requests < FEWEST:
            continue
        missed = _missed(outcome, outcome.seen)
        row["compared"] += 1
        row["ttft_missed"] += "ttft" in missed
        row["tpot_missed"] += "tpot" in missed
        row["none_missed"] += not missed
    return dict(sorted(found.items(), key=lambda item: (-item[1]["services"], item[0])))


def _interval(count: int, *, of: int) -> list[float] | None:
    return [round(end, 4) for end in wilson_interval(count / of, of=of)] if of else None
