"""Durations: parsing, formatting, and that both are inverse."""

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.api.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("10m", 600),
        ("6h", 21600),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("12.5ms", 0.0125),
        ("1.5h", 5400),
        ("0s", 0),
    ],
)
def test_reads(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "30", "s", "-5m", "1d", "PT2S", "1 h", "30s\n", "\u0661s", "99999999h", "1h" * 13],
)
def test_refuses_with_an_example_of_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="such as 500ms, 30s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(), "0s"),
        (timedelta(seconds=90), "1m30s"),
        (timedelta(days=1), "24h"),
        (timedelta(milliseconds=1500), "1s500ms"),
        (timedelta(microseconds=12500), "12.5ms"),
    ],
)
def test_writes_the_largest_units(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


def test_a_negative_duration_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="negative"):
        format_duration(timedelta(seconds=-1))


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=400_000)))
def test_what_is_written_reads_back(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(st.text(alphabet="0123456789.hms", max_size=24))
def test_no_text_overflows(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_duration(text) >= timedelta()
