"""A diagnosis as one self-contained HTML file: no script, nothing fetched, printable.

Every text passes `safe` of `overview.html_page`, which has the pieces of all pages. Must not: decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.cli.diagnosis.text import IN_WORDS, proposal_lines, quantity, seconds, since, title_of
from vllm_autotuner.cli.evaluate.evaluation import Evaluated, ServiceReport
from vllm_autotuner.cli.evaluate.moments import Span, rfc3339
from vllm_autotuner.cli.evaluate.worst import worst_of
from vllm_autotuner.cli.report.plots import NO_PLOT, bands, can_plot, plot
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence
from vllm_autotuner.overview.class_looks import Severity, look_of
from vllm_autotuner.overview.html_page import badge, cell, definitions, document, listed, number_cell, safe, table
from vllm_autotuner.planning.advice import ADVICE, NOT_TUNING

__all__ = ["POLICY", "ReportFacts", "over_time", "page"]

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""Of a file: plots of matplotlib style their elements one by one."""
FEWEST_POINTS: Final = 2
"""Evaluations that a plot needs: one makes no line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """The head of a report."""

    source: str
    """As it may be shown: no credentials."""
    at: float
    span: Span | None
    version: str
    knobs: EngineKnobs
    notes: Sequence[str] = ()


def page(reports: Sequence[ServiceReport], *, facts: ReportFacts) -> str:
    """Return the whole document."""
    title = "vLLM diagnosis: " + ", ".join(title_of(report) for report in reports[:3])
    body = [
        f"<header><h1>{safe(title)}</h1>{_facts(facts, reports=reports)}</header>",
        _overview(reports) if len(reports) > 1 else "",
        *(_service(report, facts=facts, identity=index) for index, report in enumerate(reports)),
        listed("Notes", facts.notes),
        f"<footer>Written by vllm-autotuner {safe(facts.version)}. This file loads nothing from the network.</footer>",
    ]
    return document(title, body, policy=POLICY)


def _facts(facts: ReportFacts, *, reports: Sequence[ServiceReport]) -> str:
    known = {
        "max-num-seqs": facts.knobs.max_num_seqs,
        "max-model-len": facts.knobs.max_model_len,
        "kv-cache-dtype": facts.knobs.kv_cache_dtype,
        "tensor-parallel-size": facts.knobs.tensor_parallel_size,
    }
    flags = " ".join(f"--{name}={value}" for name, value in known.items() if value is not None)
    rows = [("Source", facts.source), ("Evaluated at", rfc3339(facts.at))]
    if facts.span is not None:
        length = seconds(facts.span.last - facts.span.first)
        rows.append(("Span", f"{rfc3339(facts.span.first)} to {rfc3339(facts.span.last)} ({length})"))
    rows.append(("Engine flags", flags or "unknown; give them with --engine-args for higher confidence"))
    if reports:
        targets = reports[0].targets
        words = [
            f"{name} {target.label} at most {seconds(target.seconds)}{' (default)' if target.defaulted else ''}"
            for name, target in (("TTFT", targets.ttft), ("TPOT", targets.tpot))
        ]
        rows.append(("Objectives", "; ".join(words) + f"; profile {targets.profile.value}"))
    return definitions(rows)


def _overview(reports: Sequence[ServiceReport]) -> str:
    rows = [
        cell(f'<a href="#service-{index}">{safe(title_of(report))}</a>', label="service")
        + cell(badge(report.diagnosis.primary.value), label="class")
        + cell(safe(report.diagnosis.message), label="diagnosis")
        for index, report in enumerate(reports)
    ]
    shown = table(("service", "class", "diagnosis"), rows, caption=f"{len(rows)} services")
    return f"<section><h2>Services</h2>{shown}</section>"


def _service(report: ServiceReport, *, facts: ReportFacts, identity: int) -> str:
    diagnosis, worst = report.diagnosis, worst_of(report.levels)
    surety = f"confidence {diagnosis.confidence.value}, since {since(diagnosis, at=facts.at)}"
    last = _verdict(diagnosis.primary, surety)
    parts = [
        f"<h2>{safe(title_of(report))}</h2>",
        last if worst is None else _verdict(worst.named, f"{quantity(worst.share, 'share')} of the time"),
        "" if worst is None else f"<p>At the end:</p>{last}",
        f"<p>{safe(diagnosis.message)}</p>",
        listed("What to do", ADVICE[diagnosis.primary if worst is None else worst.named]),
        listed("Recommendation", () if report.plan.proposal is None else proposal_lines(report.plan.proposal)),
        listed("Contributing", (f"{one.diagnosis.value}: {one.message}" for one in diagnosis.contributing)),
        over_time(report, identity=identity),
        _evidence(diagnosis.evidence),
        _earlier(report, facts=facts),
        listed("Considered and rejected", report.plan.passed_over),
        _timeline(report),
        listed("Not a tuning problem", NOT_TUNING),
    ]
    return f'<section id="service-{identity}">{"".join(parts)}</section>'


def _verdict(named: DiagnosisClass, beside: str) -> str:
    words = safe(IN_WORDS[named])
    return f'<p class="verdict">{badge(named.value)} <strong>{words}</strong> <small>{safe(beside)}</small></p>'


def over_time(report: ServiceReport, *, identity: int) -> str:
    """The plot of a service with its classes; a note where one evaluation makes no line."""
    if len(report.levels) < FEWEST_POINTS:
        return "<p><small>Only one evaluation: no plot over time.</small></p>"
    shares: dict[DiagnosisClass, float] = {}
    for band in bands(report.levels):
        shares[band.named] = shares.get(band.named, 0.0) + band.end - band.start
    total = sum(shares.values()) or 1.0
    legend = "".join(
        f"<li>{badge(named.value)} {safe(IN_WORDS[named])} <small>{length / total:.0%} of the time</small></li>"
        for named, length in sorted(shares.items(), key=lambda item: -item[1])
    )
    label = safe(f"Class, TTFT, TPOT, KV cache and requests of {title_of(report)} over time")
    if not can_plot():
        return f'<h3>Over time</h3><ul class="legend">{legend}</ul><p><small>{safe(NO_PLOT)}</small></p>'
    picture = plot(report.levels, targets=report.targets, identity=identity)
    return (
        f'<h3>Over time</h3><figure tabindex="0" aria-label="{label}">{picture}'
        f'<figcaption><ul class="legend">{legend}</ul></figcaption></figure>'
    )


def _evidence(evidence: Sequence[Evidence]) -> str:
    if not evidence:
        return ""
    rows = []
    for one in evidence:
        limit = "" if one.threshold is None else quantity(one.threshold, one.unit)
        window = "" if one.window is None else seconds(one.window)
        rows.append(
            cell(safe(one.name), label="evidence")
            + number_cell(quantity(one.value, one.unit), label="value")
            + number_cell(limit, label="threshold")
            + number_cell(window, label="window")
            + cell(safe(one.note), label="note")
        )
    titles = ("evidence", "value", "threshold", "window", "note")
    return f"<h3>Evidence</h3>{table(titles, rows, caption='What the diagnosis is based on')}"


def _earlier(report: ServiceReport, *, facts: ReportFacts) -> str:
    """Bottlenecks that ended before the last moment, as they were first seen."""
    now = report.diagnosis.primary
    seen: dict[DiagnosisClass, Evaluated] = {}
    for turn in report.turns:
        if turn.diagnosis.primary is not now and look_of(turn.diagnosis.primary).severity >= Severity.LIMITED:
            seen.setdefault(turn.diagnosis.primary, turn)
    parts = [
        f"<p>{badge(named.value)} <small>from {safe(rfc3339(turn.time))}</small><br>{safe(turn.diagnosis.message)}</p>"
        f"<ul>{''.join(f'<li>{safe(line)}</li>' for line in ADVICE[named])}</ul>{_evidence(turn.diagnosis.evidence)}"
        for named, turn in seen.items()
    ]
    return f"<h3>Earlier, no longer true at {safe(rfc3339(facts.at))}</h3>{''.join(parts)}" if parts else ""


def _timeline(report: ServiceReport) -> str:
    levels = report.levels
    if len(levels) < FEWEST_POINTS:
        return ""
    start = levels[0].time
    rows = []
    for band in bands(levels):
        when = f"{rfc3339(band.start)} (+{band.start - start:.0f} s)"
        length = seconds(band.end - band.start)
        rows.append(
            cell(safe(when), label="from")
            + number_cell(length, label="for")
            + cell(badge(band.named.value), label="class")
        )
    shown = table(("from", "for", "class"), rows, caption="Diagnosis classes, the oldest first")
    return f"<details><summary>Timeline ({len(rows)} rows)</summary>{shown}</details>"
