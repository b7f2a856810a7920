"""What tuning saved or spent: GPU-hours, and money where the price of a GPU is known, from the status of a VLLMService.

Saved is what a service would have asked for without the operator (the number at the start of the record, and what its
owner added or removed since) less what it asked for. Negative: spent. Apart from the texts about it.
Must not: guess. What a status does not say is `Unknown` with the reason, never zero.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from vllm_autotuner.api.gpu_steps import GpuStep
from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.api.status import HISTORY_LENGTH, HistoryEntry, Outcome
from vllm_autotuner.engine.catalogue import Catalogue

__all__ = [
    "RECORDED",
    "Fleet",
    "GpuHours",
    "Prices",
    "Savings",
    "StepEffect",
    "Unknown",
    "fleet_savings",
    "gpu_hours",
    "gpu_product",
    "saved_gpus_now",
    "savings_of",
    "step_effects",
    "trial_hours",
]

HOUR: Final = timedelta(hours=1)
RECORDED: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The start of a period that is as long as the record."""
NO_RECORD: Final = "the operator has not recorded GPUs of this service: spec.accelerator is not set, or it is new"
OUTSIDE: Final = "the record of GPUs does not cover this time"


@dataclass(frozen=True, slots=True)
class Unknown:
    """There is no number, and this is why."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHours:
    """Of one service in one period, as far as the record covers it."""

    since: datetime
    """From when on the number is known: the start of the period, or that of the record."""
    until: datetime
    used: float
    """GPU-hours that the service asked for."""
    reference: float
    """GPU-hours that it would have asked for without the operator."""
    unknown: float = 0.0
    """Hours in between for which the number is not known; nothing of them is in the sums."""

    @property
    def saved(self) -> float:
        """GPU-hours; negative where more were asked for."""
        return self.reference - self.used


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEffect:
    """One step, and what the number it led to saved or spent until the next one."""

    step: GpuStep
    before: float | None
    """GPUs before it; None for the first, and where not known."""
    hours: float
    saved: float | None
    """GPU-hours; None where not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a GPU costs for an hour."""

    catalogue: Catalogue = field(default_factory=Catalogue)
    flat: float | None = None
    """Of every GPU, whatever the catalogue says; None: not given."""

    def of(self, product: str | None) -> float | None:
        """Return the price; None where it is not known."""
        return self.flat if self.flat is not None else self.catalogue.price(product)

    @property
    def currency(self) -> str:
        """Of the prices; empty where not named."""
        return self.catalogue.currency


Hours: TypeAlias = GpuHours | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """One service in one period."""

    hours: Hours
    trials: float | Unknown
    """GPU-hours that pods of changes took besides, at most."""
    kept: int
    """Changes that were kept."""
    rolled_back: int
    """Changes that were rolled back."""
    all_changes: bool
    """False where the period is longer than the remembered history."""
    price: float | None = None
    """Of a GPU and hour; None where not known."""
    currency: str = ""

    @property
    def net(self) -> float | None:
        """GPU-hours saved, less what trials took at most; None where either is not known."""
        if isinstance(self.hours, Unknown) or isinstance(self.trials, Unknown):
            return None
        return self.hours.saved - self.trials

    @property
    def money(self) -> float | None:
        """The same in money."""
        return None if self.net is None or self.price is None else self.net * self.price


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The sum over services, and over how many of them it is."""

    services: int
    known: int
    """Services whose GPU-hours are known."""
    used: float
    saved: float
    trials: float
    kept: int
    rolled_back: int
    priced: int
    """Services whose savings are known in money."""
    money: float
    currency: str
    all_changes: bool
    since: datetime | None
    """The latest moment from which on all the known ones are known; None without any."""


def gpu_hours(steps: Sequence[GpuStep], *, since: datetime, until: datetime) -> Hours:
    """Sum up the steps between two moments."""
    if not steps:
        return Unknown(NO_RECORD)
    used = reference = unknown = covered = 0.0
    for step, end in _intervals(steps, until=until):
        hours = max(timedelta(), min(end, until) - max(step.at, since)) / HOUR
        if step.gpus is None or step.reference is None:
            unknown += hours
            continue
        covered += hours
        used += step.gpus * hours
        reference += step.reference * hours
    if covered <= 0:
        return Unknown(OUTSIDE)
    return GpuHours(since=max(since, steps[0].at), until=until, used=used, reference=reference, unknown=unknown)


def step_effects(steps: Sequence[GpuStep], *, until: datetime) -> list[StepEffect]:
    """Return each step with its effect, oldest first; `until` ends the last one. Their sum is that of `gpu_hours`."""
    found, before = list[StepEffect](), None
    for step, end in _intervals(steps, until=until):
        hours = max(timedelta(), min(end, until) - step.at) / HOUR
        known = step.gpus is not None and step.reference is not None
        saved = (step.reference or 0.0) - (step.gpus or 0.0)
        found.append(StepEffect(step=step, before=before, hours=hours, saved=saved * hours if known else None))
        before = step.gpus
    return found


def saved_gpus_now(steps: Sequence[GpuStep]) -> float | None:
    """GPUs that are saved at this moment, negative where spent; None where not known."""
    if not steps or steps[-1].gpus is None or steps[-1].reference is None:
        return None
    return steps[-1].reference - steps[-1].gpus


def trial_hours(entry: HistoryEntry, *, since: datetime, until: datetime) -> float | None:
    """GPU-hours that pods of a change took besides those of the service, at most; None where not known."""
    if entry.extra_gpus is None or entry.started_at is None or entry.finished_at is None:
        return None
    lasted = min(entry.finished_at, until) - max(entry.started_at, since)
    return entry.extra_gpus * max(timedelta(), lasted) / HOUR


def savings_of(service: VLLMService | InvalidService, *, since: datetime, until: datetime, prices: Prices) -> Savings:
    """Return the savings of one object."""
    status = service.status
    if status is None:
        unreadable = Unknown("the status cannot be read")
        return Savings(hours=unreadable, trials=unreadable, kept=0, rolled_back=0, all_changes=False)
    ended = [each for each in status.history if each.finished_at is not None and since <= each.finished_at <= until]
    outcomes = [each.outcome for each in ended]
    return Savings(
        hours=gpu_hours(status.gpu_steps, since=since, until=until),
        trials=_trials(ended, since=since, until=until),
        kept=outcomes.count(Outcome.SUCCEEDED),
        rolled_back=outcomes.count(Outcome.ROLLED_BACK) + outcomes.count(Outcome.ROLLBACK_FAILED),
        all_changes=_reaches_back(status.history, since=since),
        price=prices.of(gpu_product(service)),
        currency=prices.currency,
    )


def gpu_product(service: VLLMService | InvalidService) -> str | None:
    """Return what its GPU is: as its spec says, else as the operator found it; None where neither does."""
    named = service.spec.accelerator if isinstance(service, VLLMService) else None
    found = None if service.status is None else service.status.gpu_product
    return found if named is None or not named.product else named.product


def fleet_savings(services: Iterable[Savings]) -> Fleet:
    """Add up services. What is not known of one is not in the sums, and shows in the counts."""
    all_ = list(services)
    known = [(each, each.hours) for each in all_ if isinstance(each.hours, GpuHours)]
    money = [each.money for each in all_ if each.money is not None]
    return Fleet(
        services=len(all_),
        known=len(known),
        used=sum(hours.used for _, hours in known),
        saved=sum(hours.saved for _, hours in known),
        trials=sum(each.trials for each, _ in known if not isinstance(each.trials, Unknown)),
        kept=sum(each.kept for each in all_),
        rolled_back=sum(each.rolled_back for each in all_),
        priced=len(money),
        money=sum(money),
        currency=next((each.currency for each in all_ if each.currency), ""),
        all_changes=all(each.all_changes for each in all_),
        since=max((hours.since for _, hours in known), default=None),
    )


def _trials(ended: Iterable[HistoryEntry], *, since: datetime, until: datetime) -> float | Unknown:
    found = [trial_hours(each, since=since, until=until) for each in ended]
    if None in found:
        return Unknown("an older version of the operator did not record the GPUs of a change")
    return sum(each for each in found if each is not None)


def _reaches_back(history: Sequence[HistoryEntry], *, since: datetime) -> bool:
    """Whether the remembered changes are all of the period: there is an older one, or room for more."""
    if len(history) < HISTORY_LENGTH:
        return True
    return history[0].finished_at is not None and history[0].finished_at < since


def _intervals(steps: Sequence[GpuStep], *, until: datetime) -> Iterable[tuple[GpuStep, datetime]]:
    return zip(steps, [*(step.at for step in steps[1:]), until], strict=False)
