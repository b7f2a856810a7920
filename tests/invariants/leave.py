"""G01, G03, G11, G12 and G31: who must have allowed a change that begins. Each a function of one moment.

By the object that was written over: the operator's write is refused when another version lies in between.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from tests.invariants.moment import NOTHING, Moment, Object

PAUSE: Final = "vllm-autotuner.dev/pause"
APPROVE: Final = "vllm-autotuner.dev/approve"
RETRY: Final = "retry"
"""A person's request, by annotation, that ends cooldown and circuit."""
CHANGES_PER_DAY: Final = 2
"""Where the spec says nothing (G12)."""


def approved(moment: Moment) -> Iterator[str]:
    """spec.tuning.mode is Automatic, or Approve with the id of the current recommendation in the annotation."""
    change, mode = moment.began, _tuning(moment).get("mode", "Recommend")
    if change is None or mode == "Automatic":
        return
    said = _annotations(moment).get(APPROVE, "").strip()
    standing = (moment.before.status.get("recommendation") if moment.before else None) or NOTHING
    if mode != "Approve":
        yield f"change {change['id']} began in mode {mode}"
    elif not said or said != standing.get("id"):
        yield f"change {change['id']} began; {said or 'nothing'} was approved, {standing.get('id')} was recommended"
    elif change["toValue"] != standing["recommended"]:
        yield f"{standing['recommended']} was approved, and {change['toValue']} is tried"


def not_paused(moment: Moment) -> Iterator[str]:
    """spec.paused, or the pause annotation with any value except false."""
    if moment.began is None:
        return
    if moment.after.spec.get("paused") or _annotations(moment).get(PAUSE, "false").strip().lower() != "false":
        yield f"change {moment.began['id']} began"


def rested(moment: Moment) -> Iterator[str]:
    """The previous status.cooldownUntil, unless a user's retry ended the cooldown in the same write.

    Where the spec sets no cooldown, a change may begin that goes on from those that ended within it: each of them was
    kept, and none is taken back.
    """
    change, before = moment.began, moment.before.status if moment.before is not None else NOTHING
    until = before.get("cooldownUntil")
    if retried(moment) or change is None or until is None or _time(change["startedAt"]) >= _time(until):
        return
    told = f"change {change['id']} began at {change['startedAt']}, before {until}"
    history = before.get("history") or ()
    if _tuning(moment).get("cooldown") is not None or not history:
        yield told
        return
    begin = _time(change["startedAt"]) - (_time(until) - _time(history[-1]["finishedAt"]))
    recent = [each for each in history if _time(each["finishedAt"]) > begin]
    if any(each["outcome"] != "Succeeded" for each in recent):
        yield told
    elif any(each["knob"] == change["knob"] and not _goes_farther(change, than=each) for each in recent):
        yield f"{told}, and goes back on {change['knob']}"


def within_budget(moment: Moment) -> Iterator[str]:
    """The budget in the status, which counts every change (I1), against spec.tuning.budget.changesPerDay."""
    if moment.began is None:
        return
    allowed = (_tuning(moment).get("budget") or NOTHING).get("changesPerDay", CHANGES_PER_DAY)
    counted = (moment.after.status.get("budget") or NOTHING).get("changesToday", 0)
    if counted > allowed:
        yield f"{counted} changes counted, {allowed} are allowed"


def circuit_closed(moment: Moment) -> Iterator[str]:
    """The previous status.circuit, unless a user's retry closed it in the same write."""
    circuit = (moment.before.status.get("circuit") if moment.before is not None else None) or NOTHING
    if moment.began is None or circuit.get("state") != "Open" or retried(moment):
        return
    if circuit.get("until") is None or _time(moment.began["startedAt"]) < _time(circuit["until"]):
        yield f"change {moment.began['id']} began; open until {circuit.get('until', 'closed manually')}"


def _goes_farther(change: Object, *, than: Object) -> bool:
    texts = (than.get("fromValue"), than.get("toValue"), change.get("toValue"))
    numbers = [int(text) for text in texts if text is not None and text.isdecimal()]
    return len(numbers) == len(texts) and numbers in (sorted(set(numbers)), sorted(set(numbers), reverse=True))


def retried(moment: Moment) -> bool:
    """Whether a retry was acted upon that was not before."""
    before = moment.before.status if moment.before is not None else NOTHING
    known = [each for each in before.get("handledRequests") or () if each["kind"] == RETRY]
    return any(each["kind"] == RETRY and each not in known for each in moment.after.status.get("handledRequests") or ())


def _tuning(moment: Moment) -> Object:
    return moment.after.spec.get("tuning") or NOTHING


def _annotations(moment: Moment) -> dict[str, str]:
    return dict(moment.after.service["metadata"].get("annotations") or {})


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
