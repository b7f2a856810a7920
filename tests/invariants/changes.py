"""I1, I4, I5, I7, I8, I10 and I11: how a change begins, moves and ends. Each a function of one moment.

The table of moves is that of the design, said a second time: a mistake in the product's table is not believed here.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from tests.invariants.leave import retried
from tests.invariants.moment import ENDINGS, NOTHING, Moment, environment_of

from vllm_autotuner.api.change_records import ChangeTarget
from vllm_autotuner.change.comparison import LOOKS

_UNDOABLE: Final = ("Provisioning", "Verifying", "WarmingUp", "Analyzing", "Held", "Promoting", "Baking")
MOVES: Final[Mapping[str, frozenset[str]]] = {
    "Proposed": frozenset({"Provisioning"}),
    "Provisioning": frozenset({"Verifying"}),
    "Verifying": frozenset({"WarmingUp"}),
    "WarmingUp": frozenset({"Analyzing", "Baking", "Held"}),
    "Analyzing": frozenset({"Promoting", "Baking", "Held"}),
    "Held": frozenset({"WarmingUp", "Analyzing"}),
    "Promoting": frozenset({"Baking"}),
    "Baking": frozenset(),
    "RollingBack": frozenset(),
}
"""Forward moves; besides, whatever was touched may be undone."""
LAST_STATES: Final[Mapping[str, frozenset[str]]] = {
    "Succeeded": frozenset({"Baking"}),
    "RolledBack": frozenset({"RollingBack"}),
    "RollbackFailed": frozenset({"RollingBack"}),
    "Rejected": frozenset({"Proposed", "Provisioning"}),
}
"""From which states a change may end so. A user who edits the spec or deletes the service ends it in any."""


def one_change(moment: Moment) -> Iterator[str]:
    """No write replaces one change by another, the daily budget counts each change, and the cluster limit holds."""
    old, new = moment.old, moment.new
    if old is not None and new is not None and old["id"] != new["id"]:
        yield f"change {new['id']} began in the write that ended {old['id']}"
    if moment.before is not None:
        before, after = moment.before.status.get("budget") or NOTHING, moment.after.status.get("budget") or NOTHING
        same_day = before.get("windowStart") in (None, after.get("windowStart"))
        spent = after.get("changesToday", 0) - (before.get("changesToday", 0) if same_day else 0)
        if spent != int(moment.began is not None):
            yield f"{spent} counted in the budget while {int(moment.began is not None)} began"
    most = moment.after.most_at_once
    if moment.began is not None and most is not None and moment.after.others + 1 > most:
        yield f"{moment.after.others + 1} changes at once, {most} are allowed"


def way_back(moment: Moment) -> Iterator[str]:
    """All fields are present; when a change begins, `from` is the last known good configuration.

    A service that has never started has none: a change that is to make it start returns to what the user wrote.
    """
    change = moment.new
    if change is None or not moment.written:
        return
    missing = [name for name in ("deadline", "from", "to", "stateSince", "startedAt") if not change.get(name)]
    good = moment.after.status.get("lastKnownGood")
    missing += [] if good or change.get("target") == ChangeTarget.START else ["lastKnownGood"]
    if missing:
        yield f"change {change['id']} has no {', '.join(missing)}"
    elif moment.began is not None and good and good.get("configHash") != change["from"].get("configHash"):
        yield f"change {change['id']} starts from {change['from']}, the last known good is {good}"


def last_known_good(moment: Moment) -> Iterator[str]:
    """Otherwise it changes only without an active change, to the configuration that the service runs as specified."""
    before, after = moment.before, moment.after
    if before is None:
        return
    old, new = (seen.status.get("lastKnownGood") or NOTHING for seen in (before, after))
    if old.get("configHash") == new.get("configHash"):
        return
    if not new:
        yield "the last known good configuration was forgotten"
    elif moment.new is not None and moment.began is None:
        yield f"it changed while change {moment.new['id']} was {moment.new['state']}"
    elif moment.entry is not None and moment.over is not None and moment.entry["outcome"] == "Succeeded":
        if new.get("configHash") != moment.over["to"].get("configHash"):
            yield f"{moment.over['id']} succeeded with {moment.over['to']}, and the last known good is {new}"
    elif new.get("configHash") != (after.status.get("effective") or NOTHING).get("configHash"):
        yield f"it became {new}, which is not what the service is asked to run"


def _asked(change: Mapping[str, Any], name: str) -> object:
    """What a change is about; the hash of that is the rendering's, and another version renders it anew (G49)."""
    value = change.get(name)
    return {each: value[each] for each in value if each != "configHash"} if isinstance(value, dict) else value


def moves(moment: Moment) -> Iterator[str]:
    """One transition per write, from the table in docs/invariants.md; Held returns to the state before it."""
    old, new, over = moment.old, moment.new, moment.over
    if moment.began is not None and moment.began["state"] not in ("Proposed", "Provisioning"):
        yield f"a change began as {moment.began['state']}"
    if over is not None and moment.entry is not None:
        outcome, state = moment.entry["outcome"], over["state"]
        if outcome in LAST_STATES and state not in LAST_STATES[outcome]:
            yield f"{state} -> {outcome}"
    if old is None or new is None or old["id"] != new["id"]:
        return
    if any(_asked(old, name) != _asked(new, name) for name in ("from", "to", "knob", "startedAt")):
        yield f"change {new['id']} became another one under way"
    before, after = old["state"], new["state"]
    if before == after:
        return
    if after not in MOVES.get(before, ()) and not (after == "RollingBack" and before in _UNDOABLE):
        yield f"{before} -> {after}"
    elif before == "Held" and after != "RollingBack" and after != old.get("resumeState", after):
        yield f"Held -> {after}, but {old.get('resumeState')} was held"


def ended_once(moment: Moment) -> Iterator[str]:
    """An Event may follow its status by one tick; no Event is repeated."""
    after, past = moment.after, moment.past
    ids = [entry["id"] for entry in after.history]
    yield from (f"change {each} stands in the history twice" for each in {*ids} if ids.count(each) > 1)
    if moment.over is not None and moment.entry is None:
        yield f"change {moment.over['id']} is over and not in the history"
    if moment.began is not None and moment.began["id"] in past.begun:
        yield f"change {moment.began['id']} began a second time"
    if moment.before is not None:
        known = {entry["id"] for entry in moment.before.history} | ({moment.over["id"]} if moment.over else set())
        yield from (f"the history has {each}, which never was under way" for each in ids if each not in known)
        if ids and not {entry["id"] for entry in moment.before.history} & {*ids} and moment.before.history:
            yield "the history was forgotten"
    if after.told is None:
        return
    for outcome in ENDINGS:
        ended, told = past.ended.get(outcome, 0), after.told.get(f"Change{outcome}", 0)
        ended += sum(entry["outcome"] == outcome and entry["id"] not in past.filed for entry in after.history)
        if told > ended or (after.settled and told < ended):
            yield f"{ended} change(s) ended {outcome}, and {told} Event(s) say so"


def not_repeated(moment: Moment) -> Iterator[str]:
    """The same knob and value, in the same image, flags, model and device, before `retryAfter`.

    A rejected value: not before the user's retry, which may be part of the same write.
    """
    change, before = moment.began, moment.before
    if change is None or before is None:
        return
    here, begins = environment_of(moment.after.spec), _time(change["startedAt"])
    for entry in before.status.get("failureMemory") or ():
        same = (entry["knob"], entry["value"]) == (change["knob"], change["toValue"])
        rests = entry.get("retryAfter") is None or begins < _time(entry["retryAfter"])
        if entry.get("declinedAt"):
            rests = not retried(moment) or (entry.get("failures", 1) > 0 and rests)
        if same and rests and moment.past.failed_in.get(entry.get("environment", "")) == here:
            yield f"{entry['candidate']} failed and must not be retried until {entry.get('retryAfter')}"


def measured(moment: Moment) -> Iterator[str]:
    """The counted windows and the measurements in the history.

    Engines that did not start at all have nothing to compare with: that they serve is what their change was for.
    """
    entry, over = moment.entry, moment.over
    if entry is None or over is None or entry["outcome"] != "Succeeded" or over.get("target") == ChangeTarget.START:
        return
    counted = over.get("analysis") or NOTHING
    seen = sum(counted.get(name, 0) for name in ("windowsGood", "windowsBad", "windowsInconclusive"))
    if seen < LOOKS[0]:
        yield f"{seen} window(s) with data, {LOOKS[0]} are needed"
    for side in ("before", "after"):
        lacking = [name for name in ("ttftSeconds", "tpotSeconds") if (entry.get(side) or NOTHING).get(name) is None]
        if lacking:
            yield f"{side}: {', '.join(lacking)} not measured"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
