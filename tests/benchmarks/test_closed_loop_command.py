"""The command as a user runs it, on one scenario, and how its figures are told."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.closedloop.command import main
from benchmarks.closedloop.hardware import hardware_of
from benchmarks.closedloop.page import ablations, closed_loop, shortened
from benchmarks.closedloop.scoring import Score
from benchmarks.closedloop.service import Owner
from benchmarks.closedloop.summary import Played, case_figures, policy_summary, summary_of
from benchmarks.closedloop.trial import WITHOUT, CaseOf, PolicyName, Task, Trial
from vllm_autotuner.api.knobs import Knob

APP = typer.Typer()
APP.command()(main)
SETTING = {"seats": 64, "kv_cache_dtype": "auto", "tensor_parallel_size": 1, "replicas": [[0.0, 1]]}
KEYS = (
    "attainment_vs_oracle_median",
    "attainment_vs_oracle_worst",
    "gpu_hours_vs_oracle_median",
    "gpu_hours_vs_oracle_worst",
    "cases",
    "cases_met",
    "kept_changes",
    "rolled_back",
)


def trial(policy: PolicyName, *, attainment: float, gpu_hours: float, scenario: str = "cap-bound") -> Trial:
    score = Score(
        requests=600,
        attainment=attainment,
        settled_attainment=attainment,
        gpu_hours=gpu_hours,
        settled_gpus=1.0,
        goodput=1.0,
        settled_goodput=1.0,
        in_time=attainment,
        failed=0,
        restarts=1,
        scalings=0,
        extrapolated_from_hours=9.0,
    )
    notes: dict[str, Any] = {}
    if policy is PolicyName.AUTOTUNER:
        kept = {"knob": "maxNumSeqs", "from": "18", "to": "55", "hours": 1.0}
        notes = {"kept_changes": [kept], "rolled_back": []}
    if policy is PolicyName.ORACLE:
        notes = {"setting": SETTING}
    case = CaseOf(scenario=scenario, seed=1, hardware=hardware_of(None))
    return Trial(task=Task(case=case, policy=policy), score=score, notes=notes, seconds=1.0)


def played(*trials: Trial) -> Played:
    return {one.task.policy: one for one in trials}


def cases() -> Sequence[Played]:
    return [
        played(
            trial(PolicyName.ORACLE, attainment=1.0, gpu_hours=10.0, scenario=name),
            trial(PolicyName.ORACLE_FROZEN, attainment=1.0, gpu_hours=20.0, scenario=name),
            trial(PolicyName.AUTOTUNER, attainment=ours, gpu_hours=11.0, scenario=name),
            trial(PolicyName.HPA, attainment=0.5, gpu_hours=9.0, scenario=name),
            trial(PolicyName.REPLICAS_ONLY, attainment=1.0, gpu_hours=20.0, scenario=name),
        )
        for name, ours in (("cap-bound", 0.97), ("bursty", 0.96))
    ]


def test_a_case_is_met_by_its_attainment_and_then_the_price_counts() -> None:
    summary = summary_of(cases())
    assert [summary[key] for key in KEYS] == [pytest.approx(0.965), 0.96, 1.1, 1.1, 2, 1, 2, 0]
    assert summary["rivals"]["hpa"]["cases_met"] == 0
    assert summary["ablations"]["replicas-only"]["gpu_hours_vs_oracle_median"] == 2.0
    assert set(KEYS) <= set(summary["rivals"]["hpa"])
    assert "keda" not in summary["rivals"], "who did not run is not told of"
    assert (summary["worth_of_flags_median"], summary["cases_with_worth_above_1_3"]) == (2.0, 2)
    assert summary["against"] == {"hpa": {"better": 2, "as_good": 0, "worse": 0}}


def test_an_interval_resamples_scenarios() -> None:
    summary = summary_of(cases())
    assert summary["attainment_vs_oracle_interval"] == [pytest.approx(0.96), pytest.approx(0.97)]
    one = summary_of(cases()[:1])
    assert one["attainment_vs_oracle_interval"] is None
    assert policy_summary([])["cases"] == 0


def test_the_page_tells_what_was_played_and_what_it_was_worth() -> None:
    found = {
        "setting": "on-demand",
        "seeds": [1],
        "noise": "on",
        "pace": "the product's defaults",
        "asked_for": 2,
        "summary": summary_of(cases()),
        "cases": [case_figures(one) for one in cases()],
    }
    text = "\n".join(closed_loop(found))
    assert text.startswith("2 cases: 2 scenarios")
    assert "\n".join(closed_loop({**found, "asked_for": 110})).startswith("The run ended after 2 of 110 cases. 2 cases")
    assert "10 of 10 runs were played until they had settled (the longest for 9.0 h)" in text
    assert "| autotuner | 1 of 2 | 96.5% (96.0% to 97.0%) | 96.0% | 1.10 (1.10 to 1.10) | 1.10 | 1.10 | 2, 0 |" in text
    assert "above 1.3 in 2 of 2 cases" in text
    assert "maxNumSeqs 18 to 55" in text


def whole(found: Sequence[Played], **about: str) -> dict[str, Any]:
    told = {"setting": "on-demand", "seeds": [1], "noise": "on", "pace": "the product's defaults", "asked_for": 2}
    return {**told, **about, "summary": summary_of(found), "cases": [case_figures(one) for one in found]}


def test_the_page_names_the_commits_that_played_kept_runs() -> None:
    kept = [
        {name: replace(one, commit=f"c{index}") for name, one in case.items()} for index, case in enumerate(cases())
    ]
    kept[1][PolicyName.HPA] = replace(kept[1][PolicyName.HPA], commit=None)
    assert "9 runs had been played before, at c0, c1:" in "\n".join(closed_loop(whole(kept)))
    assert "played before" not in "\n".join(closed_loop(whole(cases())))


def test_where_the_gpus_are_fixed_goodput_and_restarts_tell_policies_apart() -> None:
    text = "\n".join(closed_loop(whole(cases(), setting="fixed")))
    assert "goodput: median | worst | most restarts" in text
    assert "| autotuner | 1 of 2 | 96.5% (96.0% to 97.0%) | 96.0% | 100.0% | 100.0% | 1 | 2, 0 |" in text
    assert "missed a plan" not in text


def test_the_page_says_where_the_oracle_is_none() -> None:
    better = trial(PolicyName.AUTOTUNER, attainment=0.5, gpu_hours=20.0)
    beaten = played(trial(PolicyName.ORACLE, attainment=0.094, gpu_hours=10.0), better)
    text = "\n".join(closed_loop(whole([beaten])))
    assert "missed a plan where another attained over a point more: cap-bound 1 (40.6 points by autotuner)." in text


def test_what_a_flag_is_worth_is_told_by_the_cases_in_which_it_may_change() -> None:
    name = PolicyName.WITHOUT_KV_CACHE_DTYPE
    without = trial(name, attainment=0.9, gpu_hours=22.0)
    found = [{**cases()[0], name: without}, cases()[1]]
    told = summary_of(found)["ablations"]["without-kv-cache-dtype"]["vs_autotuner"]
    assert told == {"cases": 1, "gpu_hours": 2.0, "points_attained": pytest.approx(-7.0), "equal": 0}
    assert "| without-kv-cache-dtype | 1 | 1 | 2.00 | -7.0 |" in "\n".join(ablations(whole(found)))


def test_only_where_a_flag_may_change_it_is_taken_away() -> None:
    case = CaseOf(scenario="kv-fp8", seed=1, hardware=hardware_of(None), quick=True)
    allowed = {name for name, knob in WITHOUT.items() if case.tells(name) and knob in case.drawn().adjustable}
    assert allowed == {PolicyName.WITHOUT_MAX_NUM_SEQS, PolicyName.WITHOUT_KV_CACHE_DTYPE}
    frozen = Owner(replace(case.drawn(), frozen=Knob.KV_CACHE_DTYPE)).spec["tuning"]
    assert "kvCacheDtype" not in frozen
    assert "maxNumSeqs" in frozen


def test_the_page_tells_how_far_a_shortened_day_is_off() -> None:
    exact = {"attainment": 0.99, "gpu_hours": 30.0, "goodput": 3.5}
    short = {"attainment": 0.98, "gpu_hours": 30.6, "goodput": 3.5, "extrapolated_from_hours": 9.5}
    policies = {"autotuner": {**exact, "shortened": short}, "hpa": exact}
    case = {"scenario": "cap-bound", "seed": 201, "hours": 24.0, "policies": policies}
    text = "\n".join(shortened({"cases": [case]}))
    assert "at most 2.0 % off" in text
    assert "| cap-bound 201, autotuner | 9.5 of 24 | 99.0% | -1.0 | 30.0 | +2.0 | +0.0 |" in text
    assert "hpa" not in text, "it never settled: nothing was left out"


def test_a_quick_run_prints_one_object() -> None:
    arguments = ["--quick", "--scenario", "kv-fp8", "--engine-profile", "llama-3.1-70b-h200", "--jobs", "1", "--json"]
    found = CliRunner().invoke(APP, [*arguments, "--policy", "defaults", "--policy", "keda-calibrated"])
    assert found.exit_code == 0, found.output
    figures = json.loads(found.stdout)
    assert figures["quick"] is True
    assert "compressed" in figures["pace"]
    assert set(figures["cases"][0]["policies"]) == {"oracle", "defaults", "keda-calibrated"}
    assert figures["summary"]["rivals"]["defaults"]["cases"] == 1
    oracle = figures["cases"][0]["policies"]["oracle"]
    assert oracle["attainment"] > 0.9
    assert oracle["setting"]["kv_cache_dtype"] == "fp8"
    assert 1 < oracle["extrapolated_from_hours"] < 6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["--scenario", "nothing"], "there is no scenario 'nothing'", id="a scenario that does not exist"),
        pytest.param(["--engine-profile", "nothing"], "unknown profile 'nothing'", id="an engine that does not exist"),
        pytest.param(["--policy", "nothing"], "nothing", id="a policy that does not exist"),
        pytest.param(["--jobs", "0"], "jobs", id="no process at all"),
        pytest.param(["--noise", "loud"], "--noise is on or off", id="another noise"),
        pytest.param(["--router", "odd"], "--router is even or warm", id="another router"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(arguments: list[str], says: str) -> None:
    found = CliRunner().invoke(APP, ["--quick", *arguments])
    assert found.exit_code == 2
    assert says in " ".join(found.output.replace("│", " ").split())


WORKS = """
import time
from benchmarks.closedloop.command import workers
with workers(1) as pool:
    pool.submit(abs, 1).result()
    pool.submit(time.sleep, 60)
    print("working", flush=True)
    time.sleep(60)
"""


def test_workers_end_when_the_command_is_killed() -> None:
    """Standard output ends with the last process that has it open."""
    with subprocess.Popen([sys.executable, "-c", WORKS], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "working\n"
        command.kill()
        rest, _ = command.communicate(timeout=30)
    assert rest == ""
