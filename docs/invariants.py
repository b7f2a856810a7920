"""Writes `invariants.md` from the invariants themselves: `make docs`.

Apart from the product, because only this repository needs the page. A test compares the page with its source.
Must not: contain facts of its own.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.invariants.catalogue import INVARIANTS, Invariant
from tests.invariants.changes import LAST_STATES, MOVES
from tests.invariants.kstatus import RULES

PAGE = Path(__file__).with_name("invariants.md")

HEAD = """# Invariants

Generated from `tests/invariants` by `make docs`; do not edit. An invariant holds at every moment, for any behavior of
users, engines, clusters and clocks. Each is a function of two consecutive observations of what is visible from outside:
the VLLMService, its Deployments and pods, and its Events. Invariants are checked

- on every status that the tests in `tests/control` write, including random runs of 10,000 steps
  (`tests/control/any_fleet.py`; `make soak STEPS=1000000` continues with random seeds and prints them);
- by an independent monitor that watches the API server during the end-to-end tests (`e2e/monitor.py`) and fails a test
  with the id of the violated invariant.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_section(each) for each in INVARIANTS), *_kstatus(), *_moves()])


def _section(each: Invariant) -> str:
    lines = (f"## {each.id}. {_sentence(each.sentence)}", "", f"Why: {each.reason}.", "", f"Checked: {each.check}", "")
    return "\n".join(lines)


def _kstatus() -> Iterator[str]:
    yield "## The rules of I9"
    yield ""
    yield "| rule | requirement |"
    yield "|---|---|"
    yield from (f"| {rule.id} | {rule.text} |" for rule in RULES)
    yield ""


def _moves() -> Iterator[str]:
    yield "## The state transitions of I7"
    yield ""
    yield "In addition, any state from Provisioning to Baking may move to RollingBack."
    yield ""
    yield "| from | to |"
    yield "|---|---|"
    yield from (f"| {before} | {', '.join(sorted(after)) or '-'} |" for before, after in MOVES.items())
    yield ""
    yield "An edited spec or a deleted service ends a change in any state. Otherwise:"
    yield ""
    yield "| outcome | from |"
    yield "|---|---|"
    yield from (f"| {outcome} | {', '.join(sorted(states))} |" for outcome, states in LAST_STATES.items())
    yield ""


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
