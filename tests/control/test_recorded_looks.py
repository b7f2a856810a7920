"""Looks that read what is new see of every recording what looks that read everything see, to the digit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from vllm_autotuner.control.read.metrics_sources import Memories, Within
from vllm_autotuner.observation.prometheus import PrometheusSource
from vllm_autotuner.observation.questions import Question
from vllm_autotuner.observation.recording import Recording, load_recording
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.series_memory import SeriesMemory
from vllm_autotuner.observation.snapshot import FleetSnapshot, WindowSettings, take_snapshot

RECORDED = sorted((Path(__file__).parents[1] / "data" / "vllm-0.32").rglob("*.om.gz"))
PLACE = {"namespace": "prod", "pod": "chat-0"}
"""Of an engine whose recorded page names none, as a scrape would add it."""
NO_LOOKS_AT = range(9, 14)
"""Numbers of looks that did not happen, more than a window of state long."""
RESTART_AT = 20
"""The look before which the operator is started anew."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """A recording as a Prometheus has it; it also takes the place of a connection to one."""

    recording: Recording

    async def ask(
        self, question: Question, *, at: float, memory: SeriesMemory | None = None, **_: object
    ) -> Sequence[Series]:
        found = [
            Series(labels=PLACE | dict(one.labels), times=one.times, values=one.values)
            for one in await self.recording.ask(question, at=at)
        ]
        if memory is None:
            return found
        points = [(one, list(zip(one.times, one.values, strict=True))) for one in found]
        return [memory.take(msgspec.json.encode(one.labels, order="sorted"), one.labels, each) for one, each in points]


def bounds(recording: Recording) -> tuple[float, float]:
    times = [time for one in recording._of("vllm:num_requests_running") for time in (one.times[0], one.times[-1])]
    return min(times), max(times)


def plain(snapshot: FleetSnapshot) -> dict[str, Any]:
    """With lists for times and values, however they are kept."""

    def values(of: Any) -> Any:
        if isinstance(of, Series):
            return dict(of.labels), [*of.times], [*of.values]
        if is_dataclass(of):
            return {each.name: values(getattr(of, each.name)) for each in fields(of)}
        if isinstance(of, Mapping):
            return {name: values(each) for name, each in of.items()}
        return [values(each) for each in of] if isinstance(of, (tuple, list)) else of

    found: dict[str, Any] = values(snapshot)
    return found


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".om.gz"))
async def test_what_is_new_and_what_was_known_are_what_one_whole_look_sees(path: Path) -> None:
    source = Scraped(load_recording(path))
    first, last = bounds(source.recording)
    memories, looks = Memories(), 0
    for number, at in enumerate(takewhile(lambda at: at <= last + 60, count(first + 5.0, 15.0))):
        if number in NO_LOOKS_AT:
            continue
        if number == RESTART_AT:
            memories = Memories()
        reads_new: Any = Within(client=cast(PrometheusSource, source), namespaces=("prod",), memories=memories)
        seen = await take_snapshot(reads_new, at=at, settings=WindowSettings())
        whole = await take_snapshot(cast(Any, source), at=at, settings=WindowSettings())
        assert plain(seen) == plain(whole)
        looks += bool(seen.engines)
    assert looks >= 10
