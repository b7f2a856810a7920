"""The remembered changes of a service on a line of time, as inline SVG: when, how long, and how they ended.

A lane for each kind of ending, so that no colour has to be told apart; each mark is a link to the entry below it.
Coordinates are shares of the width: the line is as wide as the page, and its texts keep their size on a phone.
Must not: trust a text, or leave out silently what has no time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.status import ActiveChange, HistoryEntry, Outcome
from vllm_autotuner.api.wording import counted
from vllm_autotuner.overview.history_rows import entry_values
from vllm_autotuner.overview.html_page import safe
from vllm_autotuner.overview.number_format import moment

__all__ = ["change_timeline", "entry_id"]

LANES: Final[Mapping[str, str]] = {
    Outcome.SUCCEEDED: "kept",
    Outcome.ROLLED_BACK: "rolled back",
    Outcome.ROLLBACK_FAILED: "rollback failed",
    Outcome.REJECTED: "rejected",
    Outcome.SUPERSEDED: "superseded",
}
UNDER_WAY: Final = "under way"
LANE_HEIGHT: Final = 40
"""Pixels: a label, and a mark that a finger can hit."""
LEFT, RIGHT = 2.0, 98.0
"""Percent of the width: the round ends of the first and the last mark stay inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    lane: str
    begin: datetime
    end: datetime
    told: str
    target: str


def entry_id(identity: str, index: int) -> str:
    """The id of the entry of a change on the page; `index` counts from the oldest, below zero is the one under way."""
    return f"{identity}-change-{index if index >= 0 else 'under-way'}"


def change_timeline(
    history: Sequence[HistoryEntry], active: ActiveChange | None, *, now: datetime, identity: str
) -> str:
    """Return the figure; empty without a change whose times are known. `identity`: the id of the section around it."""
    marks = [*_ended(history, identity=identity), *_under_way(active, now=now, identity=identity)]
    if not marks:
        return ""
    # As long as it takes to see apart what is minutes long, and never of no length.
    begin, end = min(mark.begin for mark in marks), max(now, *(mark.end for mark in marks))
    span = max(end - begin, timedelta(minutes=1))
    lanes = [lane for lane in (*LANES.values(), UNDER_WAY) if any(mark.lane == lane for mark in marks)]
    drawn = "".join(
        _lane(lane, [mark for mark in marks if mark.lane == lane], begin, span, at=at) for at, lane in enumerate(lanes)
    )
    missing = len(history) - sum(mark.lane != UNDER_WAY for mark in marks)
    besides = f"; {counted(missing, 'change')} without a time not shown" if missing else ""
    caption = f"{moment(begin.isoformat())} to {moment(end.isoformat())}{besides}. Each mark leads to its entry below."
    return (
        f'<figure class="timeline"><svg role="group" aria-label="Changes over time" width="100%" '
        f'height="{len(lanes) * LANE_HEIGHT}">{drawn}</svg><figcaption>{safe(caption)}</figcaption></figure>'
    )


def _ended(history: Sequence[HistoryEntry], *, identity: str) -> Iterator[_Mark]:
    for index, entry in enumerate(history):
        end = entry.finished_at or entry.started_at
        if end is None:
            continue
        # A clock that was set back must not draw a mark that ends before it begins.
        begin = min(entry.started_at or end, end)
        yield _Mark(
            lane=LANES[entry.outcome],
            begin=begin,
            end=end,
            told=f"{moment(end.isoformat())} {entry_values(to_wire(entry))}: {LANES[entry.outcome]}",
            target=entry_id(identity, index),
        )


def _under_way(active: ActiveChange | None, *, now: datetime, identity: str) -> Iterator[_Mark]:
    if active is not None and active.started_at is not None:
        yield _Mark(
            lane=UNDER_WAY,
            begin=min(active.started_at, now),
            end=now,
            told=f"{entry_values(to_wire(active))}: {active.state.value} since {moment(active.started_at.isoformat())}",
            target=entry_id(identity, -1),
        )


def _lane(lane: str, marks: Sequence[_Mark], begin: datetime, span: timedelta, *, at: int) -> str:
    top = at * LANE_HEIGHT

    def across(moment: datetime) -> str:
        return f"{LEFT + (RIGHT - LEFT) * ((moment - begin) / span):.2f}%"

    drawn = "".join(
        f'<a href="#{safe(mark.target)}" aria-label="{safe(mark.told)}"><title>{safe(mark.told)}</title>'
        f'<line x1="{across(mark.begin)}" x2="{across(mark.end)}" y1="{top + 28}" y2="{top + 28}"/></a>'
        for mark in marks
    )
    return (
        f'<text x="0" y="{top + 14}">{safe(lane)}</text>'
        f'<line class="axis" x1="0" x2="100%" y1="{top + 28}" y2="{top + 28}"/>'
        f'<g class="lane-{safe(lane.replace(" ", "-"))}">{drawn}</g>'
    )
