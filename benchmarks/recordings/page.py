"""The section of the replayed recordings in docs/benchmarks.md. Must not: measure, or judge."""

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.markdown import Result, table

__all__ = ["replay", "replay_h200"]

CPU: Final = (
    "The recorded engine shared its CPU with the load generator: `recorded pace` scales the simulated step times by "
    "the recorded counters of the engine, the other rows use one law throughout."
)
GPU: Final = (
    "vLLM 0.26 with Qwen3-8B's shape on one H200 (`tests/data/vllm-0.26-h200`): asynchronous scheduling and 8,192 "
    "tokens a step, as it ran. `recorded pace` scales the simulated step times by the recorded counters of the engine."
)


def replay(result: Result) -> list[str]:
    """Render the replay of the engine on a CPU."""
    return _replayed(result, engine=CPU)


def replay_h200(result: Result) -> list[str]:
    """Render the replay of the engine on a GPU."""
    return _replayed(result, engine=GPU)


def _replayed(result: Result, *, engine: str) -> list[str]:
    """Render the errors of the simulated levels, for each source of the engine's step times."""
    rows = [
        (
            each["recording"],
            way["way"],
            *(_error(way, quantity) for quantity in ("running", "waiting", "KV usage")),
            f"{min(way['preemption_ratios']):.2f}-{max(way['preemption_ratios']):.2f}",
            str(max(len(differences) for differences in way["class_differences"])),
        )
        for each in result["recordings"]
        for way in each["ways"]
    ]
    header = (
        "recording",
        "step times",
        "running, %",
        "waiting, %",
        "KV usage, %",
        "preemptions",
        "class differs",
    )
    about = (
        "Errors of time-weighted means, beside what was recorded; preemptions as a ratio to the recorded ones; `class "
        "differs`: the number of evaluations with another class, in the worst run. "
        f"{engine} {_replay_target(result['summary'])}"
    )
    return [about, "", *table(header, rows)]


def _replay_target(summary: Result) -> str:
    allowed = summary["allowed"]
    return (
        f"The limits apply to `{summary['way']}` only: levels within {allowed['level_error_pct']:g} %, preemptions "
        f"within a factor of {allowed['preemption_ratio']:g}, no other class away from transitions. Measured: "
        f"{summary['level_error_pct']:.1f} %, {summary['preemption_ratio']:.2f}, "
        f"{summary['class_differences_away_from_turns']}: {'holds' if summary['holds'] else '**missed**'}."
    )


def _error(way: Mapping[str, Any], quantity: str) -> str:
    found = next((level for level in way["levels"] if level["quantity"] == quantity), None)
    return "-" if found is None or found["error_pct"] is None else f"{found['error_pct']:+.1f} of {found['real']:.3g}"
