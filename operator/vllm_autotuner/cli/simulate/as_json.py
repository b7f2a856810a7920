"""The answer of `simulate` as JSON. The keys are API: added to, never renamed.

Latencies are seconds, shares 0..1, rates per second; null means "unknown", never zero.
"""

from typing import Any

from vllm_autotuner.cli.diagnosis.as_json import flag_of
from vllm_autotuner.cli.simulate.notes import notes_of
from vllm_autotuner.cli.simulate.run_figures import QUANTILES, Figures, Summary
from vllm_autotuner.cli.simulate.simulated_service import Run
from vllm_autotuner.cli.simulate.sweep import SweepResult

__all__ = ["as_json", "sweep_as_json"]


def as_json(run: Run, figures: Figures) -> dict[str, Any]:
    """Return plain values only."""
    scenario, config, judged = run.scenario, run.config, run.judged.diagnosis
    proposal = run.report.plan.proposal
    return {
        "engineProfile": scenario.profile.name,
        "load": scenario.load.words,
        "replicas": scenario.replicas,
        "seed": scenario.seed,
        "warmUp": scenario.warm_up,
        "measured": scenario.measured,
        "engine": {
            "maxNumSeqs": config.max_num_seqs,
            "maxModelLen": config.max_model_len,
            "kvCacheDtype": config.kv_cache_dtype,
            "tensorParallelSize": config.tensor_parallel_size,
            "maxNumBatchedTokens": config.max_num_batched_tokens,
            "kvPoolTokens": (config.num_gpu_blocks - 1) * config.block_size,
        },
        "objectives": {
            name: {"quantile": target.quantile, "seconds": target.seconds, "default": target.defaulted}
            for name, target in (("ttft", scenario.subject.targets.ttft), ("tpot", scenario.subject.targets.tpot))
        },
        **_figures(figures),
        "diagnosis": {
            "class": judged.primary.value,
            "message": judged.message,
            "shares": {name.value: share for name, share in run.classes},
        },
        "recommendation": None
        if proposal is None
        else {"knob": proposal.knob.value, "value": proposal.value, "flag": flag_of(proposal)},
        "notes": [{"kind": note.kind, "text": note.text} for note in notes_of(run, figures)],
    }


def sweep_as_json(result: SweepResult) -> dict[str, Any]:
    """Return plain values only."""
    best = result.best
    return {
        "knob": result.sweep.knob.value,
        "best": None if best is None else best.value,
        "knee": result.knee,
        "kneeUnknown": result.knee_unknown or None,
        "rows": [
            {"value": row.value, "refusal": row.refusal or None, "result": None}
            if row.run is None or row.figures is None
            else {"value": row.value, "refusal": None, "result": as_json(row.run, row.figures)}
            for row in result.rows
        ],
    }


def _figures(figures: Figures) -> dict[str, Any]:
    return {
        "ttft": {f"p{q * 100:g}": value for q, value in zip(QUANTILES, figures.ttft, strict=True)},
        "tpot": {f"p{q * 100:g}": value for q, value in zip(QUANTILES, figures.tpot, strict=True)},
        "ttftAtObjective": figures.ttft_at_objective,
        "tpotAtObjective": figures.tpot_at_objective,
        "goodput": figures.goodput,
        "attainment": figures.attainment,
        "arrived": figures.arrived,
        "answered": figures.answered,
        "failed": {fate.name.lower(): count for fate, count in figures.failed.items()},
        "unanswered": figures.unanswered,
        "outputTokens": figures.output_tokens,
        "promptTokens": figures.prompt_tokens,
        "running": _summary(figures.running),
        "waiting": _summary(figures.waiting),
        "kvUsage": _summary(figures.kv),
        "preemptions": figures.preemptions,
        "gpus": figures.gpus,
    }


def _summary(summary: Summary) -> dict[str, float]:
    return {"mean": summary.mean, "max": summary.most}
