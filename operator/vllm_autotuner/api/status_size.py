"""Keeps a status small: what explains the past gives way before what the operator needs to go on.

Separate from `status`, whose limits are of single lists and texts: each is sensible alone, and together they are three
times what an object may cost the API server, etcd and every watch of it.
Must not: drop what a decision depends on: the active change, the failure memory, the circuit, the budget.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from vllm_autotuner.api.change_records import MEASUREMENTS_LENGTH
from vllm_autotuner.budgets import STATUS_BYTES

__all__ = ["fitted"]

Wire = dict[str, Any]
SHORT: Final = 120
"""Characters to which texts are cut where a status is too large: a sentence."""
FEW: Final = 4
"""Pieces of evidence and past changes that are kept then: the most important and the newest ones."""
READ_BY_PEOPLE: Final = frozenset({"answer", "message", "note", "reason", "replicasReason", "stateReason"})


def fitted(status: Wire) -> Wire:
    """Return a status as it is sent, with less of its past while it is larger than the budget. Same in, same out."""
    if _size(status) <= STATUS_BYTES.limit:
        return status
    STATUS_BYTES.exceeded()
    status = json.loads(json.dumps(status))
    for _ in _less_and_less(status):
        if _size(status) <= STATUS_BYTES.limit:
            break
    return status


def _size(status: Wire) -> int:
    return len(json.dumps(status, separators=(",", ":")))


def _less_and_less(status: Wire) -> Iterator[None]:
    """Take one thing after the other out of a status, the least important first."""
    change = status.get("activeChange", {})
    if "bake" in change:
        # A bake is compared with the newest of them.
        for side in ("last", "reference"):
            if side in change.get("analysis", {}):
                del change["analysis"][side][:-MEASUREMENTS_LENGTH]
        yield
    history = status.get("history", [])
    for entry in history:
        entry.pop("grounds", None)
        yield
    for _ in range(len(status.get("trackRecord", []))):
        del status["trackRecord"][0]
        yield
    if "gpuSteps" in status:
        del status["gpuSteps"][:-FEW]
        yield
    for holder, name in (("diagnosis", "evidence"), ("diagnosis", "contributing"), ("recommendation", "predicted")):
        if name in status.get(holder, {}):
            del status[holder][name][FEW:]
            yield
    for entry in history[:-1]:
        entry.pop("before", None)
        entry.pop("after", None)
        yield
    _shorten(status)
    yield
    while len(history) > FEW:
        del history[0]
        yield


def _shorten(value: Any) -> None:
    """Cut every text that people read."""
    if isinstance(value, list):
        for each in value:
            _shorten(each)
    elif isinstance(value, dict):
        for name, child in value.items():
            if name in READ_BY_PEOPLE and len(child) > SHORT:
                value[name] = child[: SHORT - 1] + "…"
            else:
                _shorten(child)
