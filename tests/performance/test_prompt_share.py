"""Prompts grow: windows of before tell what a step takes, windows of now what a prompt adds to it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measured_curves.batch_curve import BatchCurve, fit_batch_curve
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.prompt_share import with_newest_prompts
from vllm_autotuner.performance.step_time import StepTime, fit_step_time

BASE, EACH, PROMPT = 0.020, 0.0002, 0.0001
"""Seconds: a step without a sequence, what one adds to it, and what a token of a prompt does."""
CHAT = [(33.0, 1.5), (50.0, 1.4), (41.0, 1.6), (36.0, 1.5), (45.0, 1.5)]
DRIFT = [(70.0, 3.0), (90.0, 5.0), (113.0, 5.0), (60.0, 6.0)]
LONG = [(44.0, 9.0), (20.0, 9.0), (18.0, 9.0)]
"""(sequences, prompt tokens per output token), a window each."""


def windows(*shown: tuple[float, float | None], noise: float = 0.0, counted: bool = True) -> list[StepPoint]:
    wobble = np.random.default_rng(5).normal(1.0, noise, len(shown))
    return [
        StepPoint(
            running=batch,
            itl=(BASE + batch * (EACH + PROMPT * (share or 0.0))) * factor,
            tokens=100.0 * batch,
            time=30.0 * index,
            prompts=share if counted else None,
        )
        for index, ((batch, share), factor) in enumerate(zip(shown, wobble, strict=True))
    ]


def test_the_worked_example() -> None:
    law = [(20.0, 1.0), (10.0, 1.0), (40.0, 1.0), (15.0, 5.0), (30.0, 5.0)]
    points = [replace(point, itl=point.itl - 0.010 - 0.0001 * point.running) for point in windows(*law)]
    found = with_newest_prompts(points)
    assert [round(point.itl, 6) for point in found[:2]] == [0.022, 0.016]
    assert {point.prompts for point in found} == {5.0}


@pytest.mark.parametrize("noise", [pytest.param(0.0, id="without noise"), pytest.param(0.03, id="3 % of noise")])
def test_the_line_after_a_drift_has_the_base_of_all_and_the_slope_of_now(noise: float) -> None:
    """By the batch alone the line through these had a base of 4 ms, and replicas came minutes late (length-drift)."""
    found = fit_step_time(windows(*CHAT, *DRIFT, *LONG, noise=noise))
    assert isinstance(found, StepTime)
    assert found.base == pytest.approx(BASE, rel=0.001 if noise == 0 else 0.15)
    assert found.per_sequence == pytest.approx(EACH + 9 * PROMPT, rel=0.001 if noise == 0 else 0.15)
    alone = fit_step_time(windows(*CHAT, *DRIFT, *LONG, noise=noise, counted=False))
    assert not isinstance(alone, StepTime) or abs(alone.base - BASE) > 0.2 * BASE


def test_the_curve_is_of_the_prompts_of_now_as_well() -> None:
    curve = fit_batch_curve(windows(*CHAT, *DRIFT, *LONG))
    assert isinstance(curve, BatchCurve)
    assert curve.predict(100.0) == pytest.approx(BASE + 100.0 * (EACH + 9 * PROMPT), rel=0.02)


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(windows(*CHAT, *CHAT), id="prompts have not moved"),
        pytest.param(windows(*CHAT, *DRIFT, *LONG, counted=False), id="nobody counts them"),
        pytest.param([*windows(*CHAT, *DRIFT)[1:], *windows((3.0, None), counted=False)], id="somebody does not"),
        pytest.param(windows(*CHAT[:2], *LONG[:2]), id="too few to contradict"),
        pytest.param(windows(*[(6.0, 0.0)] * 4, (5.0, 3.0), noise=0.2), id="two different windows, however often"),
        pytest.param(
            [replace(point, time=None) for point in windows(*CHAT, *LONG)], id="of no window: nobody knows what is new"
        ),
        pytest.param(
            [replace(point, itl=0.02 + 0.001 * point.running) for point in windows(*CHAT, *DRIFT, *LONG)],
            id="prompts explain nothing that the batch does not",
        ),
        pytest.param(
            [replace(point, itl=0.3 / point.prompts) for point in windows(*CHAT, *LONG) if point.prompts],
            id="longer prompts come with faster steps: something else moved",
        ),
    ],
)
def test_else_nothing_is_touched(points: list[StepPoint]) -> None:
    assert with_newest_prompts(points) == points


@given(
    shown=st.lists(st.tuples(st.floats(1, 500), st.floats(0, 50)), min_size=5, max_size=40),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_latencies_stay_positive_and_no_unit_matters(shown: list[tuple[float, float]], scale: float) -> None:
    points = windows(*shown, noise=0.2)
    points = [replace(point, itl=abs(point.itl) + 1e-6) for point in points]
    found = with_newest_prompts(points)
    assert all(point.itl > 0 for point in found)
    scaled = with_newest_prompts([replace(point, itl=point.itl * scale) for point in points])
    assert [point.itl for point in scaled] == pytest.approx([point.itl * scale for point in found], rel=1e-6)
