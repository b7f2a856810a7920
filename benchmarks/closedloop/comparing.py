"""Trials side by side: regret against the oracle, who beats whom, as values, as a table and as pictures.

Must not: run anything, or leave out a policy that did better.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

from benchmarks.closedloop.behind import longest_behind, one_canary
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.trial import PolicyName, Trial

__all__ = ["figures_of", "plotted", "summarised", "summary_of", "tabled"]

LEVEL: Final = 0.01
"""Goodput within 1 % counts as level; then GPU-hours decide, again by more than 1 %. As the oracle's own choice."""

SETTLED_SHARE: Final = 0.95
"""Of the oracle's goodput in the settled part of the run: what the product is to reach once it had time to learn."""
MORE_GPUS: Final = 1.10
"""Times the oracle's GPUs in that part that it may take for it, and for as much more as it serves well."""
MOST_RESTARTS: Final = 3
"""Rollouts for one scenario."""

Played = Mapping[PolicyName, Trial]


def figures_of(scenario: Scenario, played: Played) -> dict[str, Any]:
    """Everything about one scenario, for JSON."""
    oracle = played.get(PolicyName.ORACLE)
    policies: dict[str, Any] = {}
    for name, trial in played.items():
        figures = trial.figures()
        if oracle is not None:
            figures["regret"] = _part(oracle.score.goodput - trial.score.goodput, oracle.score.goodput)
            settled = trial.score.settled_goodput
            figures["settled_share_of_oracle"] = _part(settled, oracle.score.settled_goodput)
            figures["gpu_share_of_oracle"] = _part(trial.score.gpu_hours, oracle.score.gpu_hours)
            figures["settled_gpu_share_of_oracle"] = _part(trial.score.settled_gpus, oracle.score.settled_gpus)
        policies[name.value] = figures
    ours = played.get(PolicyName.AUTOTUNER)
    defaults = played.get(PolicyName.DEFAULTS)
    if ours is not None and defaults is not None:
        found = policies[PolicyName.AUTOTUNER.value]
        found["seconds_below_the_defaults"] = longest_behind(ours.score, defaults.score, level=LEVEL)
        found["seconds_of_one_canary"] = one_canary(scenario).total_seconds()
    against = {} if ours is None else {n.value: versus(ours, other) for n, other in played.items() if other is not ours}
    return {
        "story": scenario.story,
        "engine": scenario.hardware.name,
        "seed": scenario.seed,
        "duration": scenario.duration,
        "objectives": {"ttft": scenario.objectives.ttft, "tpot": scenario.objectives.tpot},
        "startup": scenario.startup,
        "routing": scenario.routing.value,
        "start": {"seats": scenario.seats, "replicas": scenario.replicas, "most_replicas": scenario.max_replicas},
        "moments": list(scenario.moments),
        "autotuner_against": against,
        "policies": policies,
    }


def versus(ours: Trial, other: Trial) -> str:
    """`wins`, `loses` or `level`: by goodput, and where that is level by GPU-hours."""
    for mine, theirs, more in (
        (ours.score.goodput, other.score.goodput, True),
        (ours.score.gpu_hours, other.score.gpu_hours, False),
    ):
        if abs(mine - theirs) > LEVEL * max(mine, theirs):
            return "wins" if (mine > theirs) == more else "loses"
    return "level"


def summary_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Who beats whom over all scenarios, and how far the product is from the best fixed setting."""
    against: dict[str, dict[str, list[str]]] = {}
    for name, figures in report.items():
        for rival, verdict in figures["autotuner_against"].items():
            against.setdefault(rival, {"wins": [], "level": [], "loses": []})[verdict].append(name)
    ours = {name: one["policies"]["autotuner"] for name, one in report.items() if "autotuner" in one["policies"]}
    shares = {name: one["settled_share_of_oracle"] for name, one in ours.items() if "settled_share_of_oracle" in one}
    gpus = {
        name: _gpus_for_as_much(one["settled_gpu_share_of_oracle"], shares[name])
        for name, one in ours.items()
        if name in shares
    }
    return {
        "scenarios": len(report),
        "autotuner_against": against,
        "attained_on_average": _means(report, "attainment"),
        "gpu_hours_in_all": _sums(report, "gpu_hours"),
        "below_95_pct_of_the_oracle": [n for n, share in shares.items() if share is None or share < SETTLED_SHARE],
        "over_110_pct_of_its_gpus": [n for n, share in gpus.items() if share is None or share > MORE_GPUS],
        **_behind(ours),
        "over_three_restarts": [name for name, one in ours.items() if one["restarts"] > MOST_RESTARTS],
        "changes_kept": sum(one["changes_kept"] for one in ours.values()),
        "changes_rolled_back": sum(one["changes_rolled_back"] for one in ours.values()),
    }


def _gpus_for_as_much(share: float | None, served: float | None) -> float | None:
    """Return GPUs relative to the oracle's for as much goodput as it has; `served`: the product's, relative to its.

    An oracle that does not know of a hang serves less while it lasts, on fewer GPUs. Who serves less gets no discount.
    Worked: 1.14 times the GPUs for 1.28 times the goodput are 0.89; for 0.97 times they are 1.14.
    """
    return None if share is None or served is None else share / max(1.0, served)


def _behind(ours: Mapping[str, Any]) -> dict[str, list[str]]:
    """Nothing where the defaults were not played."""
    known = {name: one for name, one in ours.items() if "seconds_below_the_defaults" in one}
    longer = [n for n, one in known.items() if one["seconds_below_the_defaults"] > one["seconds_of_one_canary"]]
    return {"below_the_defaults_for_longer_than_a_canary": longer} if known else {}


def _means(report: Mapping[str, Any], name: str) -> dict[str, float]:
    return {policy: value / len(report) for policy, value in _sums(report, name).items()}


def _sums(report: Mapping[str, Any], name: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for figures in report.values():
        for policy, found in figures["policies"].items():
            sums[policy] = sums.get(policy, 0.0) + found[name]
    return sums


def summarised(summary: Mapping[str, Any]) -> Table:
    """The summary as a table, the product against each rival."""
    table = Table(title=f"autotuner against, over {summary['scenarios']} scenario(s)", title_justify="left")
    for column in ("rival", "wins", "level", "loses", "in"):
        table.add_column(column, justify="left" if column in ("rival", "in") else "right")
    for rival, found in summary["autotuner_against"].items():
        counts = (str(len(found[verdict])) for verdict in ("wins", "level", "loses"))
        table.add_row(rival, *counts, ", ".join(found["loses"]))
    return table


def tabled(scenario: Scenario, played: Played) -> Table:
    """One scenario as a table."""
    table = Table(title=f"{scenario.name}: {scenario.story} ({scenario.hardware.name})", title_justify="left")
    for column in ("policy", "goodput", "settled", "attained", "failed", "GPU-h", "restarts", "scalings", "recovery"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    table.add_column("regret", justify="right")
    figures = figures_of(scenario, played)["policies"]
    for name, trial in sorted(played.items(), key=lambda one: -one[1].score.goodput):
        found = trial.score
        regret = figures[name.value].get("regret")
        extra = trial.notes.get("trial_restarts")
        table.add_row(
            name.value,
            f"{found.goodput:.2f}/s",
            f"{found.settled_goodput:.2f}/s",
            f"{found.attainment:.1%}",
            str(found.failed),
            f"{found.gpu_hours:.2f}",
            str(found.restarts) + (f"+{extra}" if extra is not None else ""),
            str(found.scalings),
            " ".join("never" if one is None else f"{one:.0f} s" for one in found.recoveries),
            "" if regret is None else f"{regret:+.1%}",
        )
    return table


def plotted(scenario: Scenario, played: Played, *, folder: Path) -> Path:
    """Goodput over time, a line a policy. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure  # the extra `report`: figures are no need of a measurement

    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.add_subplot()
    for name, trial in played.items():
        minutes = np.asarray(trial.score.per_minute)
        mine = name is PolicyName.AUTOTUNER
        axes.plot(_smooth(minutes), label=name.value, linewidth=2.4 if mine else 1.2, zorder=3 if mine else 2)
    offered = [scenario.rate.rate(60.0 * minute + 30.0) for minute in range(int(scenario.duration // 60))]
    axes.plot(offered, label="offered", color="0.6", linestyle=":", zorder=1)
    for moment in scenario.moments:
        axes.axvline(moment / 60, color="0.8", zorder=0)
    axes.set(xlabel="minutes", ylabel="requests/s within both objectives", title=f"{scenario.name}: {scenario.story}")
    axes.set_ylim(bottom=0)
    axes.legend(ncols=4, fontsize="small")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"closed_loop-{scenario.name}.png"
    figure.savefig(path, dpi=80)
    return path


def _smooth(minutes: np.ndarray[Any, np.dtype[np.float64]]) -> Sequence[float]:
    """A mean over three minutes: single minutes of Poisson traffic hide everything else."""
    padded = np.pad(minutes, 1, mode="edge")
    smooth: Sequence[float] = np.convolve(padded, np.ones(3) / 3, mode="valid").tolist()
    return smooth


def _part(value: float, whole: float) -> float | None:
    return None if whole == 0 else value / whole
