"""Ownership conflicts: another field manager overwrites the workload; how often to restore it before giving up (G33).

Two controllers that each restore their own value would restart a service for ever. So a manual edit is restored, but
after two restores within ten minutes the operator gives up in favour of, say, a self-healing GitOps tool, and the
status names it. A conflict ends when a user edits the VLLMService, or when the workload stays as written for a while.
Pure. Must not: interpret fields or owners; the caller passes both.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.status import Contest

__all__ = ["CONTEST_WINDOW", "MOST_RESTORES", "Interference", "after_interference", "is_lost"]

MOST_RESTORES: Final = 2
"""Restores of a workload within `CONTEST_WINDOW`. The first overwrite may be a manual slip, the second a retry; a third
is a controller. Research G33, T29."""
CONTEST_WINDOW: Final = timedelta(minutes=10)
"""Longer than the sync interval of GitOps tools (Argo CD 3 minutes, Flux usually 1 to 10). Research G33."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Fields of the workload that another field manager has overwritten."""

    manager: str
    fields: tuple[str, ...]

    @property
    def text(self) -> str:
        """The interference in words."""
        return f"{self.manager} overwrote {', '.join(self.fields)}"


def is_lost(contest: Contest | None) -> bool:
    """Whether the operator has given up and leaves the workload to the other field manager."""
    return contest is not None and contest.given_up_at is not None


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
    recent = () if contest is None else tuple(at for at in contest.restored if now - at < CONTEST_WINDOW)
    if contest is not None and contest.given_up_at is not None:
        return contest.updated(quiet_since=None)
    found = Contest(manager=seen.manager, fields=", ".join(seen.fields), generation=generation, restored=recent)
    if len(recent) < MOST_RESTORES:
        return found.updated(restored=(*recent, now))
    return found.updated(given_up_at=now)


def _quiet(contest: Contest | None, *, now: datetime) -> Contest | None:
    """Without interference: the conflict ends after `CONTEST_WINDOW`."""
    if contest is None:
        return None
    if contest.given_up_at is not None and contest.quiet_since is None:
        return contest.updated(quiet_since=now)
    since = contest.quiet_since or max(contest.restored, default=now)
    return None if now - since >= CONTEST_WINDOW else contest
