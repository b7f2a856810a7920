"""docs/benchmarks.md and the measured part of docs/verdicts.md, from benchmarks/results/*.json.

Usage: python benchmarks/report.py [--check]
To add a benchmark: one row in `SECTIONS` and, if the plain table does not suffice, one function of the result.
Must not: measure, judge, or round a figure across a limit.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "operator")]

from benchmarks.closedloop.page import ablations, bad_candidates, closed_loop, shortened
from benchmarks.fleets.page import (
    fleet,
    fleet_before,
    fleet_canary,
    fleet_real_prometheus,
    fleet_shards,
    fleet_shards_others,
    fleet_troubles,
)
from benchmarks.gpu_sweeps.page import h200_sweeps
from benchmarks.markdown import Result, flat, held, plain, table, told
from benchmarks.measured_curves.page import curves
from benchmarks.randomservices.page import page as random_services
from benchmarks.recordings.page import replay, replay_h200
from benchmarks.tenants.page import hostile, operator_cost
from benchmarks.verdicts import error_rates
from benchmarks.verdicts.page import verdict, verdict_in_place, verdict_routers

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
DOCUMENT: Final = ROOT / "docs" / "benchmarks.md"
VERDICTS: Final = ROOT / "docs" / "verdicts.md"
"""Has a part between two markers that is generated; the other parts are written by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One benchmark: the result file, and how it is rendered."""

    name: str
    """Of `results/NAME.json`."""
    title: str
    question: str
    command: str
    body: Callable[[Result], list[str]]


def scenes(result: Result) -> list[str]:
    """Render the accuracy of both parts, and which class was named when."""
    rows = [
        (
            each["recording"],
            "held out" if each["held_out"] else "thresholds",
            f"{each['evaluations'] - len(each['wrong'])} of {each['evaluations']}",
            ", ".join(each["named"]),
        )
        for each in result["recordings"]
    ]
    about = "`thresholds`: the recording was used to set thresholds. `held out`: it was not. Accuracies are shares."
    return [*plain(result), "", about, "", *table(("recording", "part", "correct", "named"), rows)]


def confusion(result: Result) -> list[str]:
    """Render the summary, and the classes that are not always named correctly."""
    summary = result["summary"]
    rows = [
        ("windows", told(summary["windows"])),
        ("macro-F1 over all classes", told(summary["macro_f1"])),
        ("windows named Overloaded where more replicas do not help", told(summary["no_capacity_called_overloaded"])),
        ("windows without a problem named otherwise", told(summary["fine_called_anything_else"])),
    ]
    flawed = [
        (each["class"], *(f"{each[name]:.3f}" for name in ("precision", "recall", "f1")))
        for each in sorted(result.get("classes", ()), key=lambda each: float(each["f1"]))
        if each["f1"] < 1
    ]
    lines = table(("figure", "value"), rows)
    if not flawed:
        return [*lines, "", "Every class has precision and recall 1."]
    about = f"{len(flawed)} of {len(result['classes'])} classes are below 1, worst first:"
    return [*lines, "", about, "", *table(("class", "precision", "recall", "F1"), flawed)]


def diagnosis_speed(result: Result) -> list[str]:
    """Render queries and CPU time by the size of the fleet."""
    rows = [
        (
            str(each["services"]),
            str(each["questions"]),
            f"{each['sorting_ms_per_service']:.2f}",
            f"{each['diagnosis_ms_per_service']:.2f}",
        )
        for each in result["fleets"]
    ]
    return table(("services", "Prometheus queries", "sorting, ms per service", "diagnosis, ms per service"), rows)


def planning_speed(result: Result) -> list[str]:
    """Render the figures, and whether the median of a decision is within its limit."""
    summary = result["summary"]
    limits = {"decision_median_ms": summary["target_ms"]}
    rows = [
        held(name.replace("_", " "), value, limits.get(name)) for name, value in flat(summary) if name != "target_ms"
    ]
    return table(("figure", "value", "limit", ""), rows)


def forecasts(result: Result) -> list[str]:
    """Render the errors of forecasts by their source, and the worst ones."""
    rows = [
        (
            kind,
            f"{each['ttft_foretold']} of {each['pairs']}",
            *(_maybe(each, name, form) for name, form in FORECAST_FIGURES),
        )
        for kind, each in result["summary"].items()
    ]
    worst = [(each["change"], f"{each['foretold_s']:.3g}", f"{each['measured_s']:.3g}") for each in result["worst"]]
    about = (
        "Errors in %: predicted / measured - 1. `within a quarter`: neither exceeds the other by more than 25 %. A "
        "prediction is the measured TTFT, scaled by how much of the time prompts take and by the step, plus the wait "
        "for a slot. In the `measured` pairs the prompts' share of the time is not known: only the step is scaled."
    )
    return [
        about,
        "",
        *table(
            (
                "pairs", "predicted", "TTFT: median", "signed", "worst", "within a quarter", "TPOT: median", "worst",
            ),
            rows,
        ),
        "",
        "The worst TTFT predictions, seconds:",
        "",
        *table(("change", "predicted", "measured"), worst),
    ]  # fmt: skip


FORECAST_FIGURES: Final = (
    ("ttft_median_abs_pct", "{:.1f}"),
    ("ttft_median_pct", "{:+.1f}"),
    ("ttft_worst_pct", "{:+.0f}"),
    ("ttft_within_a_quarter", "{:.0%}"),
    ("tpot_median_abs_pct", "{:.1f}"),
    ("tpot_worst_pct", "{:+.0f}"),
)
"""Key of a figure in the summary of a kind, and its format."""


def _maybe(each: Mapping[str, Any], name: str, form: str) -> str:
    return form.format(each[name]) if name in each else "-"


SECTIONS: Final[tuple[Section, ...]] = (
    Section(
        name="curves",
        title="Measured curves",
        question="How closely do models and simulator match GPUs, and how much goodput does a choice by them lose?",
        command="python benchmarks/curves.py --save",
        body=curves,
    ),
    Section(
        name="h200_sweeps",
        title="Sweeps of a real engine on H200",
        question="How closely do the laws foretell a real vLLM 0.26: half of a sweep from the other, and from nothing?",
        command="python benchmarks/h200_sweeps.py --save",
        body=h200_sweeps,
    ),
    Section(
        name="replay",
        title="Recordings of a real engine",
        question="How close is the simulated engine to a real vLLM under the same arrivals?",
        command="python benchmarks/replay.py --save",
        body=replay,
    ),
    Section(
        name="replay_h200",
        title="Recordings of a real engine on a GPU",
        question="How close is the simulated engine to a real vLLM on an H200?",
        command="python benchmarks/replay.py --recordings tests/data/vllm-0.26-h200/recordings --save",
        body=replay_h200,
    ),
    Section(
        name="scenes",
        title="Diagnosis of a real engine",
        question="How often is the correct class named in recordings of a real vLLM with a known problem?",
        command="python benchmarks/scenes.py --save",
        body=scenes,
    ),
    Section(
        name="forecasts",
        title="Predictions of a recommendation",
        question="How close are the TTFT and TPOT that a recommendation predicts to those measured afterwards?",
        command="python benchmarks/forecasts.py --save",
        body=forecasts,
    ),
    Section(
        name="random_services",
        title="Recommendations for random services",
        question="What does a recommendation of `diagnose` do to a service drawn at random, and is its forecast right?",
        command="python benchmarks/random_services.py --save",
        body=random_services,
    ),
    Section(
        name="engine_speed",
        title="Speed of the simulator",
        question="How many seconds of one engine are simulated in one second of CPU time?",
        command="python benchmarks/engine_speed.py --save",
        body=plain,
    ),
    Section(
        name="diagnosis_speed",
        title="Cost of an evaluation",
        question="How many Prometheus queries does one evaluation of the fleet take, and how much CPU time?",
        command="python benchmarks/diagnosis_speed.py --save",
        body=diagnosis_speed,
    ),
    Section(
        name="planning_speed",
        title="Speed of planning",
        question="How much CPU time does one planning decision take, and how much does a whole fleet take?",
        command="python benchmarks/planning_speed.py --save",
        body=planning_speed,
    ),
    Section(
        name="fleet",
        title="Fleet",
        question="What does one operator cost beside hundreds and thousands of services?",
        command="python benchmarks/fleet.py --services 10 1000 2000 1667 --engines-per-service 1 1 1 3 --save",
        body=fleet,
    ),
    Section(
        name="fleet_before",
        title="Fleet before",
        question="What did fleets of 10 and of 1,000 services cost before, and what do they cost now?",
        command="python benchmarks/fleet.py --services 10 1000 --minutes 3 --json",
        body=fleet_before,
    ),
    Section(
        name="fleet_troubles",
        title="Fleet in trouble",
        question="What becomes of a fleet when Prometheus or the API server is slow, fails or is busy?",
        command="python benchmarks/fleet.py --services 1000 --troubles --save",
        body=fleet_troubles,
    ),
    Section(
        name="fleet_shards",
        title="Fleet in shards",
        question="What does an operator cost that looks after one shard of a fleet?",
        command="python benchmarks/fleet.py --services 2000 --shards 5 --save",
        body=fleet_shards,
    ),
    Section(
        name="fleet_shards_others",
        title="A shard of a large fleet",
        question="Does an operator with one of five shards of 10,000 services keep within its limits?",
        command="python benchmarks/fleet.py --services 2000 --engines-per-service 2.5 --shards 5 --others 8000 --save",
        body=fleet_shards_others,
    ),
    Section(
        name="fleet_real_prometheus",
        title="Fleet beside a real Prometheus",
        question="Is the operator's cost the same beside a real Prometheus as beside the stand-in?",
        command="python benchmarks/fleet.py --services 300 --real-prometheus --save",
        body=fleet_real_prometheus,
    ),
    Section(
        name="fleet_canary",
        title="Canary beside a fleet that is created",
        question="Does a canary end as it does alone while 1,000 services are created beside it?",
        command="python benchmarks/fleet.py --services 1000 --canary --save",
        body=fleet_canary,
    ),
    Section(
        name="operator_cost",
        title="Memory and CPU of the operator",
        question="How much memory and CPU time does the operator take, by tenants and their series?",
        command="python benchmarks/operator_cost.py --save",
        body=operator_cost,
    ),
    Section(
        name="hostile",
        title="Hostile neighbours",
        question="What do tenants who attack the operator cost it, and an honest change beside them?",
        command="python benchmarks/hostile.py --save",
        body=hostile,
    ),
    Section(
        name="fuzzing",
        title="Fuzzing",
        question="Which text of an engine, a tenant or a server makes a parser fail, or take long?",
        command="python -m tests.fuzz --inputs 1000000 --save",
        body=lambda _: ["[Fuzzing](fuzzing.md) has the figures."],
    ),
    Section(
        name="confusion",
        title="Diagnosis of simulated engines",
        question="How often does the diagnosis name the true limit of a simulated engine?",
        command="python benchmarks/confusion.py --save",
        body=confusion,
    ),
    Section(
        name="verdict",
        title="Verdicts",
        question="How often is the verdict on a change wrong, by the true effect of the change?",
        command="python benchmarks/verdict.py --save",
        body=verdict,
    ),
    Section(
        name="verdict_in_place",
        title="Verdicts in place",
        question="How often is the verdict wrong if windows before and after are compared while the load moves?",
        command="python benchmarks/verdict.py --in-place --save",
        body=verdict_in_place,
    ),
    Section(
        name="verdict_routers",
        title="Verdicts behind uneven routers",
        question="How often is a canary kept for the traffic that it did not get?",
        command="python benchmarks/verdict.py --routers --save",
        body=verdict_routers,
    ),
    Section(
        name="closed_loop",
        title="Closed loop",
        question="Over days of load: are the objectives kept, on how many GPUs, against rivals and an oracle?",
        command="python benchmarks/closed_loop.py --seed 201 --seeds 5 --save",
        body=closed_loop,
    ),
    Section(
        name="closed_loop_fixed",
        title="Closed loop, a fixed number of GPUs",
        question="How near does it come to the best flags for the GPUs that there are?",
        command="python benchmarks/closed_loop.py --setting fixed --seed 441 --seeds 3 --save",
        body=closed_loop,
    ),
    Section(
        name="ablations",
        title="What each flag is worth",
        question="What does the autotuner lose if one of the flags, all flags or the replicas may not change?",
        command="python benchmarks/closed_loop.py --quick --policy autotuner --policy without-max-num-seqs ... --save",
        body=ablations,
    ),
    Section(
        name="closed_loop_exact",
        title="Shortened days",
        question="How far are the figures of a run that ends when it has settled from those of the whole day?",
        command="python benchmarks/closed_loop.py --exact --seed 201 --scenario NAME --save",
        body=shortened,
    ),
    Section(
        name="bad_candidates",
        title="Bad values",
        question="How much goodput does tuning lose if an unknown part of all values is bad?",
        command="python benchmarks/closed_loop.py --bad 0.3 --save",
        body=bad_candidates,
    ),
)


def rendered(results: Path = RESULTS) -> str:
    """Return the document. A result without a section is rendered as it is; a section without a result says so."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}
    known = {section.name for section in SECTIONS}
    others = tuple(
        Section(name=name, title=name.replace("_", " "), question="", command="", body=plain)
        for name in found
        if name not in known
    )
    lines = [
        "# Benchmarks",
        "",
        "Generated by `python benchmarks/report.py` from `benchmarks/results`. Do not edit.",
        "",
    ]
    for section in (*SECTIONS, *others):
        lines += [f"## {section.title}", ""]
        lines += [section.question, ""] if section.question else []
        lines += _section(section, found.get(section.name))
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section, result: Result | None) -> list[str]:
    if result is None:
        return [f"Not run: `{section.command}`.", ""]
    run = result.get("provenance", {})
    where = ", ".join(f"{name} {run[name]}" for name in ("commit", "machine", "python") if name in run)
    ran = f"`{run['command']}`" if "command" in run else f"`{section.command}`"
    lines = [*section.body(result), "", f"{ran}; {where}." if where else f"{ran}.", ""]
    return [*lines, *([note, ""] if (note := error_rates.unrepeatable(run.get("commit", ""))) else [])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both documents, or compare them with the results."""
    parser = argparse.ArgumentParser(description="Write docs/benchmarks.md and part of docs/verdicts.md.")
    parser.add_argument("--check", action="store_true", help="only compare the documents with the results")
    options = parser.parse_args(arguments)
    page = VERDICTS.read_text(encoding="utf-8")
    texts = {DOCUMENT: rendered(), VERDICTS: error_rates.inserted(page, results=RESULTS)}
    if not options.check:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.name} differs from the results; run: python benchmarks/report.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
