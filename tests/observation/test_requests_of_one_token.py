"""Requests of one token, as guards and classifiers make them: vLLM counts their time per output token as 0."""

from collections.abc import Sequence

import pytest
from tests.simulation.virtual import config

from vllm_autotuner.observation.metrics_text import Sample
from vllm_autotuner.observation.observation import Observation, observe
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
    found = await take_snapshot(recording, at=120.0, settings=WindowSettings(state=60.0))
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
