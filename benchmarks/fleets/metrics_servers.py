"""What answers the operator's questions about a fleet: the stand-in, or a real Prometheus.

Apart from the command, which measures the operator beside either of them.
Must not: answer a question itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

__all__ = ["Counted", "MetricsServer", "RealPrometheus", "StandIn", "samples_of", "scraping"]

SCRAPED_EVERY: Final = "15s"
"""As production does; the bed's own second would be fifteen times the load."""
_QUERY: Final = ("handler", "/api/v1/query")


class Counted(NamedTuple):
    """What was asked so far, and bytes sent."""

    asked: int
    sent: int


class MetricsServer(Protocol):
    """Knows the fleet's engines, and counts what it is asked."""

    @property
    def url(self) -> str:
        """Where the operator asks."""

    async def serve(self, pods: Mapping[str, Sequence[str]]) -> None:
        """Have metrics of these pods, by namespace."""

    async def counted(self) -> Counted:
        """Since some moment, the same one in each answer. Raises AssertionError for a question without an answer."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """Sends what a real Prometheus said of one engine, under the names of all."""

    url: str

    async def serve(self, pods: Mapping[str, Sequence[str]]) -> None:
        """Have metrics of these pods, by namespace."""
        await self._put("tenants", {"pods": pods, "engines": 1})

    async def trouble(self, trouble: Mapping[str, float | bool]) -> None:
        """Have this trouble from now on, and no other."""
        await self._put("trouble", trouble)

    async def counted(self) -> Counted:
        """Since the start. Raises AssertionError for a question that was not recorded."""
        async with _client() as client:
            report = (await client.get(f"{self.url}/report")).json()
        assert not report["unknown"], f"a question that was not recorded: {report['unknown'][0]}"
        return Counted(report["asked"], report["sent"])

    async def _put(self, path: str, body: object) -> None:
        async with _client() as client:
            (await client.put(f"{self.url}/{path}", json=body)).raise_for_status()


@dataclass(frozen=True, slots=True)
class RealPrometheus:
    """Finds the fleet's pods itself, and scrapes one engine under the name of each (`scraping`)."""

    url: str

    async def serve(self, pods: Mapping[str, Sequence[str]]) -> None:
        """Nothing to do: they are found."""

    async def counted(self) -> Counted:
        """Since its start, by its own metrics."""
        async with _client() as client:
            page = (await client.get(f"{self.url}/metrics")).text
        samples = list(samples_of(page))

        def total(name: str) -> int:
            return round(sum(each.value for each in samples if each.name == name and _QUERY in each.labels.items()))

        return Counted(total("prometheus_http_requests_total"), total("prometheus_http_response_size_bytes_sum"))


def samples_of(page: str) -> Iterator[Sample]:
    """The samples of a page of metrics."""
    return (sample for family in text_string_to_metric_families(page) for sample in family.samples)


def scraping(found: Mapping[str, Any], *, engine: str, namespaces: str) -> dict[str, object]:
    """Return a configuration that scrapes `engine` (host and port) once for every pod of these namespaces (a regex),
    under the labels that the pod would have. `found`: a configuration that finds pods (`pod_discovery`)."""
    instead = [
        {"source_labels": ["__meta_kubernetes_namespace"], "regex": namespaces, "action": "keep"},
        {"source_labels": ["__meta_kubernetes_pod_ip"], "target_label": "instance"},
        {"target_label": "__address__", "replacement": engine},
    ]
    every = {"scrape_interval": SCRAPED_EVERY, "scrape_timeout": "10s"}
    jobs = [job | {"relabel_configs": [*job["relabel_configs"], *instead]} for job in found["scrape_configs"]]
    return {"global": every, "scrape_configs": jobs}


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=60)
