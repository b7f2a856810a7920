"""A mixture of experts: its step time bends with the experts that a batch reads; what follows from the curve."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.engine.geometry import Experts, geometry_named
from vllm_autotuner.engine.hardware import gpu_named
from vllm_autotuner.observation.observation import StepPoint
from vllm_autotuner.performance.capacity import Limits, Replica, capacity
from vllm_autotuner.performance.knee import largest_batch_at_quantile, largest_batch_within
from vllm_autotuner.performance.step_time import NoFit, StepTime, at_quantile, fit_step_time
from vllm_autotuner.performance.tensor_parallel import at_degree

EXPERTS = Experts(128, 8)
MEASURED = (
    (1, 3.837), (2, 4.729), (4, 6.382), (8, 9.168), (16, 13.04), (32, 17.11), (64, 22.12), (128, 26.74),
)  # fmt: skip
"""Clients and mean inter-token latency (ms) of a real vLLM 0.26 on one H200, a model of Qwen3-30B-A3B's shape.
Source: tests/data/vllm-0.26-h200/sweeps/h200-mixture."""
CURVE = StepTime(
    base=0.003, per_sequence=0.0001, experts=EXPERTS, reading=0.014, low=1.0, high=128.0, points=30, error=0.01
)


def windows(
    pairs: Sequence[tuple[float, float]], *, experts: Experts | None = EXPERTS, noise: float = 0.0, seed: int = 7
) -> list[StepPoint]:
    """One window for each batch and its milliseconds."""
    wobble = np.random.default_rng(seed).normal(1.0, noise, len(pairs))
    return [
        StepPoint(running=float(batch), itl=itl / 1e3 * factor, tokens=1000.0, experts=experts)
        for (batch, itl), factor in zip(pairs, wobble, strict=True)
    ]


def planted(batches: Sequence[float], *, noise: float = 0.0, seed: int = 7) -> list[StepPoint]:
    return windows([(batch, CURVE.predict(batch) * 1e3) for batch in batches], noise=noise, seed=seed)


def fitted(points: Sequence[StepPoint]) -> StepTime:
    found = fit_step_time(points)
    assert isinstance(found, StepTime), found
    return found


def misses(model: StepTime, pairs: Sequence[tuple[float, float]]) -> list[float]:
    return [abs(model.predict(float(batch)) * 1e3 / itl - 1) for batch, itl in pairs]


@pytest.mark.parametrize(
    ("seen", "left_out", "within"),
    [
        pytest.param(MEASURED[::2], MEASURED[1:7:2], 0.06, id="every other one, inside"),
        pytest.param(MEASURED[1::2], MEASURED[2:8:2], 0.06, id="the others, inside"),
        pytest.param(MEASURED[::2], MEASURED[7:], 0.16, id="a doubling beyond, by four windows"),
    ],
)
def test_half_of_a_measured_sweep_foretells_the_other_half(
    seen: Sequence[tuple[float, float]], left_out: Sequence[tuple[float, float]], within: float
) -> None:
    assert max(misses(fitted(windows(seen)), left_out)) < within


def test_a_line_through_the_same_windows_misses_the_others_by_far() -> None:
    line = fitted(windows(MEASURED[1::2], experts=None))
    assert max(misses(line, MEASURED[::2])) > 0.3


@pytest.mark.parametrize(("milliseconds", "measured"), [(15, 23), (20, 49)])
def test_the_knee_of_the_measured_sweep(milliseconds: float, measured: float) -> None:
    """`measured`: by the straight lines between its points."""
    knee = largest_batch_within(fitted(windows(MEASURED)), target=milliseconds / 1e3)
    assert knee == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("batches", [(1, 2, 4, 8, 16, 32, 64, 128), (2, 5, 9, 14, 20, 31, 40, 52, 64, 70)])
def test_recovers_a_planted_curve(batches: Sequence[float]) -> None:
    model = fitted(planted(batches))
    for batch in (1, 10, 50, 100):
        assert model.predict(batch) == pytest.approx(CURVE.predict(batch), rel=0.05)


def test_narrow_and_noisy_windows_foretell_no_worse_than_a_line() -> None:
    """Batches of 20 to 30 with 3 % of noise: what 10 and 60 take, in the mean of 100 services."""
    mixture: list[float] = []
    line: list[float] = []
    for seed in range(100):
        points = planted(np.linspace(20, 30, 12).tolist(), noise=0.03, seed=seed)
        plain = [replace(point, experts=None) for point in points]
        for errors, model in ((mixture, fit_step_time(points)), (line, fit_step_time(plain))):
            if isinstance(model, StepTime):
                errors += [abs(model.predict(batch) / CURVE.predict(batch) - 1) for batch in (10.0, 60.0)]
    assert np.mean(mixture) < 0.9 * np.mean(line)


def test_latency_that_falls_with_the_batch_is_no_mixture_either() -> None:
    points = windows([(8, 20.0), (16, 18.0), (32, 15.0), (64, 12.0)])
    assert isinstance(fit_step_time(points), NoFit)


@pytest.mark.parametrize("per_prompt", [0.0, 1e-5])
def test_fewer_prompts_in_larger_batches_do_not_stand_for_the_bend(per_prompt: float) -> None:
    """Longer outputs make batches larger, with fewer prompts in them: a step of 27 ms at 100 was foretold as 66."""
    batches = [float(batch) for batch in (3, 90, 12, 40, 6, 120, 25, 60, 9, 75, 16, 110, 4, 50, 32)]
    prompts = [0.1 + 6 / batch**0.5 for batch in batches]
    points = [
        replace(
            point, itl=point.itl + per_prompt * point.running * each, time=60.0 * index, tokens=1000.0, prompts=each
        )
        for index, (point, each) in enumerate(zip(planted(batches, noise=0.01), prompts, strict=True))
    ]
    model, now = fitted(points), (prompts[-1] + prompts[-2]) / 2
    for batch in (3.0, 12.0, 50.0, 110.0):
        assert model.predict(batch) == pytest.approx(CURVE.predict(batch) + per_prompt * batch * now, rel=0.1)


def test_equal_latencies_stay_equal() -> None:
    model = fitted(windows([(8, 20.0), (16, 20.0), (32, 20.0)]))
    assert model.predict(100.0) == pytest.approx(0.020)


@given(
    points=st.lists(
        st.builds(
            StepPoint,
            running=st.floats(0.5, 500),
            itl=st.floats(1e-4, 10),
            tokens=st.floats(1, 1e6),
            experts=st.just(EXPERTS),
        ),
        max_size=12,
    )
)
def test_whatever_was_measured_gives_a_curve_that_rises_or_a_reason(points: list[StepPoint]) -> None:
    model = fit_step_time(points)
    if isinstance(model, StepTime):
        assert 0 <= model.predict(1) <= model.predict(10) <= model.predict(1000)
        assert min(model.base, model.per_sequence, model.reading) >= 0


@given(reading=st.floats(0, 0.05), slope=st.sampled_from([0.0, 1e-9, 1e-4, 1e-3]), target=st.floats(0.003, 0.1))
def test_the_knee_meets_the_objective_and_one_more_does_not(reading: float, slope: float, target: float) -> None:
    model = replace(CURVE, reading=reading, per_sequence=slope)
    knee = largest_batch_within(model, target=target)
    if knee is None:
        assert model.predict(1) > target
    elif model.per_sequence == 0 and model.base + model.reading <= target:
        assert knee == model.high, "as far as the model knows, unlimited"
    else:
        assert model.predict(knee) <= target * (1 + 1e-8)
        assert model.predict(knee + 1) > target


def test_a_quantile_starts_from_the_base_and_meets_the_tail_where_it_was_seen() -> None:
    late = at_quantile(CURVE, tail=1.5, seen_at=40.0)
    assert late.base == CURVE.base
    assert late.predict(40.0) == pytest.approx(1.5 * CURVE.predict(40.0))
    for batch in (1.0, 10.0, 39.0):
        assert CURVE.predict(batch) < late.predict(batch) < 1.5 * CURVE.predict(batch)
    knee = largest_batch_at_quantile(CURVE, target=0.020, tail=1.5, seen_at=40.0)
    assert knee is not None
    assert late.predict(knee) <= 0.020 < late.predict(knee + 1)


@pytest.mark.parametrize("tail", [1.0, 1.1, 1.37, 2.9])
def test_a_knee_without_an_end_is_no_number_of_rounding(tail: float) -> None:
    """Without a part that grows for ever the step of all experts is the longest: what was seen is all that is known."""
    flat = replace(CURVE, per_sequence=0.0)
    longest = at_quantile(flat, tail=tail, seen_at=37.0)
    for target in (longest.base + longest.reading, 1.0):
        assert largest_batch_at_quantile(flat, target=target, tail=tail, seen_at=37.0) == flat.high


@pytest.mark.parametrize("batches", [(20.0, 25.0, 30.0, 40.0, 60.0), (2.0, 5.0, 9.0, 14.0, 20.0, 31.0, 40.0)])
def test_rounding_of_a_fit_is_no_part_of_the_step(batches: Sequence[float]) -> None:
    """Of windows without a part that grows for ever 5e-20 seconds a sequence were left: a knee of 1.9e19."""
    flat = replace(CURVE, per_sequence=0.0, reading=0.003)
    model = fitted(windows([(batch, flat.predict(batch) * 1e3) for batch in batches]))
    assert model.per_sequence == 0
    assert largest_batch_within(model, target=1.0) == batches[-1]


def test_windows_that_no_curve_describes_are_not_said_to_miss_a_line() -> None:
    found = fit_step_time(windows([(2, 5.0), (4, 30.0), (64, 8.0), (100, 40.0)]))
    assert isinstance(found, NoFit)
    assert found.why.startswith("the curve of a mixture of experts misses the 4 windows with load by")


def test_longer_prompts_do_not_lengthen_the_reading_of_experts() -> None:
    moved = CURVE.through(40.0, 0.030)
    assert moved.predict(40.0) == pytest.approx(0.030)
    assert (moved.base, moved.reading) == (CURVE.base, CURVE.reading)


def test_a_curve_of_earlier_goes_through_now() -> None:
    moved = CURVE.scaled_through(40.0, 0.018, base=0.0)
    assert moved.predict(40.0) == pytest.approx(0.018)
    assert moved.read(40.0) / moved.added(40.0) == pytest.approx(CURVE.read(40.0) / CURVE.added(40.0))
    assert moved.per_sequence > 0


def test_the_capacity_is_where_the_curve_meets_the_objective() -> None:
    found = capacity(Replica(step=CURVE, output=200.0), limits=Limits(tpot=0.015, ttft=1.0, ttft_quantile=0.95))
    knee = largest_batch_within(CURVE, target=0.015)
    assert knee is not None
    assert found.batch == pytest.approx(knee, abs=1)
    assert found.rate == pytest.approx(found.batch / (200 * CURVE.predict(found.batch)))


def test_twice_the_gpus_read_the_experts_in_half_the_time() -> None:
    wider = at_degree(
        CURVE,
        degree=1,
        wanted=2,
        shape=replace(geometry_named("Qwen/Qwen3-32B"), experts=EXPERTS),
        gpu=gpu_named("NVIDIA-H200"),
        bytes_per_weight=2.0,
        context=1536.0,
    )
    assert isinstance(wider, StepTime)
    assert wider.reading == CURVE.reading / 2
    assert wider.predict(64) > CURVE.predict(64) / 2
