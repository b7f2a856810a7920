"""The answers that a real Prometheus gives to the operator's questions about one engine, as templates for many engines.

Separate from the server that fills them in. A template keeps every label and every value as Prometheus wrote it; only
namespace, pod and the times of the samples are put in anew.
Must not: know what a question means.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from vllm_autotuner.observation.prometheus import PrometheusAddress, PrometheusSource
from vllm_autotuner.observation.questions import Question, promql
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.snapshot import WindowSettings, take_snapshot

NAMESPACE, POD = "@NAMESPACE@", "@POD@"
SCRAPED_EVERY: Final = 15.0
"""Seconds between two samples of the templates: Prometheus' usual pace."""
_WITHIN: Final = re.compile(r'\{namespace=~"([^"]*)"\}|,namespace=~"([^"]*)"')
_RANGE: Final = re.compile(r"\[(\d+)s(?::(\d+)s)?\]")


def shape_of(query: str) -> str:
    """Name the shape of a query: the query without its namespaces and windows."""
    return _RANGE.sub("[]", _WITHIN.sub("", query))


def namespaces_of(query: str) -> Sequence[str]:
    """Return the namespaces that a query asks about."""
    found = _WITHIN.search(query)
    return (found[1] or found[2]).split("|") if found is not None else ()


@dataclass(frozen=True, slots=True)
class Shape:
    """One answer about one engine."""

    kind: str
    """Of the result: matrix or vector."""
    entries: tuple[tuple[str, str, float], ...]
    """Labels as JSON with placeholders, the newest value, and how much it grew in a second: 0 for what may fall."""

    def block(self, query: str, *, at: float) -> str:
        """The answer about one engine at this moment, with placeholders for its names."""
        times = [at] if self.kind == "vector" else list(_times(query, at=at))
        return ",".join(
            f'{{"metric":{labels},{self._samples(times, value, growth)}}}' for labels, value, growth in self.entries
        )

    def _samples(self, times: Sequence[float], value: str, growth: float) -> str:
        if self.kind == "vector":
            return f'"value":[{times[-1]:.3f},"{value}"]'
        return f'"values":[{",".join(f"[{time:.3f},{_at(time, value, growth)}]" for time in times)}]'


def _at(time: float, value: str, growth: float) -> str:
    """The value at a time. What grows does so for ever, from a base at time 0: any two looks see one counter."""
    return json.dumps(f"{float(value) + growth * (time % 10**7):.10g}" if growth else value)


def _times(query: str, *, at: float) -> Iterator[float]:
    """When the samples of an answer are: aligned to its step where it has one, else to the scrapes of the target."""
    # Of nested ranges the last one is the answer's.
    window, step = _RANGE.findall(query)[-1]
    every = float(step or SCRAPED_EVERY)
    last = at - at % every
    count = max(1, int(float(window) // every))
    yield from (last - every * (count - 1 - number) for number in range(count))


class _Recorder:
    """Asks a real Prometheus, and keeps its answers as they are."""

    def __init__(self, url: str, *, namespace: str) -> None:
        self._url, self._namespace = url, namespace
        self._source = PrometheusSource(PrometheusAddress(url=url))
        self.shapes: dict[str, Any] = {}

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        """See MetricsSource.ask."""
        query = promql(question, namespaces=[self._namespace])
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            form = {"query": query, "time": f"{at:.3f}"}
            answer = (await client.post(f"{self._url}/api/v1/query", data=form)).json()
        self.shapes[shape_of(query)] = {"kind": answer["data"]["resultType"], "result": answer["data"]["result"]}
        return await self._source.ask(question, at=at, namespaces=[self._namespace])

    async def close(self) -> None:
        await self._source.close()


async def recorded(url: str, *, namespace: str, pod: str, at: float) -> dict[str, Any]:
    """Ask everything about one pod of a namespace; return the shapes as JSON. Raises ValueError for an empty answer."""
    recorder = _Recorder(url, namespace=namespace)
    try:
        snapshot = await take_snapshot(recorder, at=at, settings=WindowSettings())
    finally:
        await recorder.close()
    if snapshot.error is not None or not snapshot.engines:
        raise ValueError(f"Prometheus tells nothing of {namespace}/{pod}: {snapshot.error}")
    return {
        name: {
            "kind": found["kind"],
            "entries": [
                [_placeholders(entry["metric"], namespace=namespace, pod=pod), _newest(entry), _growth(entry)]
                for entry in found["result"]
            ],
        }
        for name, found in recorder.shapes.items()
    }


def _placeholders(labels: Mapping[str, str], *, namespace: str, pod: str) -> str:
    names = {namespace: NAMESPACE, pod: POD}
    found = {label: names.get(text, text) for label, text in labels.items()}
    if "instance" in found:
        found["instance"] = f"{POD}:8000"
    return json.dumps(found, separators=(",", ":"))


def _newest(entry: Mapping[str, Any]) -> str:
    _, value = entry["values"][-1] if "values" in entry else entry["value"]
    return str(value)


def _growth(entry: Mapping[str, Any]) -> float:
    points = [(float(time), float(value)) for time, value in entry.get("values", [])]
    if len(points) < 2 or not _is_counter(entry["metric"].get("__name__", "")):
        return 0.0
    (began, first), (ended, last) = points[0], points[-1]
    return max(0.0, last - first) / (ended - began)


def _is_counter(name: str) -> bool:
    return name.endswith(("_total", "_sum", "_count"))


def loaded(text: str) -> Mapping[str, Shape]:
    """Read shapes from JSON."""
    return {
        name: Shape(
            kind=found["kind"], entries=tuple((labels, value, growth) for labels, value, growth in found["entries"])
        )
        for name, found in json.loads(text).items()
    }


def largest(shapes: Mapping[str, Shape]) -> int:
    """Return how many series an engine has in the largest answer."""
    return max(len(shape.entries) for shape in shapes.values())
