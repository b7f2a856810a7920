"""What holds at every moment of every story: each with its id, its reason, and a pure function of one moment.

`docs/invariants.md` is generated from here. Apart from the product on purpose: bounds, moves and endings are said here
a second time, in terms of plain objects, so that a mistake there is not believed here.
Must not: judge what a story is about (an outcome, a duration).
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
    """What always holds, and why; `broken` says what does not at one moment."""

    id: str
    sentence: str
    reason: str
    broken: Callable[[Moment], Iterable[str]]
    of_any_status: bool = False
    """Also of one that a person has made unreadable."""

    @property
    def check(self) -> str:
        """How it is checked, in words."""
        return inspect.cleandoc(self.broken.__doc__ or "")


def broken(moment: Moment, *, of_any_status: bool = False) -> list[str]:
    """Whatever does not hold at this moment, each with the id of its invariant."""
    asked = [each for each in INVARIANTS if each.of_any_status or not of_any_status]
    return [f"{each.id} ({each.sentence}): {text}" for each in asked for text in each.broken(moment)]


INVARIANTS: Final[tuple[Invariant, ...]] = (
    Invariant(
        id="I1",
        sentence="at most one change is under way per service, and no more in the cluster than it allows",
        reason="two changes at once cannot be told apart when something gets worse",
        broken=one_change,
    ),
    Invariant(
        id="I2",
        sentence="as many pods serve as the spec asks for, whenever they did before the change",
        reason="an experiment may cost a pod that is added, never one that serves",
        broken=floor_holds,
    ),
    Invariant(
        id="I3",
        sentence="every value is the user's own or within the user's bounds",
        reason="bounds are the only thing a user can rely on without reading a status",
        broken=within_bounds,
    ),
    Invariant(
        id="I4",
        sentence="a change under way has a deadline, where it comes from, where it goes, and a last known good",
        reason="whoever takes over, with nothing but the status, can end it and can go back",
        broken=way_back,
    ),
    Invariant(
        id="I5",
        sentence="the last known good configuration changes only when a change succeeded",
        reason="a rollback must never lead to something that was merely tried",
        broken=last_known_good,
    ),
    Invariant(
        id="I6",
        sentence="the operator never writes a spec",
        reason="the spec is the user's, and often Git's: a tool that writes it fights the one that applies it",
        broken=spec_untouched,
        of_any_status=True,
    ),
    Invariant(
        id="I7",
        sentence="a change moves only along the moves of the design, one at a time",
        reason="a state that was skipped is a check that was not made",
        broken=moves,
    ),
    Invariant(
        id="I8",
        sentence="every change that ends has exactly one entry in the history and exactly one Event",
        reason="people and alerts count them; a leader that dies in between must neither lose nor repeat one",
        broken=ended_once,
    ),
    Invariant(
        id="I9",
        sentence="every status can be read by kstatus, and never says Ready where it is not",
        reason="Argo CD, Flux and `kubectl wait` read nothing else",
        broken=conformant,
        of_any_status=True,
    ),
    Invariant(
        id="I10",
        sentence="what failed is not tried again before its time",
        reason="a mistake that is repeated every day is worse than the one made first",
        broken=not_repeated,
    ),
    Invariant(
        id="I11",
        sentence="no change succeeds without enough good measurements of each objective",
        reason="missing data is evidence for nothing, least of all for a success",
        broken=measured,
    ),
    Invariant(
        id="I12",
        sentence="whatever runs for a trial belongs to a change under way",
        reason="a pod that no status names is a GPU that burns unseen",
        broken=no_orphans,
    ),
    Invariant(
        id="G01",
        sentence="no change begins that nobody allowed",
        reason="Recommend is the default because people want to see what it would do before it does",
        broken=approved,
    ),
    Invariant(
        id="G03",
        sentence="no change begins while a person has paused",
        reason="whoever says stop must not have to wonder whether he spelt it right",
        broken=not_paused,
    ),
    Invariant(
        id="G11",
        sentence="no change begins before the cooldown of the last one is over",
        reason="a change needs time to show what it does",
        broken=rested,
    ),
    Invariant(
        id="G12",
        sentence="no more changes begin in 24 hours than the budget allows",
        reason="whatever is wrong with the operator, it is wrong a few times a day at most",
        broken=within_budget,
    ),
    Invariant(
        id="G31",
        sentence="no change begins while the circuit is open",
        reason="repeated harm ends the experiments until a person looks",
        broken=circuit_closed,
    ),
    Invariant(
        id="T35",
        sentence="a status stays far below what the API server takes",
        reason="a write that is refused for its size would end every rollback",
        broken=small,
        of_any_status=True,
    ),
)
