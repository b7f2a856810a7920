"""Requests of one token, as guards and classifiers make them: vLLM counts their time per output token as 0."""

import math
from collections.abc import Sequence

import pytest
from tests.simulation.virtual import config

from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.metrics_text import Sample
from vllm_autotuner.observation.observation import Observation, _of_several_tokens, observe
from vllm_autotuner.observation.reading import Measured
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.snapshot import WindowSettings, take_snapshot
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.lengths import Empirical, Fixed
from vllm_autotuner.simulation.scrapes import scraped
from vllm_autotuner.simulation.traffic import Content, Mix, OpenLoop
from vllm_autotuner.simulation.virtual import VirtualFleet


async def seen(outputs: Sequence[int], *, rate: float) -> Observation:
    """A minute of such requests, each of them as likely."""
    mix = Mix(prompt=Fixed(50), output=Empirical(outputs))
    fleet = VirtualFleet(OpenLoop(RateCurve.constant(rate), Content(mix), seed=3))
    fleet.start_pod(config(), startup=0.0)
    recording = Recording()
    for second in range(5, 121, 5):
        fleet.advance(float(second))
        for name, labels, value in scraped(fleet.pods[0]):
            recording.add(Sample(name=name, labels=labels, value=value, time=None), time=float(second))
    found = await take_snapshot(recording, at=120.0, settings=WindowSettings(state=60))
    return observe(found, found.engines)


async def test_they_do_not_make_the_tokens_of_others_look_late() -> None:
    alone, beside = await seen([100], rate=5.0), await seen([100, 100, 1], rate=7.5)
    for one in (alone, beside):
        assert isinstance(one.tpot.mean, Measured)
        assert one.tpot.count == pytest.approx(300, rel=0.2)
    figures = [[one.tpot.mean, one.tpot.quantile(0.95)] for one in (alone, beside)]
    for before, after in zip(*figures, strict=True):
        assert isinstance(before, Measured)
        assert isinstance(after, Measured)
        assert after.value == pytest.approx(before.value, rel=0.05)


async def test_without_others_there_is_no_time_per_token() -> None:
    assert not isinstance((await seen([1], rate=5.0)).tpot.mean, Measured)


@pytest.mark.parametrize(
    ("mean", "interval", "left"),
    [
        pytest.param(0.030, 0.040, 300.0, id="a quarter of them are 0: the mean lacks as much"),
        pytest.param(0.040, 0.040, 400.0, id="they ended long ago: nothing of now lowers the mean"),
        pytest.param(0.036, 0.040, 360.0, id="fewer of them came lately"),
        pytest.param(0.030, None, 300.0, id="the intervals are not known"),
    ],
)
def test_no_more_are_taken_out_than_the_mean_lacks(mean: float, interval: float | None, left: float) -> None:
    """How many ended with one token is known of half an hour, and a fast model has all its requests in one bucket."""
    lengths = Distribution(buckets={1.0: 25.0, 100.0: 100.0, math.inf: 100.0})
    counted = Distribution(buckets={0.05: 400.0, math.inf: 400.0}, total=400 * mean, count=400.0)
    itl = Distribution() if interval is None else Distribution(buckets={}, total=1000 * interval, count=1000.0)
    assert _of_several_tokens(counted, itl=itl, lengths=lengths).count == pytest.approx(left)
