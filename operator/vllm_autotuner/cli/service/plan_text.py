"""A plan as text and as JSON: the candidates with predicted effects, the choice, and why the others were rejected.

Must not: decide anything, or compute an effect.
"""

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.text import Text

from vllm_autotuner.cli.diagnosis.text import quantity
from vllm_autotuner.cli.terminal import WholeTable, printable
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.planning.forecast import Outlook
from vllm_autotuner.planning.plan import Considered, Plan
from vllm_autotuner.planning.untuned import UNTUNED

__all__ = ["plan_json", "print_plan"]

COLUMNS = ("configuration", "TTFT", "TPOT", "a replica serves", "limited by", "GPUs", "needed", "confidence")
SHOWN = 5
"""Configurations beside the present one."""


def print_plan(console: Console, plan: Plan, *, named: DiagnosisClass) -> None:
    """Print the candidates, the choice, what was rejected, and what only a user can change."""
    if plan.considered or plan.not_worth:
        console.print(_table(plan), crop=False)
    if plan.considered:
        for line in _choice(plan):
            console.print(Text(printable(line)), soft_wrap=True)
    else:
        console.print("No change is recommended.")
    for why in plan.passed_over:
        console.print(Text(printable(f"Rejected: {why}")), soft_wrap=True)
    for each in UNTUNED.get(named, ()):
        console.print(f"Not tuned by the operator: {each}", soft_wrap=True)


def plan_json(plan: Plan, *, named: DiagnosisClass) -> dict[str, Any]:
    """Return the plan for programs; null where nothing is known."""
    return {
        "current": None if plan.before is None else _outlook_json(plan.before),
        "candidates": [_candidate_json(each) for each in (*plan.considered, *plan.not_worth)],
        "passedOver": list(plan.passed_over),
        "untuned": [{"knob": each.knob, "why": each.why, "caveat": each.caveat} for each in UNTUNED.get(named, ())],
    }


def _table(plan: Plan) -> WholeTable:
    title = "One step away, by the model, best first"
    table = WholeTable(*COLUMNS, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    if plan.before is not None:
        table.add_row("current", *_cells(plan.before), "")
    for each in (*plan.considered, *plan.not_worth)[:SHOWN]:
        cells = [""] * (len(COLUMNS) - 2) if each.after is None else _cells(each.after)
        table.add_row(Text(printable(each.proposal.told)), *cells, each.proposal.confidence.value)
    return table


def _cells(outlook: Outlook) -> list[str]:
    return [
        quantity(outlook.ttft, "s"),
        quantity(outlook.tpot, "s"),
        "unknown" if outlook.capacity is None else f"{outlook.capacity:.2f}/s",
        outlook.limited_by or "unknown",
        str(outlook.gpus),
        _count(outlook.needed_gpus),
    ]


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _choice(plan: Plan) -> Iterable[str]:
    chosen, others = plan.considered[0], plan.considered[1:]
    proposal = chosen.proposal
    yield f"Chosen: {proposal.told}. {proposal.reason}"
    if proposal.limited_by:
        yield f"  limited by: {proposal.limited_by}"
    if proposal.recommend_only:
        yield f"  recommended only, not applied: {proposal.recommend_only}"
    for index, other in enumerate(others):
        place = "Second" if index == 0 else "Then"
        yield f"{place}: {other.proposal.told}; rejected: {other.lost}"


def _candidate_json(candidate: Considered) -> dict[str, Any]:
    proposal = candidate.proposal
    return {
        "knob": proposal.knob.value,
        "current": proposal.current,
        "value": proposal.value,
        "maxModelLen": proposal.max_model_len,
        "maxNumSeqs": proposal.max_num_seqs,
        "chosen": not candidate.lost,
        "lostBecause": candidate.lost or None,
        "limitedBy": proposal.limited_by,
        "recommendOnly": proposal.recommend_only or None,
        "confidence": proposal.confidence.value,
        "reason": proposal.reason,
        "predicted": None if candidate.after is None else _outlook_json(candidate.after),
    }


def _outlook_json(outlook: Outlook) -> dict[str, Any]:
    return {
        "ttftSeconds": outlook.ttft,
        "tpotSeconds": outlook.tpot,
        "tokensPerSecond": outlook.tokens_per_second,
        "goodputTokensPerSecond": outlook.goodput,
        "kvTokens": outlook.pool,
        "sequencesHeld": outlook.held,
        "capacityRequestsPerSecond": outlook.capacity,
        "capacityLimitedBy": outlook.limited_by or None,
        "gpus": outlook.gpus,
        "neededGpus": outlook.needed_gpus,
    }
