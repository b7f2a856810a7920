"""A recording and a Prometheus that holds the same samples answer alike: one arithmetic, one diagnosis.

What is compared is every question that a snapshot asks, series by series, and then what is concluded from them.
"""

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from tests.diagnosis.recorded import RECORDINGS, SEATS, recording, timeline
from typer.testing import CliRunner

from e2e.processes import Processes, StateFile
from e2e.prometheus import Prometheus, load_recording
from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.control.read.metrics_sources import Memories, Within
from vllm_autotuner.observation.prometheus import PrometheusAddress, PrometheusSource
from vllm_autotuner.observation.questions import Means, MetricsSource, Question, promql
from vllm_autotuner.observation.recording import load_recording as recording_of
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.snapshot import WindowSettings, take_snapshot

OFFSETS = (1.0, 7.5, 42.0, 60.0, 100.3, 140.6, 175.0, 179.9)
"""Seconds after each recording's start: nothing yet, a partial window, light load, the limits, and near the end."""
TICK = 15.0
ALL_RECORDINGS = sorted(RECORDINGS.parent.glob("*/*.om.gz"))
NO_NAMESPACE = ("",)
"""Their series have no such label."""


@pytest.fixture(params=list(SEATS))
async def loaded(
    request: pytest.FixtureRequest, binaries: Mapping[str, Path], tmp_path: Path
) -> AsyncIterator[tuple[str, str]]:
    """A recording's name, and a Prometheus of its own: the three have equal labels and lie in each other's windows."""
    async with holding(RECORDINGS / f"{request.param}.om.gz", binaries=binaries, folder=tmp_path) as url:
        yield request.param, url


@asynccontextmanager
async def holding(file: Path, *, binaries: Mapping[str, Path], folder: Path) -> AsyncIterator[str]:
    """The URL of a Prometheus that has this recording."""
    load_recording(file, binaries=binaries, data=folder / "data")
    processes = Processes(logs=folder / "logs", state=StateFile(folder / "bed.json"))
    server = Prometheus(binaries=binaries, processes=processes, data=folder / "data", config={})
    await server.start()
    yield server.url
    server.stop()


@asynccontextmanager
async def asked(url: str) -> AsyncIterator[PrometheusSource]:
    source = PrometheusSource(PrometheusAddress(url=url, timeout=timedelta(minutes=1)))
    yield source
    await source.close()


class Comparing:
    """Asks both and remembers where they differ; answers with what Prometheus said."""

    def __init__(self, prometheus: MetricsSource, recorded: MetricsSource) -> None:
        self.prometheus, self.recorded = prometheus, recorded
        self.differences: list[str] = []
        self.compared = 0

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        theirs = await self.prometheus.ask(question, at=at)
        ours = await self.recorded.ask(question, at=at)
        where = f"{promql(question)[:100]} at {at}"
        left, right = _by_labels(theirs, question=question), _by_labels(ours, question=question)
        for labels in left.keys() ^ right.keys():
            self.differences.append(f"{where}: only {'Prometheus' if labels in left else 'we'} know {dict(labels)}")
        for labels in left.keys() & right.keys():
            self.compared += 1
            if not _equal(left[labels], right[labels]):
                self.differences.append(f"{where}: {dict(labels)}\n  {left[labels]}\n  {right[labels]}")
        return theirs


def _by_labels(answer: Sequence[Series], *, question: Question) -> Mapping[frozenset[tuple[str, str]], Series]:
    # PromQL's functions drop the metric name; a recording keeps it, and nobody looks.
    dropped = {"__name__"} if isinstance(question, Means) else set()
    return {frozenset((key, text) for key, text in one.labels.items() if key not in dropped): one for one in answer}


def _equal(left: Series, right: Series) -> bool:
    times = len(left.times) == len(right.times) and all(
        math.isclose(one, other, abs_tol=0.002) for one, other in zip(left.times, right.times, strict=True)
    )
    return times and all(
        math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
        for one, other in zip(left.values, right.values, strict=True)
    )


async def test_every_question_has_the_same_answer(loaded: tuple[str, str]) -> None:
    name, url = loaded
    async with asked(url) as prometheus:
        source = Comparing(prometheus, recording(name))
        for offset in OFFSETS:
            at = round(recording(name).first + offset, 3)
            snapshot = await take_snapshot(source, at=at, settings=WindowSettings())
            assert snapshot.error is None
    assert source.differences == []
    assert source.compared > 1000


async def test_the_same_is_concluded(loaded: tuple[str, str]) -> None:
    name, url = loaded
    recorded = recording(name)
    count = int((recorded.last - recorded.first) / TICK)
    moments = [round(recorded.first + TICK * index, 3) for index in range(1, count + 1)]
    async with asked(url) as prometheus:
        theirs = await timeline(prometheus, moments=moments, seats=SEATS[name])
    ours = await timeline(recorded, moments=moments, seats=SEATS[name])
    for (at, one), (_, other) in zip(theirs, ours, strict=True):
        told = f"{name} +{at - recorded.first:.0f} s"
        assert (one.primary, one.confidence, one.since) == (other.primary, other.confidence, other.since), told
        assert one.message == other.message, told
        assert [fact.name for fact in one.evidence] == [fact.name for fact in other.evidence], told
        for left, right in zip(one.evidence, other.evidence, strict=True):
            assert left.value == pytest.approx(right.value, rel=1e-6, abs=2e-6), f"{told}: {left.name}"


@dataclass(frozen=True, slots=True)
class Anew:
    """Asks whole questions, as an operator that has just started."""

    client: PrometheusSource

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        return await Within(client=self.client, namespaces=NO_NAMESPACE).ask(question, at=at)


@pytest.mark.parametrize("file", ALL_RECORDINGS, ids=lambda file: file.name.removesuffix(".om.gz"))
async def test_reading_only_what_is_new_changes_no_diagnosis(
    file: Path, binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    """To the digit, with irregular looks and one gap that is longer than a state window."""
    recorded = recording_of(file)
    steps = random.Random(file.name)
    moments, at = [], recorded.first
    while (at := round(at + steps.choice((TICK, TICK, TICK, 1.7, 40.0, 100.0)), 3)) < recorded.last:
        moments.append(at)
    async with holding(file, binaries=binaries, folder=tmp_path) as url, asked(url) as client:
        remembering = Within(client=client, namespaces=NO_NAMESPACE, memories=Memories())
        ours = await timeline(remembering, moments=moments, seats=None)
        theirs = await timeline(Anew(client), moments=moments, seats=None)
    assert ours == theirs
    assert any(diagnosis.evidence for _, diagnosis in ours), "nothing was seen"


@pytest.mark.parametrize("loaded", ["kv-saturation"], indirect=True)
async def test_the_command_says_the_same_of_both(loaded: tuple[str, str]) -> None:
    name, url = loaded
    at = f"{recording(name).first + 140.6:.3f}"

    def said(*source: str) -> Mapping[str, object]:
        result = CliRunner().invoke(app, ["diagnose", *source, "--at", at, "--output", "json"])
        assert result.exit_code == 0, result.output
        # PromQL adds in another order: the last digits of a forecast differ.
        (service,) = json.loads(result.stdout, parse_float=lambda figure: float(f"{float(figure):.4g}"))["services"]
        return {key: service[key] for key in ("service", "model", "engines", "recommendation")} | {
            key: service["diagnosis"][key] for key in ("class", "confidence", "message")
        }

    file = str(RECORDINGS / f"{name}.om.gz")
    # In a thread of its own, because a command runs its own event loop.
    remote = await asyncio.to_thread(said, "--prometheus", url)
    assert remote == await asyncio.to_thread(said, "--recording", file)
