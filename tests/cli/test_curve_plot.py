"""The fitted curve as a picture: that it is one, and what cannot be drawn."""

import re
from pathlib import Path

import pytest
from tests.builders import targets
from tests.planning.situations import CAPPED, diagnosis, line, with_steps

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.evaluate.evaluation import ServiceReport
from vllm_autotuner.cli.evaluate.service_groups import ServiceName
from vllm_autotuner.cli.service.curve_plot import FORMATS, plot_curve
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.planning.plan import Plan


def drawn(path: Path, *steps: StepPoint, tpot: float = 0.05) -> None:
    report = ServiceReport(
        service=ServiceName("", "chat"),
        model="a $model$ with_signs",
        targets=targets(tpot=tpot),
        observation=with_steps(CAPPED, steps),
        diagnosis=diagnosis(DiagnosisClass.CONCURRENCY_CAPPED),
        plan=Plan(),
    )
    plot_curve(path, report, case=Case(observation=report.observation, targets=report.targets, knobs=EngineKnobs()))


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_picture_of_each_kind(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"curve{suffix}"
    drawn(path, *line(8, 16, 32, 64, base=0.01, per_sequence=0.0004))
    assert path.stat().st_size > 1000


def test_the_knee_and_the_objective_are_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curve.svg"
    drawn(path, *line(8, 16, 32, 64, base=0.01, per_sequence=0.0004))
    text = path.read_text()
    # 50 ms is the objective of the 95th percentile, which lies a little above the mean that the line is about.
    knee = re.search(r"<!-- knee: (\d+) sequences", text)
    assert knee is not None
    assert 90 <= int(knee[1]) <= 100
    for part in ("TPOT objective", "observed windows", "extrapolated", "the same at p95"):
        assert f"<!-- {part}" in text


def test_an_objective_that_nothing_meets_has_no_knee(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curve.svg"
    drawn(path, *line(8, 16, 32, 64, base=0.01, per_sequence=0.0004), tpot=0.005)
    assert "knee" not in path.read_text()


def test_without_a_fit_there_is_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no step-time model to draw: only 0 windows"):
        drawn(tmp_path / "curve.png")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(CommandError, match="cannot write"):
        drawn(tmp_path / "gone" / "curve.png", *line(8, 16, 32, 64, base=0.01, per_sequence=0.0004))
