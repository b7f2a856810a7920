"""The change in progress as text: value, strategy, state, measurements so far, and how to stop it.

Apart from the rest of the status, because this is what an operator on call needs first.
Must not: judge. Everything comes from the object.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from vllm_autotuner.cli.terminal import printable
from vllm_autotuner.overview.number_format import figure, moment

__all__ = ["change_lines"]

_STATES: Final = {
    "Proposed": "decided; nothing has changed yet",
    "Provisioning": "pods with the new value are starting",
    "Verifying": "checking that the running engine uses the new value",
    "WarmingUp": "the new value serves requests; not measured yet",
    "Analyzing": "both values are being measured",
    "Held": "the measurement is paused",
    "Promoting": "the canary passed; the service's own pods are replaced one by one, new before old",
    "Baking": "all pods run the new value; it is monitored before the change succeeds",
    "RollingBack": "the previous value is being restored",
}
"""What each state means."""
_UNTOUCHED: Final = frozenset({"Proposed", "Provisioning", "Verifying", "WarmingUp", "Analyzing"})
"""States of a canary in which the service's own pods are unchanged."""


def change_lines(change: Mapping[str, Any], *, namespace: str, name: str) -> Iterator[Text | Table]:
    """Yield what to print."""
    canary = change.get("strategy") == "Canary"
    values = f"{change['knob']} {change.get('fromValue', 'default')} -> {change['toValue']}"
    aim = f", to improve {change['target']}" if change.get("target") else ""
    how = "by canary" if canary else "in place"
    yield Text(printable(f"In progress: {values} {how}{aim}, since {moment(change.get('startedAt'))}"))
    rows = Table.grid(padding=(0, 2))
    for what, text in _rows(change, canary=canary):
        rows.add_row(f"  {what}", Text(printable(text)))
    rows.add_row(
        "  to stop",
        f"vllm-autotuner rollback {name} -n {namespace}",
    )
    yield rows


def _rows(change: Mapping[str, Any], *, canary: bool) -> Iterator[tuple[str, str]]:
    state = change["state"]
    limit = f"; deadline {moment(change['deadline'])}" if change.get("deadline") else ""
    yield "state", f"{state} since {moment(change.get('stateSince'))}: {_STATES.get(state, 'unknown state')}{limit}"
    if (reason := change.get("stateReason")) and state != "Analyzing":
        yield "reason", reason
    if change.get("reason"):
        yield "why", change["reason"]
    knob = change["knob"]
    if ref := change.get("canaryRef"):
        yield "canary", f"{ref['name']}, one additional pod with {knob}={change['toValue']}"
    if ref := change.get("baselineRef"):
        yield "baseline", f"{ref['name']}, started at the same time, with {knob}={change.get('fromValue', 'default')}"
    elif canary and change.get("canaryRef"):
        yield "baseline", f"the service's own pods, with {knob}={change.get('fromValue', 'default')}"
    if canary and state in _UNTOUCHED and not change.get("promoted"):
        yield "so far", "the service's own pods are unchanged; stopping only deletes the canary"
    if measured := _measured(change):
        yield "measured", measured


def _measured(change: Mapping[str, Any]) -> str:
    """The newest window of both sides, and how many there are."""
    analysis = change.get("analysis") or {}
    if not (last := analysis.get("last")):
        return ""
    reference = analysis.get("reference") or ([change["baseline"]] if change.get("baseline") else [])
    if not reference:
        return f"{len(last)} window(s), without a baseline to compare with"
    pairs = (
        f"{label} {figure(reference[-1].get(key), 's')} -> {figure(last[-1].get(key), 's')}"
        for label, key in (("TTFT", "ttftSeconds"), ("TPOT", "tpotSeconds"))
    )
    between = "at the same time" if analysis.get("reference") else "before the change -> now"
    return f"{len(last)} window(s), newest: {', '.join(pairs)} ({between})"
