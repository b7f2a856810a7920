"""A line measured at one degree, carried to another: the worked example, and what makes it say nothing."""

import pytest

from vllm_autotuner.engine.geometry import Geometry, UnknownGeometry, geometry_named
from vllm_autotuner.engine.hardware import Gpu, gpu_named
from vllm_autotuner.performance.step_time import NoFit, StepTime, StepTimeFit
from vllm_autotuner.performance.tensor_parallel import at_degree, measured_links

QWEN = geometry_named("Qwen/Qwen3-32B")
H100 = gpu_named("NVIDIA-H100-80GB-HBM3")
AT_2 = StepTime(base=0.01440, per_sequence=0.182e-3, low=8, high=128, points=5, error=0.004)


def moved(
    wanted: int, *, line: StepTime = AT_2, degree: int = 2, weight: float | None = 2.0, gpu: Gpu | None = H100,
    shape: Geometry | UnknownGeometry = QWEN,
) -> StepTimeFit:  # fmt: skip
    return at_degree(line, degree=degree, wanted=wanted, shape=shape, gpu=gpu, bytes_per_weight=weight, context=1536.0)


def test_the_worked_example() -> None:
    """Measured at degree 4: 9.60 ms + 0.124 ms for each sequence."""
    found = moved(4)
    assert isinstance(found, StepTime)
    assert found.base == pytest.approx(0.0096, rel=0.03)
    assert found.per_sequence == pytest.approx(0.124e-3, rel=0.06)
    assert (found.low, found.high, found.points) == (8, 128, 5)


def test_there_and_back_again() -> None:
    wider = moved(4)
    assert isinstance(wider, StepTime)
    back = moved(2, line=wider, degree=4)
    assert isinstance(back, StepTime)
    assert back.base == pytest.approx(AT_2.base)
    assert back.per_sequence == pytest.approx(AT_2.per_sequence, rel=0.1)


def test_twice_the_gpus_never_halve_a_step() -> None:
    found = moved(4)
    assert isinstance(found, StepTime)
    for batch in (1, 32, 512):
        assert AT_2.predict(batch) / 2 < found.predict(batch) < AT_2.predict(batch)


def test_copied_heads_read_no_less() -> None:
    """8 KV heads over 16 GPUs: each holds one, as over 8."""
    reading = StepTime(base=0.02, per_sequence=1e-3, low=1, high=9, points=3, error=0.0)
    wide, wider = moved(16, line=reading, degree=8), moved(8, line=reading, degree=8)
    assert isinstance(wide, StepTime)
    assert isinstance(wider, StepTime)
    assert wide.per_sequence > wider.per_sequence / 2


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (moved(4, shape=UnknownGeometry("latent attention")), "latent attention"),
        (moved(4, gpu=None), "GPU is not known"),
        (moved(4, weight=None), "size of the weights"),
    ],
)
def test_what_is_not_known_is_no_prediction(found: StepTimeFit, says: str) -> None:
    assert isinstance(found, NoFit)
    assert says in found.why


def test_the_same_degree_needs_no_hardware() -> None:
    assert moved(2, gpu=None, weight=None) is AT_2


@pytest.mark.parametrize(
    ("label", "measured"),
    [("NVIDIA-H100-80GB-HBM3", True), ("NVIDIA-H200", True), ("NVIDIA-H100-PCIe", False), ("NVIDIA-L4", False)],
)
def test_where_the_rules_were_seen_to_hold(label: str, measured: bool) -> None:
    assert measured_links(gpu_named(label)) is measured
    assert not measured_links(None)
