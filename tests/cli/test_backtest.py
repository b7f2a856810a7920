"""`backtest`: history replayed by the operator's own functions; what it counts, and every wrong question."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress
from tests.builders import targets
from tests.planning.situations import CAPPED, diagnosis, line, with_steps
from typer.testing import CliRunner

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.evaluate.evaluation import ServiceReport
from vllm_autotuner.cli.evaluate.moments import CONFIRM, MOST_LOOKS, sparse
from vllm_autotuner.cli.evaluate.service_groups import ServiceName
from vllm_autotuner.cli.service import backtest
from vllm_autotuner.cli.service.replayed_history import History
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.planning.plan import Plan
from vllm_autotuner.planning.proposal import Proposal

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "vllm-0.32" / "recordings"
NAME = ServiceName("", "chat")
SEATS = Proposal(
    knob=Knob.MAX_NUM_SEQS,
    current=64,
    value=100,
    target=ChangeTarget.TTFT,
    reason="",
    confidence=Confidence.HIGH,
)


def report(proposal: Proposal | None, *steps: StepPoint) -> ServiceReport:
    return ServiceReport(
        service=NAME,
        model="m",
        targets=targets(),
        observation=with_steps(CAPPED, steps),
        diagnosis=diagnosis(DiagnosisClass.CONCURRENCY_CAPPED),
        plan=Plan(proposal=proposal),
    )


def replayed(*reports: ServiceReport) -> History:
    history = History(NAME)
    for at, each in enumerate(reports):
        history.see(each, at=float(at))
    return history


def test_a_value_that_hardly_moves_is_one_recommendation() -> None:
    found = replayed(*(report(replace(SEATS, value=value)) for value in (100, 110, 90, 200)), report(None))
    assert [(each.proposal.value, each.looks, each.until) for each in found.standing] == [(100, 3, 2.0), (200, 1, 3.0)]
    assert (found.changes, found.silent, found.looks, found.steadiness) == (1, 1, 5, 0.75)


def test_another_knob_or_word_is_another_recommendation() -> None:
    fp8 = replace(SEATS, knob=Knob.KV_CACHE_DTYPE, current="auto", value="fp8")
    found = replayed(report(SEATS), report(fp8), report(fp8), report(replace(fp8, value="fp8_e5m2")))
    assert [each.proposal.value for each in found.standing] == [100, "fp8", "fp8_e5m2"]


def test_a_prediction_is_tested_by_the_load_that_came_near_it() -> None:
    """The line says 50 ms at 100 sequences; a later window at 98 shows 55 ms."""
    seen = line(10, 20, 40, base=0.010, per_sequence=0.0004)
    later = StepPoint(running=98.0, itl=0.054, tokens=1000)
    found = replayed(report(SEATS, *seen), report(SEATS, *seen, later))
    [standing] = found.standing
    assert standing.error == pytest.approx(abs((0.010 + 0.0004 * 98) / 0.054 - 1))


def test_what_no_load_tested_is_not_counted_as_right() -> None:
    seen = line(10, 20, 40, base=0.010, per_sequence=0.0004)
    assert replayed(report(SEATS, *seen), report(SEATS, *seen)).standing[0].error is None
    assert replayed(report(SEATS), report(SEATS, *seen)).standing[0].error is None


def test_nothing_recommended_has_no_steadiness() -> None:
    assert replayed(report(None)).steadiness is None


def test_a_sparse_replay_looks_twice_at_each_moment() -> None:
    week = sparse(1_000_000.0, back=604_800.0, pace=None)
    assert (len(week.shown), len(week.ticks), max(week.ticks)) == (MOST_LOOKS, 2 * MOST_LOOKS, 1_000_000.0)
    assert all(at - CONFIRM in week.ticks for at in week.shown)
    close = sparse(1_000_000.0, back=60.0, pace=1.0)
    assert (len(close.ticks), close.ticks == tuple(sorted(close.shown))) == (4, True)


def test_a_recording_for_people_and_for_programs() -> None:
    path = str(RECORDINGS / "seats-saturation.om.gz")
    asked = ["backtest", "--recording", path, "--engine-args", "--max-num-seqs 4"]
    human = CliRunner().invoke(app, asked)
    assert human.exit_code == 0
    assert "ConcurrencyCapped" in human.stdout
    assert "The recommendation changed" in human.stdout
    [service] = json.loads(CliRunner().invoke(app, [*asked, "-o", "json"]).stdout)["services"]
    assert [(each["knob"], each["value"]) for each in service["recommendations"]] == [("maxNumSeqs", 15)]
    assert sum(service["classes"].values()) == service["looks"]


def test_the_times_of_a_recommendation_are_whole_where_the_output_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    fp8 = replace(SEATS, knob=Knob.KV_CACHE_DTYPE, current="auto", value="fp8_e4m3", limited_by="KV cache at lengths")
    history = History(NAME)
    for at in (1_795_211_040.123, 1_795_218_300.5):
        history.see(report(fp8), at=at)
    backtest._print(history)
    shown = capsys.readouterr().out
    assert "2026-11-20T21:44Z   2026-11-20T23:45Z   2" in shown
    assert "ConcurrencyCapped" in shown
    assert "…" not in shown


def test_a_narrow_terminal_loses_no_column(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    history = replayed(report(replace(SEATS, limited_by="KV cache at the lengths that were observed")))
    backtest._print(history)
    shown = capsys.readouterr().out
    assert "maxNumSeqs 64 -> 100" in shown
    assert "KV cache at the lengths that were observed" in shown
    assert shown.startswith("chat: 1 evaluation; ")


def test_how_far_it_is_goes_to_the_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = Progress(console=Console(file=StringIO()))
    monkeypatch.setattr(backtest, "progress", lambda console: bar)
    found = CliRunner().invoke(app, ["backtest", "--recording", str(RECORDINGS / "seats-saturation.om.gz")])
    assert found.exit_code == 0
    [task] = bar.tasks
    assert (task.description, task.finished, task.completed > 1) == ("evaluating", True, True)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        pytest.param(
            (), "no source was named: give exactly one of --prometheus URL and --recording FILE\n", id="no source"
        ),
        pytest.param(("--recording", "x.om", "--prometheus", "http://p"), "two sources", id="two sources"),
        pytest.param(("--recording", "x.om"), "x.om", id="no such recording"),
        pytest.param(("--recording", "x.om", "--since", "7d"), "--since, --namespace", id="since of a recording"),
        pytest.param(("--prometheus", "http://p", "--since", "week"), "--since 'week'", id="a bad duration"),
        pytest.param(("--prometheus", "http://p", "--every", "0s"), "--every '0s'", id="no time between looks"),
        pytest.param(("--prometheus", "http://127.0.0.1:1", "--since", "1m"), "error:", id="nobody answers"),
        pytest.param(("--prometheus", "ftp://p"), "error:", id="no URL"),
        pytest.param(("--recording", "x.om", "-o", "xml"), "--output 'xml'", id="an unknown format"),
        pytest.param(("--recording", "x.om", "--gpu", "toaster"), "toaster", id="an unknown GPU"),
        pytest.param(("--nonsense",), "No such option", id="an unknown option"),
    ],
)
def test_wrong_questions(args: tuple[str, ...], says: str) -> None:
    found = CliRunner().invoke(app, ["backtest", *args])
    assert (found.exit_code, says in found.stderr) == (1, True), found.stderr
