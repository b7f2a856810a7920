"""The answer of `simulate` as text.

Must not: compute a figure, or print one that the JSON lacks.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.cli.diagnosis.as_json import flag_of
from vllm_autotuner.cli.diagnosis.text import IN_WORDS, quantity
from vllm_autotuner.cli.simulate.notes import notes_of
from vllm_autotuner.cli.simulate.run_figures import QUANTILES, Figures, Summary
from vllm_autotuner.cli.simulate.simulated_service import Run
from vllm_autotuner.cli.simulate.sweep import Row, SweepResult
from vllm_autotuner.cli.terminal import WholeTable, printable
from vllm_autotuner.simulation.ledger import Fate

__all__ = ["report", "sweep_table"]

_FATES: Final = {
    Fate.REFUSED: "refused (longer than max-model-len)",
    Fate.BROKEN: "cancelled",
    Fate.TIMED_OUT: "timed out",
    Fate.UNAVAILABLE: "rejected because no replica was ready",
}


def report(run: Run, figures: Figures) -> RenderableType:
    """One simulated service."""
    parts: list[RenderableType] = [*_head(run), _latency_table(run, figures), _engine_table(figures)]
    parts += [Text(line) for line in _outcome(run, figures)]
    judged = run.judged.diagnosis
    shares = ", ".join(f"{name.value} {share:.0%}" for name, share in run.classes)
    parts += [
        Text(),
        Text.assemble("Diagnosis  ", (judged.primary.value, "bold"), f": {IN_WORDS[judged.primary]}   ({shares})"),
        Text(f"  {printable(judged.message)}"),
    ]
    if (proposal := run.report.plan.proposal) is not None:
        step = flag_of(proposal) or f"{proposal.knob.value} {proposal.value}"
        parts.append(Text(f"  At the end the operator would recommend {step}: {printable(proposal.reason)}"))
    parts += [Text(f"Note: {printable(note.text)}") for note in notes_of(run, figures)]
    return Group(*parts)


def _head(run: Run) -> Iterable[Text]:
    scenario, config = run.scenario, run.config
    tokens = (config.num_gpu_blocks - 1) * config.block_size
    replicas = f"{scenario.replicas} replica{'s' if scenario.replicas > 1 else ''}"
    yield Text.assemble((f"{replicas} of {scenario.profile.name}", "bold"), f" under {printable(scenario.load.words)}")
    yield Text(
        f"--max-num-seqs {config.max_num_seqs} --max-model-len {config.max_model_len} "
        f"--kv-cache-dtype {config.kv_cache_dtype} --tensor-parallel-size {config.tensor_parallel_size}; "
        f"KV pool {tokens:,} tokens per replica",
        style="dim",
    )
    yield Text(
        f"{_minutes(scenario.measured)} measured after {_minutes(scenario.warm_up)} of warm-up, seed {scenario.seed}",
        style="dim",
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.4g} min" if seconds >= 60 else f"{seconds:.4g} s"


def _latency_table(run: Run, figures: Figures) -> Table:
    targets = run.scenario.subject.targets
    table = _table("latency", *(f"p{q * 100:g}" for q in QUANTILES), "objective")
    for name, found, target in (("TTFT", figures.ttft, targets.ttft), ("TPOT", figures.tpot, targets.tpot)):
        at_objective = figures.ttft_at_objective if name == "TTFT" else figures.tpot_at_objective
        met = "unknown" if at_objective is None else "met" if at_objective <= target.seconds else "missed"
        objective = f"{target.label} {quantity(target.seconds, 's')}: {met}"
        table.add_row(name, *(quantity(each, "s") for each in found), objective)
    return table


def _engine_table(figures: Figures) -> Table:
    table = _table("engine", "mean", "max")
    for name, found, unit in (
        ("running", figures.running, ""),
        ("waiting", figures.waiting, ""),
        ("KV cache", figures.kv, "share"),
    ):
        table.add_row(name, *_summary(found, unit))
    return table


def _summary(found: Summary, unit: str) -> Sequence[str]:
    return [quantity(found.mean, unit), quantity(found.most, unit)]


def _table(first: str, *columns: str) -> Table:
    table = WholeTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _outcome(run: Run, figures: Figures) -> Iterable[str]:
    share = "" if figures.attainment is None else f", {figures.attainment:.1%} of the finished ones"
    yield f"Goodput    {figures.goodput:.3g} requests/s within both objectives{share}"
    yield (
        f"Requests   {figures.arrived:.3g}/s arrived, {figures.answered:.3g}/s answered; "
        f"{figures.unanswered} in progress at the end"
    )
    if figures.failed:
        yield f"Failed     {_failed(figures)}"
    yield (
        f"Tokens     {figures.output_tokens:,.0f} output/s, {figures.prompt_tokens:,.0f} prompt/s; "
        f"{figures.preemptions} preemptions; {figures.gpus} GPU{'s' if figures.gpus > 1 else ''}"
    )


def _failed(figures: Figures) -> str:
    return ", ".join(f"{count} {_FATES[fate]}" for fate, count in figures.failed.items())


def sweep_table(result: SweepResult) -> RenderableType:
    """A row for each value."""
    best = result.best
    example = next((row.run for row in result.rows if row.run is not None), None)
    columns = ("goodput", "share", *_objectives(example), "tokens/s", "running", "waiting", "KV", "preempted")
    table = _table(result.sweep.knob.value, *columns)
    table.add_column("diagnosis", no_wrap=True)
    for row in result.rows:
        if row.figures is None or row.run is None:
            table.add_row(str(row.value), *[""] * len(columns), Text("does not start"))
            continue
        table.add_row(*_cells(row, row.figures, row.run), style="bold" if row is best else None)
    parts: list[RenderableType] = []
    if example is not None:
        parts.append(next(iter(_head(example))))
    parts.append(table)
    parts += [Text(line) for line in _conclusions(result, example)]
    return Group(*parts)


def _objectives(example: Run | None) -> Sequence[str]:
    if example is None:
        return ["TTFT", "TPOT"]
    targets = example.scenario.subject.targets
    return [f"TTFT {targets.ttft.label}", f"TPOT {targets.tpot.label}"]


def _cells(row: Row, figures: Figures, run: Run) -> Sequence[str]:
    good = "" if figures.attainment is None else f"{figures.attainment:.0%}"
    longest, share = run.classes[0]
    return [
        str(row.value),
        f"{figures.goodput:.3g}",
        good,
        quantity(figures.ttft_at_objective, "s"),
        quantity(figures.tpot_at_objective, "s"),
        f"{figures.output_tokens:,.0f}",
        f"{figures.running.mean:.4g}",
        f"{figures.waiting.mean:.4g}",
        f"{figures.kv.most:.0%}",
        f"{figures.preemptions}",
        f"{longest.value} {share:.0%}",
    ]


def _conclusions(result: SweepResult, example: Run | None) -> Iterable[str]:
    if example is None:
        yield "The engine does not start with any of these values."
    for row in result.rows:
        if row.refusal:
            yield f"{result.sweep.knob.value} {row.value} does not start: {printable(row.refusal)}"
        elif row.figures is not None and row.figures.failed:
            yield f"{result.sweep.knob.value} {row.value}: failed requests: {_failed(row.figures)}"
    if example is None:
        return
    if (best := result.best) is not None and best.figures is not None:
        yield f"Best goodput: {result.sweep.knob.value} {best.value}, {best.figures.goodput:.3g} requests/s."
    else:
        yield "No value serves any request within both objectives."
    target = quantity(example.scenario.subject.targets.tpot.seconds, "s")
    if result.knee is not None:
        yield f"Knee: up to {result.knee} running sequences per replica, mean TPOT is within {target}."
    elif result.sweep.knob is Knob.MAX_NUM_SEQS:
        yield f"Knee for a TPOT of {target}: unknown, {result.knee_unknown}."
    yield from _notes(result)


def _notes(result: SweepResult) -> Iterable[str]:
    """Each note once, with the text of the first value that has it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for row in result.rows:
        if row.run is not None and row.figures is not None:
            for note in notes_of(row.run, row.figures):
                found.setdefault(note.kind, (note.text, []))[1].append(str(row.value))
    for text, values in found.values():
        yield f"Note ({result.sweep.knob.value} {', '.join(values)}): {text}"
