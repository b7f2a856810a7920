"""Ownership conflicts: another field manager overwrites the workload; how often to restore it before giving up (G33).

Two controllers that each restore their own value would restart a service for ever. So a manual edit is restored, but
after two restores within ten minutes the operator gives up the overwritten fields, and only those, in favour of, say, a
self-healing GitOps tool, and the status names it. A conflict ends when a user edits the VLLMService, or when the
workload stays as written for a while.
Pure. Must not: interpret values or owners; the caller passes both.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.status import Contest

__all__ = [
    "CONTEST_WINDOW",
    "MOST_RESTORES",
    "REPLICAS",
    "Interference",
    "after_interference",
    "gave_up_pods",
    "gave_up_replicas",
    "is_lost",
    "left_alone",
]

MOST_RESTORES: Final = 2
"""Restores of a workload within `CONTEST_WINDOW`. The first overwrite may be a manual slip, the second a retry; a third
is a controller. Research G33, T29."""
CONTEST_WINDOW: Final = timedelta(minutes=10)
"""Longer than the sync interval of GitOps tools (Argo CD 3 minutes, Flux usually 1 to 10). Research G33."""
REPLICAS: Final = "replicas"
"""The one field that is not about what the pods run: whoever sets it does not touch a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Fields of the workload that another field manager has overwritten: args, image, `env NAME`, ..."""

    manager: str
    fields: tuple[str, ...]

    @property
    def text(self) -> str:
        """The interference in words."""
        return f"{self.manager} overwrote {', '.join(self.fields)}"

    @property
    def of_pods(self) -> bool:
        """Whether it is about what the pods run."""
        return any(field != REPLICAS for field in self.fields)


def is_lost(contest: Contest | None) -> bool:
    """Whether the operator has given up a field and leaves it to the other field manager."""
    return contest is not None and contest.given_up_at is not None


def gave_up_replicas(contest: Contest | None) -> bool:
    """Whether another field manager sets the replicas."""
    return contest is not None and REPLICAS in contest.given_up


def gave_up_pods(contest: Contest | None) -> bool:
    """Whether another field manager sets something that the pods run with."""
    return contest is not None and any(name != REPLICAS for name in contest.given_up)


def left_alone(contest: Contest | None, seen: Interference | None) -> frozenset[str]:
    """The overwritten fields that the operator has given up."""
    if contest is None or seen is None:
        return frozenset()
    return frozenset(field for field in seen.fields if _name(field) in contest.given_up)


def after_interference(
    contest: Contest | None, seen: Interference | None, *, generation: int, now: datetime
) -> Contest | None:
    """Return the conflict after this tick; None if there is none.

    A new entry in `restored` permits one restore. It is persisted before the restore happens.
    """
    if contest is not None and contest.generation != generation:
        # A user has edited the service: start over.
        contest = None
    if seen is None:
        return _quiet(contest, now=now)
    fields, given_up = ", ".join(seen.fields), () if contest is None else contest.given_up
    disputed = tuple(dict.fromkeys(_name(field) for field in seen.fields if _name(field) not in given_up))
    if contest is not None and not disputed:
        return contest.updated(manager=seen.manager, fields=fields, quiet_since=None)
    recent = () if contest is None else tuple(at for at in contest.restored if now - at < CONTEST_WINDOW)
    found = Contest(
        manager=seen.manager,
        fields=fields,
        generation=generation,
        restored=recent,
        given_up=given_up,
        given_up_at=contest.given_up_at if contest is not None and given_up else None,
    )
    if len(recent) < MOST_RESTORES:
        return found.updated(restored=(*recent, now))
    return found.updated(given_up=(*given_up, *disputed), given_up_at=now)


def _name(field: str) -> str:
    """The field as it is given up: one variable of the environment stands for all that are overwritten."""
    return field.partition(" ")[0]


def _quiet(contest: Contest | None, *, now: datetime) -> Contest | None:
    """Without interference: the conflict ends after `CONTEST_WINDOW`."""
    if contest is None:
        return None
    if contest.given_up_at is not None and contest.quiet_since is None:
        return contest.updated(quiet_since=now)
    since = contest.quiet_since or max(contest.restored, default=now)
    return None if now - since >= CONTEST_WINDOW else contest
