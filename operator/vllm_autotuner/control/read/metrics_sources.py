"""The Prometheus servers that services refer to by name: one snapshot of each per tick, shared by all its services."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.control.operator_settings import OperatorSettings
from vllm_autotuner.control.read.views import ServiceEntry
from vllm_autotuner.observation.answer_reader import Allowance
from vllm_autotuner.observation.prometheus import PrometheusSource
from vllm_autotuner.observation.questions import Question
from vllm_autotuner.observation.reading import Absence, NoData
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.snapshot import FleetSnapshot, WindowSettings, take_snapshot

__all__ = ["Sources", "source_of"]

DEFAULT: Final = ""
NOT_ASKED_FOR: Final = 600.0
"""Seconds for which a namespace with too many series is not asked about. Our choice."""
TOO_MANY: Final = "has more series than are read (docs/budgets.md); it is asked about again within 10 minutes"
MOST_NAMED: Final = 500
"""Namespaces that a query names: beyond, its text is longer than what it leaves out. Our choice."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """A Prometheus that is asked about some namespaces only: whoever has no VLLMService costs it nothing."""

    client: PrometheusSource
    namespaces: tuple[str, ...]
    allowance: Allowance = field(default_factory=Allowance)

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        """See MetricsSource.ask."""
        few = len(self.namespaces) <= MOST_NAMED
        namespaces = self.namespaces if few else ()
        return await self.client.ask(question, at=at, namespaces=namespaces, allowance=self.allowance)


class Sources:
    """Clients by name; the empty name is the operator's own."""

    def __init__(self, settings: OperatorSettings) -> None:
        addresses = {DEFAULT: settings.prometheus, **settings.sources}
        self._clients = {name: PrometheusSource(address) for name, address in addresses.items()}
        self._not_asked: dict[tuple[str, str], float] = {}
        """Source and namespace -> until when (Unix seconds) it is not asked about."""
        self._suspected: dict[str, frozenset[str]] = {}
        """Source -> the namespaces that its last failed look may have failed for."""
        self._windows = WindowSettings(state=max(1, round(settings.window.total_seconds())))

    async def close(self) -> None:
        """Give all connections back."""
        for client in self._clients.values():
            await client.close()

    async def look(self, entries: Iterable[ServiceEntry], *, at: float) -> Mapping[str, FleetSnapshot]:
        """Take one snapshot of each source that is in use, at the same moment (Unix seconds)."""
        used: dict[str, set[str]] = {}
        for entry in entries:
            if isinstance(entry.service, VLLMService):
                used.setdefault(source_of(entry.service), set()).add(entry.namespace)
        names = [name for name in self._clients if name in used]
        found = await asyncio.gather(*(self._look(name, namespaces=used[name], at=at) for name in names))
        unknown = {
            name: self._nothing(
                f"metrics source {name} is not configured: correct spec.prometheus.source or add it to the operator",
                at=at,
            )
            for name in used.keys() - self._clients.keys()
        }
        return {**dict(zip(names, found, strict=True)), **unknown}

    def of(self, service: VLLMService, snapshots: Mapping[str, FleetSnapshot]) -> FleetSnapshot:
        """The snapshot with this service's metrics. A source that was not in use yet is queried in the next tick."""
        name, namespace = source_of(service), service.metadata.namespace
        if name in snapshots:
            found = snapshots[name]
            if found.error is None and self._not_asked.get((name, namespace), found.at) > found.at:
                return self._nothing(f"namespace {namespace} {TOO_MANY}", at=found.at)
            return found
        at = max((one.at for one in snapshots.values()), default=0.0)
        return self._nothing(f"metrics source {name or 'default'} has not been queried yet", at=at)

    async def _look(self, name: str, *, namespaces: set[str], at: float) -> FleetSnapshot:
        asked = [each for each in sorted(namespaces) if self._not_asked.get((name, each), at) <= at]
        if not asked:
            return self._nothing(f"every namespace {TOO_MANY}", at=at)
        try:
            source = Within(client=self._clients[name], namespaces=tuple(asked))
            snapshot = await take_snapshot(source, at=at, settings=self._windows)
        except Exception as error:
            # An unexpected series blinds the services that share the source; it must not end the operator.
            logger.exception("failed to parse metrics", extra={"source": name or "default"})
            return self._nothing(f"failed to parse a response ({type(error).__name__}: {error})", at=at)
        if snapshot.error is not None and len(asked) == 1:
            return snapshot  # nobody else waits for a namespace whose answer was late
        large = snapshot.left_out
        if snapshot.error is not None:
            # One failure may be the server's; the second with the same namespace in front is not.
            large &= self._suspected.get(name, frozenset())
        self._suspected[name] = snapshot.left_out if snapshot.error is not None else frozenset()
        for namespace in large:
            # To leave it out costs seconds of each look: once is enough for a while.
            logger.warning("namespace has more series than are read", extra={"namespace": namespace, "source": name})
            self._not_asked[name, namespace] = at + NOT_ASKED_FOR
        return snapshot

    def _nothing(self, why: str, *, at: float) -> FleetSnapshot:
        return FleetSnapshot(
            at=at,
            state_window=self._windows.state,
            scrape_interval=None,
            engines={},
            error=NoData(Absence.PROVIDER_ERROR, why),
        )


def source_of(service: VLLMService) -> str:
    """The name of the source that a service's metrics are in; empty for the operator's own."""
    return service.spec.prometheus.source if service.spec.prometheus is not None else DEFAULT
