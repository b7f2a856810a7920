"""The figures of a run: computed once, for tables, JSON and plots.

Must not: print or format. An unknown figure is None, never zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from vllm_autotuner.cli.simulate.simulated_service import Run
from vllm_autotuner.simulation.ledger import Fate, FloatArray, Period

__all__ = ["QUANTILES", "Figures", "Summary", "figures_of", "latencies"]

QUANTILES: Final = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean and most of a gauge over the measured time."""

    mean: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Requests and tokens per second, latencies in seconds, KV usage and shares 0..1."""

    ttft: Sequence[float | None]
    """At each of `QUANTILES`."""
    tpot: Sequence[float | None]
    ttft_at_objective: float | None
    """At the quantile of the objective."""
    tpot_at_objective: float | None
    goodput: float
    """Requests per second answered within both objectives."""
    attainment: float | None
    """Part of all requests that ended which was answered within both objectives."""
    arrived: float
    answered: float
    failed: dict[Fate, int]
    """Requests that were not answered, by how they ended; only what happened."""
    unanswered: int
    output_tokens: float
    prompt_tokens: float
    running: Summary
    waiting: Summary
    kv: Summary
    """Mean over pods; most of the fullest pod."""
    preemptions: int
    gpus: int


def figures_of(run: Run) -> Figures:
    """Compute the figures of the measured time."""
    targets, period, seconds = run.scenario.subject.targets, run.period, run.scenario.measured
    ttft, tpot = latencies(period)
    gauges = run.measured_gauges
    within = {"ttft": targets.ttft.seconds, "tpot": targets.tpot.seconds}
    answered = period.count(Fate.ANSWERED)
    return Figures(
        ttft=[_quantile(ttft, q) for q in QUANTILES],
        tpot=[_quantile(tpot, q) for q in QUANTILES],
        ttft_at_objective=_quantile(ttft, targets.ttft.quantile),
        tpot_at_objective=_quantile(tpot, targets.tpot.quantile),
        goodput=period.goodput(**within),
        attainment=period.attainment(**within),
        arrived=run.arrived / seconds,
        answered=answered / seconds,
        failed={fate: period.count(fate) for fate in Fate if fate is not Fate.ANSWERED and period.count(fate)},
        unanswered=run.unanswered,
        output_tokens=run.generation_tokens / seconds,
        prompt_tokens=run.prompt_tokens / seconds,
        running=_summary([each.running for each in gauges]),
        waiting=_summary([each.waiting for each in gauges]),
        kv=Summary(_summary([each.kv_mean for each in gauges]).mean, max(each.kv_most for each in gauges)),
        preemptions=run.preemptions,
        gpus=run.scenario.replicas * run.config.tensor_parallel_size,
    )


def latencies(period: Period) -> tuple[FloatArray, FloatArray]:
    """Return TTFT and TPOT of what was answered. Without a second token there is no time between tokens."""
    answered = period.fate == Fate.ANSWERED
    return period.ttft[answered], period.tpot[answered & (period.output_tokens > 1)]


def _quantile(values: FloatArray, q: float) -> float | None:
    return float(np.quantile(values, q)) if len(values) else None


def _summary(values: Sequence[float]) -> Summary:
    return Summary(sum(values) / len(values), max(values))
