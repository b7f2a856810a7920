"""Times and counts in words."""

import pytest

from vllm_autotuner.api.wording import counted, told_advice, told_apart, told_seconds, told_waiting, with_unit


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, "0 ms"),
        (0.00004, "0.04 ms"),
        (0.00045, "0.45 ms"),
        (0.00097, "0.97 ms"),
        (0.0042, "4.2 ms"),
        (0.005, "5 ms"),
        (0.00999, "10 ms"),
        (0.0507, "51 ms"),
        (0.508, "508 ms"),
        (0.9996, "1.0 s"),
        (2.44, "2.4 s"),
        (160.04, "160.0 s"),
    ],
)
def test_a_time_has_the_digits_that_tell_it_from_nothing(seconds: float, told: str) -> None:
    assert told_seconds(seconds) == told


@pytest.mark.parametrize(("number", "told"), [(0, "0 pods"), (1, "1 pod"), (3, "3 pods")])
def test_a_count_agrees_with_its_noun(number: int, told: str) -> None:
    assert counted(number, "pod") == told


@pytest.mark.parametrize(
    ("requests", "told"),
    [(0.0, "0 requests wait"), (1.0, "1 request waits"), (1.2, "1 request waits"), (3.0, "3 requests wait")],
)
def test_requests_that_wait_in_words(requests: float, told: str) -> None:
    assert told_waiting(requests) == told


@pytest.mark.parametrize(
    ("number", "unit", "told"),
    [
        ("1", "GPUs", "1 GPU"),
        ("2", "GPUs", "2 GPUs"),
        ("0", "requests", "0 requests"),
        ("1", "tokens/s", "1 token/s"),
        ("1.2", "tokens/s", "1.2 tokens/s"),
        ("1", "s", "1 s"),
        ("1", "ratio", "1 ratio"),
        ("1", "", "1"),
    ],
)
def test_a_unit_agrees_with_its_number(number: str, unit: str, told: str) -> None:
    assert with_unit(number, unit) == told


@pytest.mark.parametrize(
    ("seconds", "limit", "told"),
    [
        (0.060, 0.050, ("60 ms", "50 ms")),
        (0.00904, 0.009, ("9.04 ms", "9 ms")),
        (0.0253, 0.025, ("25.3 ms", "25.0 ms")),
        (0.0258, 0.0256, ("25.8 ms", "25.6 ms")),
        (2.04, 2.0, ("2.04 s", "2.00 s")),
        (0.025001, 0.025, ("just over 25.0 ms", "25.0 ms")),
        (0.0246, 0.025, ("24.6 ms", "25.0 ms")),
        (0.024999, 0.025, ("25.0 ms", "25.0 ms")),
        (0.025, 0.025, ("25 ms", "25 ms")),
    ],
)
def test_a_miss_can_be_read_from_the_digits(seconds: float, limit: float, told: tuple[str, str]) -> None:
    assert told_apart(seconds, limit) == told


@pytest.mark.parametrize(
    ("companions", "told"),
    [
        ({}, "tensorParallelSize 2 -> 1"),
        ({"maxNumSeqs": 174}, "tensorParallelSize 2 -> 1 with maxNumSeqs 174"),
        (
            {"maxNumSeqs": 174, "maxModelLen": 8192},
            "tensorParallelSize 2 -> 1 with maxNumSeqs 174 and maxModelLen 8192",
        ),
    ],
)
def test_what_goes_with_a_value_is_told_with_it(companions: dict[str, int], told: str) -> None:
    assert told_advice({"knob": "tensorParallelSize", "current": "2", "recommended": "1", **companions}) == told


def test_a_value_that_was_not_set_is_the_default() -> None:
    assert told_advice({"knob": "maxNumSeqs", "recommended": "64"}) == "maxNumSeqs default -> 64"
