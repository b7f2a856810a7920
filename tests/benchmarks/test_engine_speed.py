"""The benchmark of the engine's speed runs and says what it measured; how fast the machine is, no test knows."""

import json

import pytest

from benchmarks.engine_speed import MODELS, config_of, main, rate_for, speed_of_one
from vllm_autotuner.simulation.lengths import Fixed
from vllm_autotuner.simulation.traffic import Mix


def test_reports_every_model_mix_and_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seconds", "0.01", "--running", "3", "64", "--engines", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {(row["model"], row["mix"], row["wanted_running"]) for row in report["one_engine"]} == {
        (model, mix, running) for model in MODELS for mix in ("chat", "long answers") for running in (3, 64)
    }
    assert report["summary"]["slowest_at_64_running"] == min(
        row["speed"] for row in report["one_engine"] if row["wanted_running"] == 64
    )
    assert [row["engines"] for row in report["fleets"]] == [2]
    idle, *busy = report["memory"]
    assert all(row["bytes_per_engine"] > idle["bytes_per_engine"] for row in busy)


def test_the_wanted_number_runs() -> None:
    found = speed_of_one("llama-3.1-70b-h100", "chat", running=8, cpu=0.2, seed=3)
    assert 6 < found.running < 10.5


def test_the_rate_is_littles_law() -> None:
    config, mix = config_of("llama-3.1-8b-h100"), Mix(prompt=Fixed(1000), output=Fixed(100))
    step = config.law.seconds(batch=10, held_tokens=10 * 1050, prefill_tokens=100)
    assert rate_for(10, config=config, mix=mix) == pytest.approx(10 / (100 * step))


@pytest.mark.parametrize("option", [["--seconds", "0"], ["--running", "0"], ["--engines", "-1"]])
def test_refuses_what_cannot_be_measured(option: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(option)
    assert stopped.value.code == 2
