"""Random services: how they are drawn, what is compared with what, and the command as a user runs it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.randomservices.command import LOOKED_AT, main
from benchmarks.randomservices.drawing import MOST_RATE, Odd, draw_service, engine_args
from benchmarks.randomservices.judging import Came, Change, Outcome, outcome_of, row_of
from benchmarks.randomservices.page import page
from benchmarks.randomservices.playing import play
from benchmarks.randomservices.summary import figures_of
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.simulation.ledger import Fate

APP = typer.Typer()
APP.command()(main)
CAPPED = 100
"""A seed whose service has too few slots."""
COLD = 302
"""One whose last replica has just started, and was needed."""


@cache
def capped() -> Outcome:
    return outcome_of(CAPPED)


def test_a_seed_is_a_service_and_its_engine_takes_every_request() -> None:
    for seed in range(40):
        service = draw_service(seed)
        assert service == draw_service(seed)
        assert service.rate <= MOST_RATE
        longest = service.mix.shared_tokens + service.mix.prompt.at(0.999999) + service.mix.output.at(0.999999)
        assert longest <= service.config.max_model_len
    assert len({engine_args(draw_service(seed).flags) for seed in range(40)}) > 30


def test_a_capped_service_is_named_and_helped() -> None:
    outcome = capped()
    assert outcome.report.diagnosis.primary is DiagnosisClass.CONCURRENCY_CAPPED
    (change,) = outcome.changes
    assert change.knob == "maxNumSeqs"
    assert change.flags == replace(outcome.service.flags, max_num_seqs=int(change.value))
    assert change.came is not None
    assert change.came.goodput > 1.05 * outcome.stayed.goodput
    assert row_of(outcome) == row_of(outcome_of(CAPPED)), "a bad one can be looked at again"


def test_the_changed_service_gets_the_same_requests() -> None:
    service = draw_service(CAPPED)
    now = play(service, flags=service.flags, replicas=service.replicas, scraped_too=False)
    more = play(service, flags=service.flags, replicas=service.replicas + 1, scraped_too=False)
    assert now.judged.count(Fate.REFUSED) == 0
    shared = {*now.judged.number.tolist()} & {*more.judged.number.tolist()}
    arrived = [dict(zip(each.judged.number, each.judged.arrival, strict=True)) for each in (now, more)]
    assert shared
    assert all(arrived[0][number] == arrived[1][number] for number in shared)


def test_a_replica_that_is_cold_is_warm_in_what_is_compared() -> None:
    outcome = outcome_of(COLD)
    service = outcome.service
    assert service.odd is Odd.COLD
    warm = play(replace(service, odd=Odd.NONE), flags=service.flags, replicas=service.replicas, scraped_too=False)
    assert outcome.stayed.requests == warm.judged.count(Fate.ANSWERED)
    assert outcome.stayed.goodput > 1.2 * outcome.seen.goodput, "before, fewer replicas had the load"


def judged(*, before: float, after: float, requests: int = 400, gpus: int = 1, ttft: float = 1.0) -> Outcome:
    """The capped service, had its goodput been like this with and without a change; 1 s of TTFT is foretold."""
    came = Came(requests=requests, goodput=after, attained=1.0, ttft=ttft, tpot=0.01)
    stayed = Came(requests=requests, goodput=before, attained=0.5, ttft=1e3, tpot=0.01)
    service = capped().service
    change = Change(
        knob="maxNumSeqs",
        current=8,
        value=16,
        flags=service.flags,
        replicas=1,
        ttft=1.0,
        tpot=None,
        gpus=gpus,
        came=came,
    )
    return replace(capped(), gpus=2, stayed=stayed, changes=[change])


def test_goodput_decides_and_what_saves_gpus_is_counted_apart() -> None:
    outcomes = [
        judged(before=1.0, after=1.1, gpus=2),
        judged(before=1.0, after=0.94, gpus=2),
        judged(before=1.0, after=1.04, gpus=2),
        judged(before=1.0, after=0.97, gpus=1),
        judged(before=1.0, after=0.5, gpus=1),
        judged(before=1.0, after=2.0, requests=49, gpus=2),
    ]
    found = figures_of(outcomes)["by_knob"]["all"]
    assert (found["recommended"], found["compared"], found["gpus_before"], found["gpus_after"]) == (6, 5, 10, 8)
    assert {name: found["others"][name] for name in ("better", "between", "worse")} == {
        "better": 1, "between": 1, "worse": 1,
    }  # fmt: skip
    assert {name: found["saving_gpus"][name] for name in ("better", "between", "worse")} == {
        "better": 0, "between": 1, "worse": 1,
    }  # fmt: skip
    assert found["no_help_though_an_objective_is_missed"] == 1, "what saves GPUs need not help"


@pytest.mark.parametrize(
    ("came", "within"),
    [
        pytest.param(1.0, (1, 1), id="as foretold"),
        pytest.param(1.3, (1, 0), id="longer"),
        pytest.param(0.79, (1, 0), id="shorter"),
        pytest.param(2.1, (0, 0), id="more than twice as long"),
        pytest.param(0.49, (0, 0), id="less than half as long"),
    ],
)
def test_a_forecast_is_off_either_way(came: float, within: tuple[int, int]) -> None:
    found = figures_of([judged(before=1.0, after=1.1, ttft=came)])
    ttft = found["by_knob"]["maxNumSeqs"]["ttft"]
    assert (ttft["foretold"], ttft["within_2x"], ttft["within_1.25x"]) == (1, *within)
    assert found["by_knob"]["maxNumSeqs"]["tpot"]["foretold"] == 0
    assert found["to_look_at"]["foretold_beyond_2x"] == ([] if within[0] else [CAPPED])


def run(arguments: Sequence[str]) -> tuple[int, list[dict[str, Any]]]:
    found = CliRunner().invoke(APP, [*arguments])
    return found.exit_code, [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]


def test_the_command_prints_a_line_for_each_service_and_its_figures_make_a_section() -> None:
    code, (row, figures) = run(["--services", "1", "--seed", str(CAPPED), "--json"])
    assert code == 0
    assert row == json.loads(json.dumps(row_of(capped())))
    assert figures["services"] == {
        "drawn": 1, "diagnosed_other_than_healthy_or_unclear": 1, "with_a_recommendation": 1,
    }  # fmt: skip
    text = "\n".join(page(figures))
    assert f"1 services (seeds {CAPPED} to {CAPPED})" in text
    assert "| maxNumSeqs | 1 | 1 | 1 | 0 | 0 | 0% to 79% |" in text
    assert "| ConcurrencyCapped | 1 | 1 | 1 |" in text


def test_services_that_were_looked_at_do_not_judge() -> None:
    found = CliRunner().invoke(APP, ["--services", "2", "--seed", str(LOOKED_AT[0] - 1), "--save"])
    assert found.exit_code == 2
    assert "were looked at" in found.output
