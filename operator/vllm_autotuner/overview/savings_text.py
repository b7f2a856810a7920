"""GPU-hours and money in words, the same in commands, the report and the web page.

Must not: compute (`gpu_hours` does), or turn what is not known into a number.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from pydantic import ValidationError

from vllm_autotuner.api.gpu_steps import GpuCause, GpuStep
from vllm_autotuner.api.status import HistoryEntry, Outcome
from vllm_autotuner.api.wording import counted
from vllm_autotuner.overview.gpu_hours import Fleet, GpuHours, Hours, Savings, StepEffect, Unknown, trial_hours

__all__ = [
    "NOT_KNOWN",
    "fleet_lines",
    "savings_json",
    "short_savings",
    "told_change",
    "told_fleet",
    "told_hours",
    "told_money",
    "told_saved",
    "told_savings",
    "told_step",
]

NOT_KNOWN: Final = "not known"
_CAUSES: Final = {
    GpuCause.START: "the record begins",
    GpuCause.SCALING: "scaled by the operator",
    GpuCause.CHANGE: "change {change} was kept",
    GpuCause.OWNER: "set by its owner",
    GpuCause.MERGED: "several older steps, on average",
}


def told_hours(hours: float) -> str:
    """Worked: 8 GPU-hours, 0.04 GPU-hours, 1,234 GPU-hours."""
    return f"{_figure(hours)} GPU-hour{'' if _figure(hours) == '1' else 's'}"


def told_money(amount: float, currency: str) -> str:
    """Worked: 19.92 USD."""
    return f"{amount:,.2f} {currency}".strip()


def told_saved(hours: float, money: float | None = None, *, currency: str = "") -> str:
    """Worked: `saved 8 GPU-hours (19.92 USD)`, `spent 3 GPU-hours`, `saved and spent nothing`."""
    if _figure(hours) in ("0", "-0"):
        return "saved and spent nothing"
    amount = "" if money is None else f" ({told_money(abs(money), currency)})"
    return f"{'saved' if hours > 0 else 'spent'} {told_hours(abs(hours))}{amount}"


def told_savings(savings: Savings) -> str:
    """One service in a sentence: what was saved or spent, since when, and compared with what."""
    match savings.hours:
        case Unknown(why):
            return f"{NOT_KNOWN}: {why}"
        case GpuHours() as hours:
            return f"{_net(savings)} since {_day(hours.since)}: {_compared(hours)}{_besides(savings)}"


def short_savings(savings: Savings) -> str:
    """The same for a cell: `saved 8 GPU-hours (19.92 USD)`, or that it is not known."""
    if savings.net is None:
        return NOT_KNOWN
    return told_saved(savings.net, savings.money, currency=savings.currency)


def told_step(effect: StepEffect) -> str:
    """One step: how many GPUs, why, what that saves or costs a day, and what it came to until the next one."""
    step = effect.step
    if step.gpus is None:
        return f"number of GPUs {NOT_KNOWN}: the operator does not set the replicas"
    moved = _figure(step.gpus) if effect.before is None else f"{_figure(effect.before)} -> {_figure(step.gpus)}"
    why = _CAUSES[step.cause].format(change=step.change_id or "?")
    count = "" if step.replicas is None else f", {counted(step.replicas, 'replica')}"
    return f"{moved} GPUs{count} ({why}){_rate(step)}; {_effect(effect)}"


def told_change(entry: Mapping[str, Any], steps: Sequence[GpuStep]) -> str:
    """What a finished change saved or spent, from its history entry as it is stored."""
    try:
        found = HistoryEntry.model_validate(entry)
    except ValidationError:
        return f"{NOT_KNOWN}: this entry cannot be read"
    parts = [_kept(found, steps)] if found.outcome is Outcome.SUCCEEDED else []
    if found.started_at is not None and found.finished_at is not None:
        took = trial_hours(found, since=found.started_at, until=found.finished_at)
        besides = f"GPUs of its pods {NOT_KNOWN}" if took is None else f"trying it took at most {told_hours(took)}"
        parts.append(besides)
    return "; ".join(parts)


def told_fleet(fleet: Fleet) -> str:
    """All services in a sentence."""
    if not fleet.known:
        return f"{NOT_KNOWN}: no service has a record of its GPUs"
    net = fleet.saved - fleet.trials
    money = fleet.money if fleet.priced else None
    return told_saved(net, money, currency=fleet.currency)


def fleet_lines(fleet: Fleet) -> Iterator[str]:
    """What the sum is of, and what is missing in it."""
    if fleet.known:
        besides = f"; trials took at most {told_hours(fleet.trials)} besides" if fleet.trials else ""
        yield f"asked for {told_hours(fleet.used)} instead of {told_hours(fleet.used + fleet.saved)}{besides}"
    if fleet.known < fleet.services:
        yield f"{NOT_KNOWN} for {fleet.services - fleet.known} of {fleet.services} services, which are not in the sum"
    if fleet.priced and fleet.priced < fleet.known:
        yield f"the money is of {counted(fleet.priced, 'service')}; the price of a GPU is {NOT_KNOWN} for the others"
    if not fleet.all_changes:
        yield "a service remembers its last 10 changes: older ones in this time are not counted"


def savings_json(savings: Savings) -> dict[str, Any]:
    """The same for programs; None is not known."""
    hours: Hours = savings.hours
    known = hours if isinstance(hours, GpuHours) else None
    return {
        "since": None if known is None else known.since.isoformat().replace("+00:00", "Z"),
        "gpuHoursUsed": None if known is None else known.used,
        "gpuHoursWithoutTuning": None if known is None else known.reference,
        "gpuHoursSaved": savings.net,
        "gpuHoursOfTrials": None if isinstance(savings.trials, Unknown) else savings.trials,
        "moneySaved": savings.money,
        "currency": savings.currency or None,
        "changesKept": savings.kept,
        "changesRolledBack": savings.rolled_back,
        "why": hours.why if isinstance(hours, Unknown) else None,
    }


def _net(savings: Savings) -> str:
    assert isinstance(savings.hours, GpuHours)
    if savings.net is None:
        return f"{told_saved(savings.hours.saved)}, trials not counted ({NOT_KNOWN})"
    return told_saved(savings.net, savings.money, currency=savings.currency)


def _compared(hours: GpuHours) -> str:
    gap = f", {_figure(hours.unknown)} h {NOT_KNOWN}" if hours.unknown > 0 else ""
    return f"it asked for {told_hours(hours.used)} instead of {_figure(hours.reference)}{gap}"


def _besides(savings: Savings) -> str:
    match savings.trials:
        case Unknown():
            return ""
        case took:
            return f"; trials took at most {told_hours(took)}" if took else ""


def _kept(entry: HistoryEntry, steps: Sequence[GpuStep]) -> str:
    for before, step in pairwise(steps):
        if step.change_id == entry.id and before.gpus is not None and step.gpus is not None:
            return f"{_figure(before.gpus)} -> {_figure(step.gpus)} GPUs{_per_day(before.gpus - step.gpus)}"
    if entry.knob != "tensorParallelSize":
        return "the same GPUs; fewer replicas that it allows are counted with the replicas"
    return f"effect on GPUs {NOT_KNOWN}"


def _rate(step: GpuStep) -> str:
    return "" if step.gpus is None or step.reference is None else _per_day(step.reference - step.gpus)


def _per_day(gpus: float) -> str:
    if _figure(gpus) in ("0", "-0"):
        return ""
    return f", {'saves' if gpus > 0 else 'costs'} {told_hours(abs(gpus) * 24)} a day"


def _effect(effect: StepEffect) -> str:
    lasted = f"{_figure(effect.hours)} h"
    return f"{lasted}, {NOT_KNOWN}" if effect.saved is None else f"{lasted}: {told_saved(effect.saved)}"


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}Z"


def _figure(value: float) -> str:
    """Two digits below ten, whole above: nothing here is known better."""
    return f"{value:,.0f}" if abs(value) >= 10 or value == round(value) else f"{value:.2g}"
