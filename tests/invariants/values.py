"""I2, I3, I6, I12 and T35: what runs, what it may run, and what is left behind. Each a function of one moment."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tests.invariants.kstatus import read
from tests.invariants.moment import NOTHING, Moment, Object, floor_of

KNOBS: Final = ("maxNumSeqs", "maxModelLen", "kvCacheDtype", "tensorParallelSize")
OPERATOR: Final = "vllm-autotuner"
LARGEST_STATUS: Final = 64 * 1024
"""Bytes of a status (T35): a twentieth of what etcd takes by default, and every watcher gets it with every write."""


def floor_holds(moment: Moment) -> Iterator[str]:
    """Serving pods against spec.replicas or spec.scaling.minReplicas, unless pods were removed from outside."""
    after, past = moment.after, moment.past
    if moment.old is None or moment.new is None or moment.began or after.ready is None or not past.floor_held:
        return
    if past.harmed or after.harmed or (moment.before is not None and moment.before.spec != after.spec):
        return
    floor = floor_of(after.spec)
    if after.ready < floor:
        yield f"{after.ready} of {floor} pod(s) serve while change {moment.new['id']} is {moment.new['state']}"


def within_bounds(moment: Moment) -> Iterator[str]:
    """The values in status.effective, in a beginning change, and in the Deployment (against every past spec).

    An adopted Deployment has values of its own; for it, only the value of a beginning change is checked.
    """
    after = moment.after
    if after.spec.get("engine") is None:
        if moment.began is not None:
            knob, value = moment.began["knob"], moment.began["to"].get(moment.began["knob"])
            if not _inside((after.spec.get("tuning") or NOTHING).get(knob), value):
                yield f"the new change has {knob}={value}, which the spec does not allow"
        return
    specs = (*moment.past.specs, after.spec)
    if after.status.get("observedGeneration") == after.generation and moment.written:
        asked: dict[str, Object] = {}
        if after.change is None and after.status.get("effective"):
            asked["status.effective"] = after.status["effective"]
        if moment.began is not None:
            asked["the new change"] = moment.began["to"]
        # A spec that cannot be served is not followed: what an earlier one asked for goes on.
        followed = specs if "Stalled" in read(after.status, generation=after.generation).true else (after.spec,)
        for name, knobs in asked.items():
            yield from (f"{name} has {text}" for text in _outside(knobs, followed, earlier=specs))
    if after.runs is not None and (moment.before is None or moment.before.runs != after.runs):
        yield from (f"the Deployment asks for {text}" for text in _outside(after.runs, specs, earlier=specs))


def _outside(knobs: Object, specs: Iterable[Object], *, earlier: Iterable[Object]) -> Iterator[str]:
    for knob in KNOBS:
        value = knobs.get(knob)
        if not any(_allows(spec, knob, value, earlier=earlier) for spec in specs):
            yield f"{knob}={value}, which the spec neither sets nor allows"


def _allows(spec: Object, knob: str, value: Any, *, earlier: Iterable[Object]) -> bool:
    if value == (spec.get("engine") or NOTHING).get(knob):
        return True
    bounds = (spec.get("tuning") or NOTHING).get(knob)
    if bounds is None:
        # Without bounds nothing more is changed; what was found inside earlier ones stays.
        return any(_inside((each.get("tuning") or NOTHING).get(knob), value) for each in earlier)
    return _inside(bounds, value)


def _inside(bounds: Object | None, value: Any) -> bool:
    if bounds is None or value is None:
        return False
    if "allowed" in bounds:
        return value in bounds["allowed"]
    return bool(bounds["min"] <= value <= bounds["max"])


def spec_untouched(moment: Moment) -> Iterator[str]:
    """The managed fields of the object: the operator's field manager owns nothing below `spec`."""
    for entry in moment.after.service["metadata"].get("managedFields") or ():
        if entry["manager"] == OPERATOR and "f:spec" in (entry.get("fieldsV1") or NOTHING):
            yield "the operator wrote the spec"


def no_orphans(moment: Moment) -> Iterator[str]:
    """The change label of every additional Deployment of the service; one of another change is gone after two ticks."""
    after = moment.after
    current = after.change["id"] if after.change is not None else None
    others = sorted(name for name, change in (after.trials or {}).items() if change != current)
    if others and after.settled:
        yield f"{', '.join(others)} without a change under way"


def small(moment: Moment) -> Iterator[str]:
    """The size of the status as JSON, in bytes."""
    if not moment.written:
        return
    size = len(json.dumps(moment.after.status, separators=(",", ":")).encode())
    if size >= LARGEST_STATUS:
        yield f"{size} bytes, less than {LARGEST_STATUS} are allowed"
