"""The answer of `diagnose` as text: diagnosis, evidence, recommendation and advice.

Must not: decide, or print a number that the JSON lacks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vllm_autotuner.api.wording import with_unit
from vllm_autotuner.cli.diagnosis.as_json import flag_of
from vllm_autotuner.cli.evaluate.evaluation import Evaluated, ServiceReport
from vllm_autotuner.cli.evaluate.moments import Span, rfc3339
from vllm_autotuner.cli.evaluate.worst import worst_of
from vllm_autotuner.cli.terminal import printable
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.diagnosis.evidence import Evidence
from vllm_autotuner.overview.class_looks import Severity, look_of
from vllm_autotuner.planning.advice import ADVICE, NOT_TUNING
from vllm_autotuner.planning.proposal import Proposal

__all__ = ["IN_WORDS", "panel", "proposal_lines", "quantity", "seconds", "since", "title_of"]

IN_WORDS: Final[Mapping[DiagnosisClass, str]] = {
    DiagnosisClass.METRICS_BLIND: "no usable metrics",
    DiagnosisClass.STARTUP_FAILURE: "pods do not start",
    DiagnosisClass.COLD_START: "the engines have just started",
    DiagnosisClass.WEDGED: "the engine is stuck",
    DiagnosisClass.IDLE: "no requests",
    DiagnosisClass.DEFERRED_QUEUE: "requests wait, but not for capacity",
    DiagnosisClass.PREEMPTION_THRASH: "running requests are preempted and recomputed",
    DiagnosisClass.KV_CACHE_SATURATED: "the KV cache is full",
    DiagnosisClass.CONCURRENCY_CAPPED: "all running-sequence slots (max-num-seqs) are in use",
    DiagnosisClass.PAST_TPOT_KNEE: "the batch is too large for the TPOT objective",
    DiagnosisClass.DECODE_BANDWIDTH_BOUND: "TPOT is slow even for a single sequence",
    DiagnosisClass.COMMUNICATION_BOUND: "communication between GPUs limits throughput",
    DiagnosisClass.PREFILL_BOUND: "prefill of prompts takes too long",
    DiagnosisClass.HEAD_OF_LINE_BLOCKING: "a few large requests block the others",
    DiagnosisClass.RUNAWAY_OUTPUTS: "many outputs run to their token limit",
    DiagnosisClass.CONTEXT_OVERSIZED: "max-model-len is larger than needed",
    DiagnosisClass.OVERLOADED: "more requests than the replicas can serve",
    DiagnosisClass.UNDERUTILIZED: "one replica fewer is enough",
    DiagnosisClass.HEALTHY: "no bottleneck",
    DiagnosisClass.UNCLEAR: "no single cause identified",
}
"""Each class in a few words."""


def panel(report: ServiceReport, *, at: float, span: Span | None) -> Panel:
    """One service."""
    diagnosis, worst = report.diagnosis, worst_of(report.levels) if report.timeline else None
    colour = look_of(diagnosis.primary if worst is None else worst.named).terminal
    surety = f"   confidence {diagnosis.confidence.value}, since {since(diagnosis, at=at)}"
    parts: list[RenderableType] = []
    if worst is None:
        parts.append(_named(diagnosis.primary, after=surety))
    else:
        share = f"   {quantity(worst.share, 'share')} of the time"
        parts += [_named(worst.named, after=share), Text(), _named(diagnosis.primary, "At the end: ", surety)]
    parts.append(Text(printable(diagnosis.message)))
    if diagnosis.evidence:
        parts.append(_evidence_table(diagnosis.evidence))
    parts += _section("Contributing", (f"{one.diagnosis.value}: {one.message}" for one in diagnosis.contributing))
    if report.plan.proposal is not None:
        parts += _section("Recommendation", proposal_lines(report.plan.proposal))
    parts += _section("Considered and rejected", report.plan.passed_over)
    parts += _section("What to do", ADVICE[diagnosis.primary if worst is None else worst.named])
    if look_of(diagnosis.primary).severity <= Severity.UNSURE:
        parts += _section("Not a tuning problem", NOT_TUNING)
    if report.timeline:
        parts.append(_timeline_table(report.timeline, span=span))
    return Panel(
        Group(*parts), title=Text(printable(title_of(report))), title_align="left", border_style=colour, padding=(0, 1)
    )


def _named(named: DiagnosisClass, before: str = "", after: str = "") -> Text:
    return Text.assemble(
        before, (named.value, f"bold {look_of(named).terminal}"), f": {IN_WORDS[named]}", (after, "dim")
    )


def title_of(report: ServiceReport) -> str:
    """Name a service, with its model where the names differ. Pass it through `printable` before printing."""
    title = "/".join(filter(None, (report.service.namespace, report.service.name)))
    return f"{title} ({report.model})" if report.model and report.model != report.service.name else title


def since(diagnosis: Diagnosis, *, at: float) -> str:
    """Since when a class holds."""
    # Evaluation begins somewhere: how long the class held before that is unknown.
    began = diagnosis.since
    return f"{rfc3339(began)} ({seconds(at - began)} before)" if at > began else "this moment"


def _evidence_table(evidence: Sequence[Evidence]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("evidence")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("threshold", justify="right", no_wrap=True)
    table.add_column("window", justify="right", no_wrap=True)
    table.add_column("note")
    for one in evidence:
        limit = "" if one.threshold is None else quantity(one.threshold, one.unit)
        window = "" if one.window is None else seconds(one.window)
        cells = (one.name, quantity(one.value, one.unit), limit, window, one.note)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def quantity(value: float | None, unit: str) -> str:
    """Write a value as people read it. Worked: 0.0182 s is `18.2 ms`, a share of 0.912 is `91%`."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if unit == "share":
        return f"{value:.0%}" if value >= 0.1 or value == 0 else f"{100 * value:.2g}%"
    if unit == "s":
        return seconds(value)
    return with_unit(f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}", unit)


def seconds(value: float) -> str:
    """Write a duration as people read it."""
    return (
        f"{value * 1000:.3g} ms" if 0 < abs(value) < 1 else f"{value:,.3g} s" if abs(value) < 100 else f"{value:,.0f} s"
    )


def _section(title: str, lines: Iterable[str]) -> list[RenderableType]:
    found = [Text(f"  {printable(line)}") for line in lines]
    return [Text(), Text(title, style="bold"), *found] if found else []


def proposal_lines(proposal: Proposal) -> Iterable[str]:
    """What is recommended, why, and with which effect.

    Both sides of an effect are the model's, which is no more exact about now than about later: what is measured is in
    the evidence. Where nothing moves at all, the model does not know what the knob does.
    """
    now = "not known" if proposal.current is None else str(proposal.current)
    how = flag_of(proposal) or f"{proposal.knob.value} {proposal.value}"
    yield f"{how} (now {now}; confidence {proposal.confidence.value}). {proposal.reason}"
    if proposal.limited_by:
        yield f"Limited by: {proposal.limited_by}."
    moved, still = [], []
    for effect in proposal.predicted:
        current, predicted = quantity(effect.current, effect.unit), quantity(effect.predicted, effect.unit)
        if current == predicted:
            still.append((effect.name, current))
        else:
            moved.append(f"By the model, {effect.name}: {current} -> {predicted}.")
    yield from moved
    if moved and still:
        yield f"By the model, unchanged: {', '.join(f'{name} ({current})' for name, current in still)}."
    elif still:
        yield f"Not modelled: the effect on {', '.join(name for name, _ in still)}."


def _timeline_table(timeline: Sequence[Evaluated], *, span: Span | None) -> Table:
    table = Table(title="Timeline", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in ("from", "to"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("class", "confidence", "contributing"):
        table.add_column(column)
    start = span.first if span is not None else timeline[0].time
    before = start
    for shown, points in groupby(timeline, key=_shown):
        last = [point.time for point in points][-1]
        table.add_row(f"+{before - start:.0f} s", f"+{last - start:.0f} s", *shown)
        before = last
    return table


def _shown(point: Evaluated) -> tuple[str, str, str]:
    diagnosis = point.diagnosis
    contributing = ", ".join(one.diagnosis.value for one in diagnosis.contributing)
    return diagnosis.primary.value, diagnosis.confidence.value, contributing
