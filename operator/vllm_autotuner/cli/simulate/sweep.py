"""One knob simulated at several values under the same requests, and its knee.

Must not: run anything in another way than a single simulation does, or print.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.simulate.request import replicas_of
from vllm_autotuner.cli.simulate.run_figures import Figures, figures_of
from vllm_autotuner.cli.simulate.simulated_service import Run, Scenario, run
from vllm_autotuner.performance.knee import largest_batch_within
from vllm_autotuner.performance.step_time import NoFit, fit_step_time
from vllm_autotuner.simulation.arguments import KV_CACHE_DTYPES
from vllm_autotuner.simulation.configuration import StartupRefused

__all__ = ["Row", "Sweep", "SweepResult", "sweep", "sweep_of"]

MOST_VALUES: Final = 64
"""Values of one sweep. Our choice: more do not fit a screen."""
EQUALLY_GOOD: Final = 0.02
"""Part by which goodputs may differ and still count as the same. Our choice: what two seeds differ by."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A knob and its values, in the order of the table."""

    knob: Knob
    values: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One value: what came of it, or the engine's own words why it does not start."""

    value: int | str
    run: Run | None
    figures: Figures | None
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """A whole sweep. `knee`: the most running sequences of one replica that meet the TPOT objective on average."""

    sweep: Sweep
    rows: Sequence[Row]
    knee: int | None
    knee_unknown: str = ""
    """Why there is no knee."""

    @property
    def best(self) -> Row | None:
        """The row with the most goodput; among equally good ones the smallest value. None when nothing was good."""
        served = [row for row in self.rows if row.figures is not None and row.figures.goodput > 0]
        most = max((row.figures.goodput for row in served if row.figures), default=0.0)
        return next((row for row in served if row.figures and row.figures.goodput >= most * (1 - EQUALLY_GOOD)), None)


def sweep_of(text: str) -> Sweep:
    """Read `maxNumSeqs=8..512` (doubling) or `maxNumSeqs=8,16,32`. Raises CommandError."""
    name, equals, rest = text.partition("=")
    knobs = {knob.value.lower(): knob for knob in Knob}
    knob = knobs.get(name.strip().replace("-", "").replace("_", "").lower())
    if knob is None or not equals:
        raise CommandError(f"--sweep {text!r}: write one of {', '.join(Knob)} and its values, as maxNumSeqs=8..512")
    values = _values(knob, rest, text=text)
    for value in values:
        _refuse_impossible(knob, value, text=text)
    if len(values) > MOST_VALUES:
        raise CommandError(f"--sweep {text!r}: {len(values)} values; at most {MOST_VALUES}")
    return Sweep(knob, tuple(dict.fromkeys(values)))


def _refuse_impossible(knob: Knob, value: int | str, *, text: str) -> None:
    if isinstance(value, int) and knob is Knob.REPLICAS:
        replicas_of(f"--sweep {text!r}:", value)
        return
    try:
        EngineKnobs.model_validate({knob.value: value})
    except ValidationError as error:
        raise CommandError(f"--sweep {text!r}: {value}: {error.errors()[0]['msg']}") from error


def _values(knob: Knob, rest: str, *, text: str) -> Sequence[int | str]:
    words = [word.strip() for word in rest.split(",")]
    if knob is Knob.KV_CACHE_DTYPE:
        if (strange := next((word for word in words if word not in KV_CACHE_DTYPES), None)) is not None:
            known = ", ".join(KV_CACHE_DTYPES)
            raise CommandError(f"--sweep {text!r}: no KV-cache dtype {strange!r}; write some of {known}")
        return words
    if found := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", rest.strip()):
        low, high = int(found[1]), int(found[2])
        if not 1 <= low <= high:
            raise CommandError(f"--sweep {text!r}: write a range from 1 or more up to a larger number")
        doubled = [low]
        while doubled[-1] * 2 < high:
            doubled.append(doubled[-1] * 2)
        return [*doubled, high] if high > low else doubled
    if not all(re.fullmatch(r"\d{1,9}", word) and int(word) >= 1 for word in words):
        raise CommandError(f"--sweep {text!r}: write a range that doubles, {knob}=8..512, or a list, {knob}=8,16,32")
    return sorted({int(word) for word in words})


def sweep(scenario: Scenario, wanted: Sweep, *, passed: Callable[[float], None] = lambda seconds: None) -> SweepResult:
    """Try every value under the same seed. A value that the engine refuses is a row as well."""
    rows = []
    for value in wanted.values:
        try:
            found = run(_with(scenario, wanted.knob, value), passed=passed)
        except StartupRefused as refused:
            passed(scenario.warm_up + scenario.measured)
            rows.append(Row(value, None, None, str(refused)))
        else:
            rows.append(Row(value, found, figures_of(found)))
    knee, unknown = _knee(scenario, rows)
    return SweepResult(sweep=wanted, rows=rows, knee=knee, knee_unknown=unknown)


def _with(scenario: Scenario, knob: Knob, value: int | str) -> Scenario:
    match knob, value:
        case Knob.REPLICAS, int():
            return replace(scenario, replicas=value)
        case Knob.MAX_NUM_SEQS, int():
            return replace(scenario, flags=replace(scenario.flags, max_num_seqs=value))
        case Knob.MAX_MODEL_LEN, int():
            flags = replace(scenario.flags, max_model_len=value, max_model_len_auto=False)
            return replace(scenario, flags=flags)
        case Knob.TENSOR_PARALLEL_SIZE, int():
            return replace(scenario, flags=replace(scenario.flags, tensor_parallel_size=value))
        case Knob.KV_CACHE_DTYPE, str():
            return replace(scenario, flags=replace(scenario.flags, kv_cache_dtype=value))
        case _:
            raise AssertionError(f"{knob} cannot be {value!r}")


def _knee(scenario: Scenario, rows: Sequence[Row]) -> tuple[int | None, str]:
    """Fit step times over all rows as the operator does over its hours: the swept values move the batch here."""
    points = [point for row in rows if row.run is not None for point in row.run.report.observation.steps]
    fit = fit_step_time(points)
    if isinstance(fit, NoFit):
        return None, fit.why
    target = scenario.subject.targets.tpot.seconds
    knee = largest_batch_within(fit, target=target)
    if knee is None:
        return None, f"a single sequence already takes longer than {target:g} s per token"
    if not fit.covers(knee):
        side = "above" if knee > fit.high else "below"
        return None, f"it is {side} the simulated batch sizes, {fit.low:.0f} to {fit.high:.0f}"
    return knee, ""
