"""Somebody else writes the workload: how often it is written back, and when nothing is written any more (G33). Pure.

Two operators that each restore their own value restart a service for ever. So what was changed by hand is restored, a
self-healing GitOps tool wins after two tries, and the status names it. A person ends the contest by editing the
VLLMService; it also ends when the workload has been as it should for a while.
Must not: know what a field is, or who owns it; both are asked of the object.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.status import Contest

__all__ = ["CONTEST_WINDOW", "MOST_RESTORES", "Interference", "after_interference", "is_lost"]

MOST_RESTORES: Final = 2
"""Times that a workload is written back within `CONTEST_WINDOW`. One may be a person's slip, a second a retry, the
third is a machine. Research G33, T29."""
CONTEST_WINDOW: Final = timedelta(minutes=10)
"""Longer than GitOps tools take between two looks (Argo CD 3 minutes, Flux 1 to 10 by custom). Research G33."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Fields of the workload that are not as they were written, and who has written them since."""

    manager: str
    fields: tuple[str, ...]

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.manager} has written {', '.join(self.fields)}"


def is_lost(contest: Contest | None) -> bool:
    """Whether the workload is left to the other one."""
    return contest is not None and contest.given_up_at is not None


def after_interference(
    contest: Contest | None, seen: Interference | None, *, generation: int, now: datetime
) -> Contest | None:
    """Return the contest as it stands after this look; None when there is none.

    A new entry in `restored` is the permission, and the record, of one write. Written before it is used.
    """
    if contest is not None and contest.generation != generation:
        # A person has edited the service: what he wants now was never refused.
        contest = None
    if seen is None:
        return _quiet(contest, now=now)
    recent = () if contest is None else tuple(at for at in contest.restored if now - at < CONTEST_WINDOW)
    if contest is not None and contest.given_up_at is not None:
        return contest.updated(quiet_since=None)
    found = Contest(manager=seen.manager, fields=", ".join(seen.fields), generation=generation, restored=recent)
    if len(recent) < MOST_RESTORES:
        return found.updated(restored=(*recent, now))
    return found.updated(given_up_at=now)


def _quiet(contest: Contest | None, *, now: datetime) -> Contest | None:
    """The workload is as it should be: after a while that is peace."""
    if contest is None:
        return None
    if contest.given_up_at is not None and contest.quiet_since is None:
        return contest.updated(quiet_since=now)
    since = contest.quiet_since or max(contest.restored, default=now)
    return None if now - since >= CONTEST_WINDOW else contest
