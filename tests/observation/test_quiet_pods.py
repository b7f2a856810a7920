"""Which pods say that nothing waits, from their gauges alone."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.observation.quiet_pods import PodName, quiet_pods
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.state_windows import EngineKey, Windows

NOW, PACE, WINDOW = 10_000.0, 15.0, 60
WINDOWS = Windows(usual=WINDOW, interval=PACE)
POD = PodName("prod", "chat-0")


def waiting(
    values: Sequence[float], *, pod: str = "chat-0", engine: str = "0", until: float = NOW, **more: str
) -> Series:
    labels = {"__name__": "vllm:num_requests_waiting", "namespace": "prod", "pod": pod, "engine": engine, **more}
    times = [until - PACE * (len(values) - 1 - number) for number in range(len(values))]
    return Series(labels=labels, times=times, values=list(values))


def quiet(*gauges: Series, windows: Windows = WINDOWS) -> frozenset[PodName]:
    return quiet_pods(gauges, windows=windows, at=NOW)


def test_a_pod_in_which_nothing_waited_for_a_window_is_quiet() -> None:
    assert quiet(waiting([0.0] * 8)) == {POD}


@pytest.mark.parametrize(
    "gauge",
    [
        pytest.param(waiting([0.0] * 7 + [1.0]), id="a request waits"),
        pytest.param(waiting([0.0] * 5 + [1.0, 0.0, 0.0]), id="one has waited in the window"),
        pytest.param(waiting([0.0] * 7 + [math.nan]), id="no number"),
        pytest.param(waiting([0.0] * 8, until=NOW - 4 * PACE), id="silent for four scrapes"),
        pytest.param(waiting([]), id="a native histogram where a number was asked for"),
        pytest.param(waiting([0.0], until=NOW - 50), id="one sample, long ago"),
        pytest.param(waiting([0.0] * 8, __name__="vllm:num_requests_running"), id="says nothing of its queue"),
    ],
)
def test_a_pod_is_not_quiet_when(gauge: Series) -> None:
    assert quiet(gauge) == frozenset()


def test_what_waited_before_the_window_is_over() -> None:
    assert quiet(waiting([5.0, 0.0, 0.0, 0.0, 0.0, 0.0])) == {POD}


def test_every_core_of_a_pod_has_to_be_quiet() -> None:
    assert quiet(waiting([0.0] * 8), waiting([0.0] * 7 + [2.0], engine="1")) == frozenset()


def test_a_slower_engine_is_held_to_its_own_window() -> None:
    windows = Windows(usual=WINDOW, interval=PACE, own={EngineKey("prod", "chat-0", "0"): 120})
    assert quiet(waiting([0.0, 3.0, *[0.0] * 6]), windows=windows) == frozenset()
    assert quiet(waiting([0.0, 3.0, *[0.0] * 6])) == {POD}


@given(st.lists(st.lists(st.sampled_from([0.0, 0.0, 1.0, math.nan]), max_size=12), max_size=6))
def test_a_quiet_pod_has_a_sample_in_the_window_and_none_that_is_not_zero(histories: list[list[float]]) -> None:
    gauges = [waiting(values, pod=f"pod-{number}") for number, values in enumerate(histories)]
    found = quiet(*gauges)
    for number, values in enumerate(histories):
        recent = values[-int(WINDOW / PACE) :]
        expected = bool(recent) and not any(value != 0 for value in recent)
        assert (PodName("prod", f"pod-{number}") in found) == expected
