"""A Prometheus that has lost all series still answers: what a fleet is told of it, and in how many writes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any, Final, cast

import pytest
from tests.control.desk import START
from tests.control.loop_bed import Bed, bed
from tests.simulation.virtual import config

from vllm_autotuner.control.read import metrics_sources as sources_module
from vllm_autotuner.control.read.metrics_sources import Sources
from vllm_autotuner.control.run.fleet_loop import FleetLoop
from vllm_autotuner.observation.metrics_text import Sample
from vllm_autotuner.observation.questions import Question
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.series_memory import SeriesMemory
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.lengths import Fixed
from vllm_autotuner.simulation.scrapes import scraped
from vllm_autotuner.simulation.traffic import Content, Mix, OpenLoop
from vllm_autotuner.simulation.virtual import VirtualFleet

NAMES: Final = [f"chat-{number:02}" for number in range(60)]
"""Twice as many as a fleet may have in which no service rests."""
LOST: Final = 14
"""Ticks: until nothing of the engines is remembered that is asked about as a whole every few minutes."""
BACK: Final = 8
"""Ticks until whatever is new with metrics that come, or come back, is told."""
SCRAPED_EVERY: Final = 15.0
WHOLE_STORY: Final = 1000.0
"""Seconds of samples, as many before the story begins as are asked for at most."""


@cache
def one_engine() -> Recording:
    """Of an engine under a steady load."""
    mix = Mix(prompt=Fixed(200), output=Fixed(100))
    fleet = VirtualFleet(OpenLoop(RateCurve.constant(2.0), Content(mix), seed=3))
    fleet.start_pod(config(), startup=0.0)
    recording, begin = Recording(), START.timestamp() - 300
    while fleet.now < WHOLE_STORY:
        fleet.advance(fleet.now + SCRAPED_EVERY)
        for name, labels, value in scraped(fleet.pods[0]):
            recording.add(Sample(name=name, labels=labels, value=value, time=None), time=begin + fleet.now)
    return recording


class Prometheus:
    """Says of every pod that serves what was recorded of one engine."""

    def __init__(self, found: Bed) -> None:
        self._bed = found
        self._engine = one_engine()
        self.lost = False
        """All series."""

    async def ask(
        self, question: Question, *, at: float, memory: SeriesMemory | None = None, **_: object
    ) -> Sequence[Series]:
        if self.lost:
            return []
        found = []
        answer = await self._engine.ask(question, at=at)
        for pod in self._bed.api.pods:
            for one in answer if pod.ready_since is not None else ():
                series = replace_labels(one, namespace="prod", pod=pod.name)
                if memory is not None:
                    points = list(zip(one.times, one.values, strict=True))
                    series = memory.take(json.dumps(series.labels).encode(), series.labels, points)
                found.append(series)
        return found


def replace_labels(series: Series, **labels: str) -> Series:
    return Series(labels={**series.labels, **labels}, times=series.times, values=series.values)


async def writes_of(found: Bed, *, ticks: int) -> int:
    before = found.api.requests["status"]
    await found.ticks(ticks)
    return found.api.requests["status"] - before


def told(found: Bed) -> set[tuple[Any, ...]]:
    """Of all services: class, and MetricsAvailable with its reason."""
    statuses = [found.status(name) for name in NAMES]
    return {
        (status.diagnosis and status.diagnosis.class_, condition.status.value, condition.reason)
        for status in statuses
        for condition in status.conditions
        if condition.type == "MetricsAvailable"
    }


@pytest.mark.parametrize(
    "settled",
    [
        pytest.param(16, id="when they are silent, their last samples are known for a while"),
        pytest.param(20, id="their histograms are missed first"),
    ],
)
async def test_lost_series_are_told_in_one_write_of_each_service_and_so_is_their_return(
    settled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There were two and three writes of each. `settled`: ticks before the loss."""
    found = bed(*NAMES)
    prometheus = Prometheus(found)
    monkeypatch.setattr(sources_module, "PrometheusSource", lambda address: cast(Any, prometheus))
    settings = replace(found.context.settings, window=timedelta(seconds=60))
    found.context = replace(found.context, settings=settings)
    found.loop = FleetLoop(found.context, sources=Sources(settings))
    await found.ticks(BACK)
    assert await writes_of(found, ticks=settled - BACK) == 0, "however the figures of a steady load vary"
    assert told(found) == {("Healthy", "True", "MetricsFresh")}
    prometheus.lost = True
    assert await writes_of(found, ticks=LOST) == len(NAMES)
    assert told(found) == {("MetricsBlind", "False", "MetricsStale")}
    prometheus.lost = False
    assert await writes_of(found, ticks=BACK) == len(NAMES)
    assert told(found) == {("Healthy", "True", "MetricsFresh")}
