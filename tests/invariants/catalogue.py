"""The invariants: each with its id, its reason, and a pure function that checks one moment of a test run.

`docs/invariants.md` is generated from here. Apart from the product on purpose: bounds, moves and outcomes are defined
here a second time, on plain objects, so that a mistake in the product is not repeated in the check.
Must not: judge what a single test is about (an outcome, a duration).
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tests.invariants.changes import ended_once, last_known_good, measured, moves, not_repeated, one_change, way_back
from tests.invariants.kstatus import conformant
from tests.invariants.leave import approved, circuit_closed, not_paused, rested, within_budget
from tests.invariants.moment import Moment
from tests.invariants.values import floor_holds, no_orphans, small, spec_untouched, within_bounds

__all__ = ["INVARIANTS", "Invariant", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """A property that always holds, and the reason; `broken` returns its violations at one moment."""

    id: str
    sentence: str
    reason: str
    broken: Callable[[Moment], Iterable[str]]
    of_any_status: bool = False
    """Whether it also holds for a status that a user has made unreadable."""

    @property
    def check(self) -> str:
        """How it is checked: the docstring of `broken`."""
        return inspect.cleandoc(self.broken.__doc__ or "")


def broken(moment: Moment, *, of_any_status: bool = False) -> list[str]:
    """The violations at this moment, each with the id of its invariant."""
    checked = [each for each in INVARIANTS if each.of_any_status or not of_any_status]
    return [f"{each.id} ({each.sentence}): {text}" for each in checked for text in each.broken(moment)]


INVARIANTS: Final[tuple[Invariant, ...]] = (
    Invariant(
        id="I1",
        sentence="at most one change is active per service, and no more in the cluster than its limit allows",
        reason="the effect of two simultaneous changes cannot be told apart",
        broken=one_change,
    ),
    Invariant(
        id="I2",
        sentence="for a change, the operator takes no serving pod away below the spec",
        reason="an experiment may add a pod, but never take serving capacity away",
        broken=floor_holds,
    ),
    Invariant(
        id="I3",
        sentence="every value is the user's own or within the user's bounds",
        reason="a user must be able to rely on the bounds without reading the status",
        broken=within_bounds,
    ),
    Invariant(
        id="I4",
        sentence="an active change has a deadline, a source and a target configuration, and a last known good one "
        "unless no engine has ever started",
        reason="a new leader must be able to finish it or roll it back with the status alone",
        broken=way_back,
    ),
    Invariant(
        id="I5",
        sentence="the last known good configuration changes only when a change succeeded",
        reason="a rollback must never lead to a configuration that was only tried",
        broken=last_known_good,
    ),
    Invariant(
        id="I6",
        sentence="the operator never writes a spec",
        reason="the spec belongs to the user, and often to Git: writing it would conflict with GitOps tools",
        broken=spec_untouched,
        of_any_status=True,
    ),
    Invariant(
        id="I7",
        sentence="a change follows the defined state transitions, one at a time",
        reason="a skipped state is a skipped check",
        broken=moves,
    ),
    Invariant(
        id="I8",
        sentence="every finished change has exactly one history entry and exactly one Event",
        reason="users and alerts count them; a leader that crashes in between must neither lose nor repeat one",
        broken=ended_once,
    ),
    Invariant(
        id="I9",
        sentence="every status is readable by kstatus, and Ready is never reported wrongly",
        reason="Argo CD, Flux and `kubectl wait` read nothing else",
        broken=conformant,
        of_any_status=True,
    ),
    Invariant(
        id="I10",
        sentence="a failed value is not tried again before its retry time",
        reason="repeating a mistake every day is worse than making it once",
        broken=not_repeated,
    ),
    Invariant(
        id="I11",
        sentence="no change succeeds without enough good measurements of each objective, unless engines did not start "
        "before it",
        reason="missing data proves nothing, least of all a success",
        broken=measured,
    ),
    Invariant(
        id="I12",
        sentence="every trial resource belongs to an active change",
        reason="a pod that no status refers to is a GPU that is wasted unnoticed",
        broken=no_orphans,
    ),
    Invariant(
        id="G01",
        sentence="no change begins without the user's permission",
        reason="Recommend is the default so that users can review a change before it is applied",
        broken=approved,
    ),
    Invariant(
        id="G03",
        sentence="no change begins while the service is paused",
        reason="a pause must take effect even if its value is misspelled",
        broken=not_paused,
    ),
    Invariant(
        id="G11",
        sentence="no change begins during the cooldown of the previous one, unless it goes on from what was kept",
        reason="the effect of a change takes time to show, and a value must not go there and back within hours",
        broken=rested,
    ),
    Invariant(
        id="G12",
        sentence="no more changes begin in 24 hours than the budget allows",
        reason="the budget limits the damage of any operator defect to a few changes a day",
        broken=within_budget,
    ),
    Invariant(
        id="G31",
        sentence="no change begins while the circuit breaker is open",
        reason="repeated harm stops all experiments until a user intervenes or the breaker closes",
        broken=circuit_closed,
    ),
    Invariant(
        id="T35",
        sentence="a status stays far below the size limit of the API server",
        reason="a write refused for its size would block every rollback",
        broken=small,
        of_any_status=True,
    ),
)
