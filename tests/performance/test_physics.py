"""What engines in general cost."""

import pytest

from vllm_autotuner.performance.physics import empty_step


@pytest.mark.parametrize(
    ("batch", "context", "prefilling", "expected"),
    [
        pytest.param(68, 700, 1 / 3, 0.0128, id="worked by hand"),
        pytest.param(0, 700, 0.0, 0.028, id="it was measured"),
        pytest.param(68, 2100, 0.0, 0.0152, id="longer contexts add more"),
    ],
)
def test_what_one_measured_step_says_of_an_empty_one(
    batch: float, context: float, prefilling: float, expected: float
) -> None:
    found = empty_step(0.028, batch=batch, context=context, prefilling=prefilling)
    assert found == pytest.approx(expected, rel=0.01)
