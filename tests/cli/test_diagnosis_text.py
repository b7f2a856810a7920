"""Evidence and recommendation as `diagnose` prints them."""

from collections.abc import Callable

import pytest

from vllm_autotuner.cli.diagnosis.text import quantity
from vllm_autotuner.overview.number_format import figure


@pytest.mark.parametrize("written", [quantity, figure])
def test_one_of_a_unit_is_written_in_the_singular(written: Callable[[float | None, str], str]) -> None:
    assert [written(number, "GPUs") for number in (1.0, 2.0)] == ["1 GPU", "2 GPUs"]
    assert written(1.0, "sequences") == "1 sequence"
