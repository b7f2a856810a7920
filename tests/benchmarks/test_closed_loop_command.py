"""The command as a user runs it, on one scenario, and how its figures are told."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from tests.benchmarks.drawn import case
from typer.testing import CliRunner

from benchmarks.closedloop.command import main
from benchmarks.closedloop.comparing import figures_of, summary_of, versus
from benchmarks.closedloop.scoring import Score
from benchmarks.closedloop.trial import PolicyName, Task, Trial
from benchmarks.report import closed_loop

APP = typer.Typer()
APP.command()(main)


def trial(policy: PolicyName, *, goodput: float, gpu_hours: float = 1.0, restarts: int = 0) -> Trial:
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
        per_minute=(goodput,) * 10,
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
    assert "against oracle: wins 0, level 0, loses 2 (loses: near, far)" in text
    assert "2 changes kept, 4 rolled back." in text


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
        pytest.param(["--engine-profile", "nothing"], "no profile 'nothing'", id="an engine that does not exist"),
        pytest.param(["--policy", "nothing"], "nothing", id="a policy that does not exist"),
        pytest.param(["--jobs", "0"], "jobs", id="no process at all"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(arguments: list[str], says: str) -> None:
    found = CliRunner().invoke(APP, ["--quick", *arguments])
    assert found.exit_code == 2
    assert says in " ".join(found.output.replace("│", " ").split())
