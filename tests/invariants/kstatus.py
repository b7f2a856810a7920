"""What kstatus (Argo CD, Flux, `kubectl wait`) reads out of a status, and the rules that keep it from being misled.

The rules are those of Flux' conformance check (fluxcd/pkg, runtime/conditions/check/fail.go; FAIL0010 is about Flux'
own fields), and what the API conventions ask beside them. Over plain objects: what the API server holds, not what our
models would make of it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.invariants.moment import NOTHING, Moment, Object

NEGATIVE: Final = frozenset({"Reconciling", "Stalled", "RollbackFailed"})
"""Conditions that contradict Ready=True when they are True."""
ABNORMAL: Final = NEGATIVE | {"TuningInProgress", "Paused", "CircuitOpen", "OwnershipConflict"}
"""Conditions that are there or not: absent rather than False."""
_REASON: Final = re.compile(r"[A-Z][A-Za-z0-9]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One status as kstatus reads it."""

    generation: int
    observed: int | None
    conditions: Mapping[str, Object]
    repeated: bool

    def status_of(self, kind: str) -> str:
        """True, False, Unknown, or empty when the condition is absent."""
        return str(self.conditions.get(kind, NOTHING).get("status", ""))

    @property
    def ready(self) -> str:
        """Of the condition Ready."""
        return self.status_of("Ready")

    @property
    def true(self) -> frozenset[str]:
        """The types of the conditions that are True."""
        return frozenset(kind for kind in self.conditions if self.status_of(kind) == "True")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule; `id` is Flux' where it has one."""

    id: str
    text: str
    holds: Callable[[Read], bool]


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="FAIL0001",
        text="with Ready=True, no abnormal condition is True",
        holds=lambda read: not (read.ready == "True" and read.true & NEGATIVE),
    ),
    Rule(
        id="FAIL0002",
        text="Ready is always present: without it, kstatus reports the object as Current",
        holds=lambda read: bool(read.ready),
    ),
    Rule(
        id="FAIL0003",
        text="Reconciling=True means Ready is not True",
        holds=lambda read: not ("Reconciling" in read.true and read.ready == "True"),
    ),
    Rule(
        id="FAIL0004",
        text="Stalled=True means Ready=False",
        holds=lambda read: "Stalled" not in read.true or read.ready == "False",
    ),
    Rule(
        id="FAIL0005",
        text="Reconciling and Stalled are never True together",
        holds=lambda read: not {"Reconciling", "Stalled"} <= read.true,
    ),
    Rule(
        id="FAIL0006",
        text="observedGeneration is not ahead of the object",
        holds=lambda read: read.observed is None or read.observed <= read.generation,
    ),
    Rule(
        id="FAIL0007",
        text="an object that was not observed is not Ready",
        holds=lambda read: read.ready != "True" or read.observed == read.generation,
    ),
    Rule(
        id="FAIL0008",
        text="Ready=True refers to the observed generation of the status (FAIL0009 is the same from the root)",
        holds=lambda read: (
            read.ready != "True"
            or read.conditions["Ready"].get("observedGeneration", read.observed) in (None, read.observed)
        ),
    ),
    Rule(
        id="FAIL0011",
        text="Ready=Unknown requires Reconciling=True",
        holds=lambda read: read.ready != "Unknown" or "Reconciling" in read.true,
    ),
    Rule(
        id="once",
        text="a condition type appears once",
        holds=lambda read: not read.repeated,
    ),
    Rule(
        id="abnormal-true",
        text="an abnormal condition is absent rather than False or Unknown",
        holds=lambda read: all(kind in read.true for kind in ABNORMAL & read.conditions.keys()),
    ),
    Rule(
        id="stalls",
        text="RollbackFailed=True requires Stalled=True",
        holds=lambda read: "RollbackFailed" not in read.true or "Stalled" in read.true,
    ),
    Rule(
        id="reason",
        text="every condition has a reason in CamelCase and the time of its last flip",
        holds=lambda read: all(
            _REASON.fullmatch(str(each.get("reason", ""))) and each.get("lastTransitionTime")
            for each in read.conditions.values()
        ),
    ),
)


def read(status: Object, *, generation: int) -> Read:
    """Read a status as kstatus does. `generation` is that of the object which carries it."""
    listed: list[Mapping[str, Any]] = list(status.get("conditions") or ())
    return Read(
        generation=generation,
        observed=status.get("observedGeneration"),
        conditions={each["type"]: each for each in listed},
        repeated=len({each["type"] for each in listed}) < len(listed),
    )


def misleading(status: Object, *, generation: int) -> list[str]:
    """The rules that this status breaks."""
    found = read(status, generation=generation)
    return [f"{rule.id}: {rule.text}" for rule in RULES if not rule.holds(found)]


def conformant(moment: Moment) -> Iterator[str]:
    """Every rule below; in addition, a transition time changes only together with the condition status."""
    after, before = moment.after, moment.before
    if not moment.written or not after.status:
        return
    yield from misleading(after.status, generation=after.generation)
    old = {} if before is None else {each["type"]: each for each in before.status.get("conditions") or ()}
    for each in after.status.get("conditions") or ():
        was = old.get(each["type"])
        if was is None:
            continue
        flipped = was["status"] != each["status"]
        if not flipped and was.get("lastTransitionTime") != each.get("lastTransitionTime"):
            yield f"lastTransitionTime of {each['type']} moved without a flip"
