"""The section of the random services in docs/benchmarks.md. Must not: play, judge or count."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.markdown import Result, table
from benchmarks.randomservices.judging import ONE_FEWER
from benchmarks.randomservices.summary import EFFECT, FEWEST

__all__ = ["CLASS_COLUMNS", "EFFECT_COLUMNS", "FORECAST_COLUMNS", "class_row", "effect_row", "forecast_row", "page"]

EFFECT_COLUMNS = (
    "knob", "recommended", "saves no GPUs: compared", "better", "within 5 %", "worse", "worse: 95 % interval",
    "no help though an objective is missed", "saves GPUs: compared", "better or within 5 %", "worse",
    "worse: 95 % interval", "GPUs before", "after",
)  # fmt: skip
FORECAST_COLUMNS = (
    "knob", "TTFT foretold", "within 2x", "within 1.25x", "TPOT foretold", "within 2x", "within 1.25x",
)  # fmt: skip
CLASS_COLUMNS = (
    "class", "services", "with a recommendation", "50 requests or more", "TTFT missed", "TPOT missed", "none missed"
)  # fmt: skip


def page(result: Result) -> list[str]:
    """Render what recommendations did, what forecasts were worth, and which classes were named."""
    services, (first, last) = result["services"], result["seeds"]
    about = (
        f"{services['drawn']} services (seeds {first} to {last}); of these "
        f"{services['diagnosed_other_than_healthy_or_unclear']} have a diagnosis other than Healthy and Unclear, and "
        f"{services['with_a_recommendation']} a recommendation (some have two). Compared are requests per second "
        "within both objectives, after the diagnosis, with and without the change; changed services have their setting "
        "from the start and get the same requests. `within 5 %`: goodput differs by less than "
        f"{EFFECT:.0%}. Not compared: fewer than {FEWEST} requests, and services with a replica that hangs. "
        f"`{ONE_FEWER}` is what the class Underutilized says. Distribution: `benchmarks/randomservices/drawing.py`."
    )
    knobs = result["by_knob"]
    return [
        about,
        "",
        *table(EFFECT_COLUMNS, [effect_row(name, each) for name, each in knobs.items()]),
        "",
        "Forecasts of the p95 with the change, against the simulation; counts, shares and their 95 % intervals:",
        "",
        *table(FORECAST_COLUMNS, [forecast_row(name, each) for name, each in knobs.items()]),
        "",
        "By the class that was named, how many services truly missed an objective in the time before:",
        "",
        *table(CLASS_COLUMNS, [class_row(name, each) for name, each in result["by_class"].items()]),
    ]


def effect_row(name: str, each: Mapping[str, Any]) -> tuple[str, ...]:
    """The effects of one knob."""
    others, saving = each["others"], each["saving_gpus"]
    return (
        name,
        str(each["recommended"]),
        str(others["compared"]),
        str(others["better"]),
        str(others["between"]),
        str(others["worse"]),
        _interval(others["worse_interval"]),
        str(each["no_help_though_an_objective_is_missed"]),
        str(saving["compared"]),
        str(saving["better"] + saving["between"]),
        str(saving["worse"]),
        _interval(saving["worse_interval"]),
        str(each["gpus_before"]),
        str(each["gpus_after"]),
    )


def forecast_row(name: str, each: Mapping[str, Any]) -> tuple[str, ...]:
    """The forecasts of one knob."""
    cells = [name]
    for latency in ("ttft", "tpot"):
        found = each[latency]
        cells.append(str(found["foretold"]))
        for times in ("2x", "1.25x"):
            count = found[f"within_{times}"]
            ends = _interval(found[f"within_{times}_interval"])
            cells.append(f"{count} ({count / found['foretold']:.0%}; {ends})" if found["foretold"] else "-")
    return tuple(cells)


def class_row(name: str, each: Mapping[str, int]) -> tuple[str, ...]:
    """The services of one class."""
    keys = ("services", "recommended", "compared", "ttft_missed", "tpot_missed", "none_missed")
    return (name, *(str(each[key]) for key in keys))


def _interval(ends: Sequence[float] | None) -> str:
    return "-" if ends is None else f"{ends[0]:.0%} to {ends[1]:.0%}"
