"""One VLLMService as HTML: what it is diagnosed with, what was decided and why, what that saved, and its history.

From the object alone, as it is stored. Must not: show a spec beyond mode and replicas, whose arguments and environment
may hold secrets; decide; or trust a text.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from vllm_autotuner.api.conditions import ConditionStatus
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import InvalidService, VLLMService
from vllm_autotuner.api.status import ActiveChange, DiagnosisStatus, Recommendation, VLLMServiceStatus
from vllm_autotuner.overview.change_timeline import change_timeline, entry_id
from vllm_autotuner.overview.gpu_hours import Savings, step_effects
from vllm_autotuner.overview.history_rows import entry_rows, entry_took, entry_values, predicted_effects
from vllm_autotuner.overview.html_page import badge, cell, definitions, listed, number_cell, safe, table
from vllm_autotuner.overview.number_format import figure, moment
from vllm_autotuner.overview.savings_text import told_savings, told_step
from vllm_autotuner.overview.service_row import ALARMS

__all__ = ["service_section"]

_UNHEALTHY: Final = ("MetricsAvailable", "Ready")
"""Conditions that are shown while they do not hold."""


def service_section(
    service: VLLMService | InvalidService, *, savings: Savings, now: datetime, identity: str, beside: str = ""
) -> str:
    """Return the section of one service. `identity`: its id on the page; `beside`: HTML after the diagnosis."""
    status = service.status or VLLMServiceStatus()
    parts = [
        f"<h2>{safe(service.key)}</h2>",
        *_diagnosis(status.diagnosis),
        beside,
        f'<h3 id="{safe(entry_id(identity, -1))}">Decision</h3>{definitions(_decision(service, status))}',
        _gpus(status, savings=savings, now=now),
        _history(status, now=now, identity=identity),
    ]
    return f'<section id="{safe(identity)}">{"".join(parts)}</section>'


def _diagnosis(diagnosis: DiagnosisStatus | None) -> Iterator[str]:
    if diagnosis is None:
        yield "<p>Not diagnosed yet.</p>"
        return
    sure = f"confidence {diagnosis.confidence.value}, " if diagnosis.confidence is not None else ""
    since = f"since {_at(diagnosis.since)}"
    yield f'<p class="verdict">{badge(diagnosis.class_)} <small>{safe(sure + since)}</small></p>'
    yield f"<p>{safe(diagnosis.message)}</p>"
    yield listed("Contributing", (f"{each.class_}: {each.message}" for each in diagnosis.contributing))
    rows = [
        cell(safe(fact.name), label="evidence")
        + number_cell(figure(fact.value, fact.unit or ""), label="value")
        + number_cell("" if fact.threshold is None else figure(fact.threshold, fact.unit or ""), label="threshold")
        + number_cell(fact.window or "", label="window")
        + cell(safe(fact.note or ""), label="note")
        for fact in diagnosis.evidence
    ]
    if rows:
        titles = ("evidence", "value", "threshold", "window", "note")
        yield table(titles, rows, caption="What the diagnosis is based on")


def _decision(service: VLLMService | InvalidService, status: VLLMServiceStatus) -> Iterator[tuple[str, str]]:
    if isinstance(service, InvalidService):
        yield "cannot be read", service.message
    else:
        yield "mode", service.spec.tuning.mode.value
    if (effective := status.effective) is not None and effective.replicas is not None:
        reason = f", because {effective.replicas_reason}" if effective.replicas_reason else ""
        yield "replicas", f"{status.ready_replicas or 0} of {effective.replicas} ready{reason}"
    if status.summary is not None:
        for name, text in (
            ("engine", status.summary.effective),
            ("TTFT / objective", status.summary.ttft),
            ("TPOT / objective", status.summary.tpot),
            ("KV cache", status.summary.kv_usage),
        ):
            if text:
                yield name, text
    if status.active_change is not None:
        yield from _change(status.active_change)
    else:
        yield from _recommendation(status.recommendation)
    for each in status.conditions:
        holds = each.status is ConditionStatus.TRUE
        if (each.type in ALARMS and holds) or (each.type in _UNHEALTHY and not holds):
            yield f"{each.type} {each.status.value}", each.message


def _change(change: ActiveChange) -> Iterator[tuple[str, str]]:
    yield "change under way", f"{entry_values(to_wire(change))}, since {_at(change.started_at)}"
    limit = f"; deadline {_at(change.deadline)}" if change.deadline is not None else ""
    yield "state", f"{change.state.value} since {_at(change.state_since)}{limit}"
    for name, text in (("why", change.reason), ("note", change.state_reason)):
        if text:
            yield name, text


def _recommendation(found: Recommendation | None) -> Iterator[tuple[str, str]]:
    if found is None:
        yield "recommendation", "none"
        return
    yield "recommendation", found.told
    effects = predicted_effects([to_wire(each) for each in found.predicted])
    for name, text in (
        ("why", found.reason),
        ("limited by", found.limited_by),
        ("not applied because of", found.held_by),
        ("predicted", effects),
    ):
        if text:
            yield name, text


def _gpus(status: VLLMServiceStatus, *, savings: Savings, now: datetime) -> str:
    effects = step_effects(status.gpu_steps, until=now)
    steps = "".join(f"<li>{safe(_at(each.step.at))} {safe(told_step(each))}</li>" for each in reversed(effects))
    rows = f"<details><summary>GPUs over time ({len(effects)})</summary><ul>{steps}</ul></details>" if steps else ""
    return f"<h3>GPUs</h3><p>{safe(told_savings(savings))}</p>{rows}"


def _history(status: VLLMServiceStatus, *, now: datetime, identity: str) -> str:
    drawn = change_timeline(status.history, status.active_change, now=now, identity=identity)
    if not status.history:
        return f"<h3>Changes</h3>{drawn}<p>No changes recorded.</p>"
    newest = len(status.history) - 1
    items = "".join(
        _entry(to_wire(entry), status=status, identity=entry_id(identity, index), opened=index == newest)
        for index, entry in reversed(list(enumerate(status.history)))
    )
    return f"<h3>Changes, newest first</h3>{drawn}{items}"


def _entry(entry: Mapping[str, Any], *, status: VLLMServiceStatus, identity: str, opened: bool) -> str:
    facts = [each for each in (moment(entry.get("finishedAt")), entry_values(entry), entry["outcome"]) if each]
    rows = [*entry_rows(entry, steps=status.gpu_steps), ("id", entry["id"]), ("took", entry_took(entry))]
    return (
        f'<details id="{safe(identity)}"{" open" if opened else ""}><summary>{safe("  ".join(facts))}</summary>'
        f"{definitions((name, text) for name, text in rows if text)}</details>"
    )


def _at(at: datetime | None) -> str:
    return moment(None if at is None else at.isoformat())
