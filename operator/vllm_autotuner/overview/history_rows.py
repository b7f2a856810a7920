"""A finished change in words: evidence, predicted and measured effects, GPUs and outcome.

Apart from the terminal and the pages, which show the same. Must not: judge. Everything comes from the history in the
status; fields that an earlier version lacked are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from vllm_autotuner.api.gpu_steps import GpuStep
from vllm_autotuner.overview.number_format import figure
from vllm_autotuner.overview.savings_text import told_change

__all__ = ["entry_rows", "entry_took", "entry_values", "fact_text", "predicted_effects"]

_LEVELS: Final = (("TTFT", "ttftSeconds", "s"), ("TPOT", "tpotSeconds", "s"), ("tokens", "tokensPerSecond", "tokens/s"))


def entry_values(entry: Mapping[str, Any]) -> str:
    """The knob and its two values."""
    return f"{entry['knob']} {entry.get('fromValue', 'default')} -> {entry.get('toValue')}"


def entry_took(entry: Mapping[str, Any]) -> str:
    """How long it took; empty where not known."""
    if not (entry.get("startedAt") and entry.get("finishedAt")):
        return ""
    seconds = (datetime.fromisoformat(entry["finishedAt"]) - datetime.fromisoformat(entry["startedAt"])).total_seconds()
    return f"{int(seconds // 60)} min {int(seconds % 60)} s" if seconds >= 60 else f"{seconds:.0f} s"


def entry_rows(entry: Mapping[str, Any], *, steps: Sequence[GpuStep]) -> Iterator[tuple[str, str]]:
    """Yield what is known of a change and how it is called. `steps`: the GPUs that its service asked for."""
    grounds = entry.get("grounds") or {}
    if grounds:
        facts = "; ".join(fact_text(each) for each in grounds.get("evidence") or [])
        yield "decided on", f"{grounds['diagnosis']}{': ' if facts else ''}{facts}"
    if effects := grounds.get("predicted"):
        sure = f" (confidence {grounds['confidence']})" if grounds.get("confidence") else ""
        yield "predicted", predicted_effects(effects) + sure
    if measured := _measured(entry):
        yield "measured", measured
    if gpus := told_change(entry, steps):
        yield "GPUs", gpus
    if entry.get("reason"):
        yield "reason", entry["reason"]


def predicted_effects(effects: Sequence[Mapping[str, Any]]) -> str:
    """Return all predicted effects; where the model moves nothing, that is no forecast, and named as such."""
    moved, still = [], []
    for effect in effects:
        unit = effect.get("unit") or ""
        current, predicted = (figure(effect.get(side), unit) for side in ("current", "predicted"))
        if current == predicted and effect.get("predicted") is not None:
            still.append((effect["name"], current))
        else:
            moved.append(f"{effect['name']} {current} -> {predicted}")
    if not moved:
        return f"the effect on {', '.join(name for name, _ in still)} is not modelled" if still else ""
    unchanged = f"; unchanged: {', '.join(f'{name} {current}' for name, current in still)}" if still else ""
    return f"by the model {', '.join(moved)}{unchanged}"


def fact_text(fact: Mapping[str, Any]) -> str:
    """Return one piece of evidence with its threshold."""
    unit = fact.get("unit") or ""
    limit = "" if fact.get("threshold") is None else f" (threshold {figure(fact['threshold'], unit)})"
    return f"{fact['name']} {figure(fact.get('value'), unit)}{limit}"


def _measured(entry: Mapping[str, Any]) -> str:
    """Both sides of the last window; empty when the new value was never measured."""
    before, after = entry.get("before") or {}, entry.get("after") or {}
    if not after:
        return ""
    levels = (
        f"{label} {figure(before.get(key), unit)} -> {figure(after.get(key), unit)}"
        for label, key, unit in _LEVELS
        if key in before or key in after
    )
    counts = [
        f"{entry[key]} {what}" for key, what in (("windowsGood", "passed"), ("windowsBad", "failed")) if key in entry
    ]
    return ", ".join(levels) + (f"; windows: {', '.join(counts)}" if counts else "")
