"""The command as a user runs it, on one scenario, and how its figures are told."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from tests.benchmarks.drawn import case
from typer.testing import CliRunner

from benchmarks.closedloop.behind import longest_behind, one_canary
from benchmarks.closedloop.command import main
from benchmarks.closedloop.comparing import figures_of, summary_of, versus
from benchmarks.closedloop.page import closed_loop
from benchmarks.closedloop.scoring import Score
from benchmarks.closedloop.trial import PolicyName, Task, Trial

APP = typer.Typer()
APP.command()(main)


def trial(
    policy: PolicyName, *, goodput: float, gpu_hours: float = 1.0, restarts: int = 0, minutes: Sequence[float] = ()
) -> Trial:
    score = Score(
        requests=600,
        goodput=goodput,
        settled_goodput=goodput,
        attainment=goodput,
        failed=0,
        gpu_hours=gpu_hours,
        settled_gpus=gpu_hours,
        restarts=restarts,
        scalings=0,
        recoveries=(None,),
        per_minute=tuple(minutes) or (goodput,) * 20,
        came_per_minute=(1.0,) * 20,
    )
    task = Task(scenario="case", policy=policy, seed=1, hardware=(), quick=True)
    notes = {"changes_kept": 1, "changes_rolled_back": 2} if policy is PolicyName.AUTOTUNER else {}
    return Trial(task=task, score=score, notes=notes, seconds=1.0)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        pytest.param((1.0, 1.0), (0.9, 0.5), "wins", id="goodput first"),
        pytest.param((0.9, 0.5), (1.0, 9.0), "loses", id="whatever it cost"),
        pytest.param((1.0, 1.0), (0.995, 2.0), "wins", id="level in goodput, cheaper"),
        pytest.param((1.0, 2.0), (0.995, 1.0), "loses", id="level in goodput, dearer"),
        pytest.param((1.0, 1.0), (0.995, 1.005), "level", id="level in both"),
    ],
)
def test_who_beats_whom(ours: tuple[float, float], theirs: tuple[float, float], verdict: str) -> None:
    one = trial(PolicyName.AUTOTUNER, goodput=ours[0], gpu_hours=ours[1])
    assert versus(one, trial(PolicyName.HPA, goodput=theirs[0], gpu_hours=theirs[1])) == verdict


def test_the_summary_names_what_misses_the_targets() -> None:
    near = {
        PolicyName.ORACLE: trial(PolicyName.ORACLE, goodput=1.0),
        PolicyName.AUTOTUNER: trial(PolicyName.AUTOTUNER, goodput=0.96, gpu_hours=1.05),
    }
    far = near | {PolicyName.AUTOTUNER: trial(PolicyName.AUTOTUNER, goodput=0.9, gpu_hours=1.2, restarts=4)}
    report = {"near": figures_of(case(), near), "far": figures_of(replace(case(), name="far"), far)}
    assert report["far"]["policies"]["autotuner"]["regret"] == pytest.approx(0.1)
    summary = summary_of(report)
    assert summary["autotuner_against"] == {"oracle": {"wins": [], "level": [], "loses": ["near", "far"]}}
    missed = ("below_95_pct_of_the_oracle", "over_110_pct_of_its_gpus", "over_three_restarts")
    assert [summary[name] for name in missed] == [["far"]] * 3
    assert summary["gpu_hours_in_all"] == {"oracle": 2.0, "autotuner": pytest.approx(2.25)}
    text = "\n".join(closed_loop({"quick": False, "seed": 1, "summary": summary, "scenarios": report}))
    assert "| near | 1.00 (1.0) | 0.96 (1.1) |" in text
    assert "against oracle: better 0, equal 0, worse 2 (worse: near, far)" in text
    assert "2 kept, 4 rolled back." in text


@pytest.mark.parametrize(
    ("goodput", "gpu_hours", "over"),
    [(1.0, 1.12, True), (1.3, 1.12, False), (1.3, 1.5, True), (0.96, 1.12, True), (0.5, 0.9, False)],
)
def test_gpus_may_be_more_for_as_much_more_as_is_served(goodput: float, gpu_hours: float, over: bool) -> None:
    """Where the oracle does not know of a hang; and who serves less gets no discount."""
    played = {
        PolicyName.ORACLE: trial(PolicyName.ORACLE, goodput=1.0),
        PolicyName.AUTOTUNER: trial(PolicyName.AUTOTUNER, goodput=goodput, gpu_hours=gpu_hours),
    }
    summary = summary_of({"case": figures_of(case(), played)})
    assert summary["over_110_pct_of_its_gpus"] == (["case"] if over else [])


WELL = [1.0] * 20


@pytest.mark.parametrize(
    ("ours", "theirs", "seconds"),
    [
        pytest.param(WELL, WELL, 0.0, id="never"),
        pytest.param([0.0] * 20, [0.0] * 20, 0.0, id="both serve nobody well"),
        pytest.param([1.0] * 5 + [0.0] * 4 + [1.0] * 11, WELL, 360.0, id="four minutes are in six windows"),
        pytest.param([0.9] * 20, WELL, 1080.0, id="a tenth, all the time"),
        pytest.param([0.995] * 20, WELL, 0.0, id="level within a part in a hundred"),
        # 180 requests in a window: 90 and 81 well are 189 late ones, by chance 2 * 13.7 apart.
        pytest.param([0.45] * 20, [0.5] * 20, 0.0, id="chance does as much where half come late"),
        pytest.param([0.3] * 20, [0.5] * 20, 1080.0, id="and not as much as this"),
        pytest.param([0.0, 1.0, 1.0, 1.0] * 5, [1.0, 0.0, 1.0, 1.0] * 5, 60.0, id="now one is ahead, now the other"),
    ],
)
def test_for_how_long_one_serves_fewer_well_than_the_other(
    ours: list[float], theirs: list[float], seconds: float
) -> None:
    one = trial(PolicyName.AUTOTUNER, goodput=1.0, minutes=ours)
    other = trial(PolicyName.DEFAULTS, goodput=1.0, minutes=theirs)
    assert longest_behind(one.score, other.score, level=0.01) == seconds


def test_nobody_may_be_below_the_defaults_for_longer_than_a_canary() -> None:
    scenario = case()
    canary = one_canary(scenario).total_seconds()
    # Ten windows of a minute, after the start of a pod and its warm-up.
    assert canary == scenario.startup + 600 + 60
    defaults = trial(PolicyName.DEFAULTS, goodput=1.0)
    report = {
        name: figures_of(
            replace(scenario, name=name),
            {
                PolicyName.AUTOTUNER: trial(
                    PolicyName.AUTOTUNER, goodput=1.0, minutes=[0.5] * low + [1.0] * (20 - low)
                ),
                PolicyName.DEFAULTS: defaults,
            },
        )
        for name, low in (("short", 4), ("long", 20))
    }
    summary = summary_of(report)
    assert summary["below_the_defaults_for_longer_than_a_canary"] == ["long"]
    text = "\n".join(closed_loop({"quick": False, "seed": 1, "summary": summary, "scenarios": report}))
    assert f"| 18 min ({canary / 60:.0f} min) |" in text


def test_a_quick_run_of_one_scenario(tmp_path: Path) -> None:
    arguments = ["--quick", "--scenario", "kv-bound", "--engine-profile", "llama-3.1-70b-h200", "--jobs", "1"]
    policies = ["--policy", "autotuner", "--policy", "defaults"]
    found = CliRunner().invoke(APP, [*arguments, *policies, "--output", str(tmp_path)])
    assert found.exit_code == 0, found.output
    figures = json.loads((tmp_path / "closed_loop.json").read_text())
    assert figures["quick"] is True
    assert set(figures["scenarios"]["kv-bound"]["policies"]) == {"autotuner", "defaults"}
    assert figures["scenarios"]["kv-bound"]["policies"]["autotuner"]["requests"] > 1000
    assert (tmp_path / "closed_loop-kv-bound.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["--scenario", "nothing"], "there is no scenario 'nothing'", id="a scenario that does not exist"),
        pytest.param(["--engine-profile", "nothing"], "unknown profile 'nothing'", id="an engine that does not exist"),
        pytest.param(["--policy", "nothing"], "nothing", id="a policy that does not exist"),
        pytest.param(["--jobs", "0"], "jobs", id="no process at all"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(arguments: list[str], says: str) -> None:
    found = CliRunner().invoke(APP, ["--quick", *arguments])
    assert found.exit_code == 2
    assert says in " ".join(found.output.replace("│", " ").split())
