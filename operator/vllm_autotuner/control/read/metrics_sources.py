"""The Prometheus servers that services refer to by name: snapshots of a part of the fleet, shared by its services."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.budgets import ANSWER_SERIES
from vllm_autotuner.control.operator_settings import OperatorSettings
from vllm_autotuner.control.read.views import ServiceEntry
from vllm_autotuner.engine.metric_names import NAMES, Meaning
from vllm_autotuner.observation.answer_reader import Allowance
from vllm_autotuner.observation.errors import SourceError, TooLarge
from vllm_autotuner.observation.prometheus import PrometheusSource
from vllm_autotuner.observation.questions import Question, Samples
from vllm_autotuner.observation.quiet_pods import PodName
from vllm_autotuner.observation.reading import Absence, NoData
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.series_memory import Remembered, SeriesMemory
from vllm_autotuner.observation.snapshot import FleetSnapshot, WindowSettings, take_snapshot

__all__ = ["Rests", "Sources", "never", "source_of"]

DEFAULT: Final = ""
NOT_ASKED_FOR: Final = 600.0
"""Seconds for which a namespace with too many series is not asked about. Our choice."""
TOO_MANY: Final = "has more series than are read (docs/budgets.md); it is asked about again within 10 minutes"
GAUGES_STAND_FOR: Final = 31
"""Series in all answers for each of the first one: an engine has 5 there, and 157 in all. So a namespace with too many
is known from a few thousand of them. Measured (`benchmarks/operator_cost.py`)."""
RUNNING: Final = NAMES[Meaning.RUNNING].names[0]
MOST_LOOKS: Final = 3
"""In one tick, each without the namespaces that were too much for the one before. Our choice."""
MOST_NAMED: Final = 500
"""Namespaces that one query names: its text has 30 KB then. Our choice."""

Rests: TypeAlias = Callable[[ServiceEntry, Set[PodName]], bool]
"""Whether a service needs no decision in this tick, from the pods in which nothing waits."""

logger = logging.getLogger(__name__)


def never(entry: ServiceEntry, quiet: Set[PodName]) -> bool:
    """No service rests."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """A Prometheus that is asked about some namespaces only: whoever has no VLLMService costs it nothing."""

    client: PrometheusSource
    namespaces: tuple[str, ...]
    memories: "Memories" = field(default_factory=lambda: Memories())
    first: Allowance = field(default_factory=lambda: Allowance(most=ANSWER_SERIES.limit // GAUGES_STAND_FOR, ends=True))
    """Of the first question, which is about gauges."""
    others: Allowance = field(default_factory=lambda: Allowance(ends=True))
    kept_too_much: set[str] = field(default_factory=set)
    """Namespaces of which the looks together brought too many series."""

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        """See MetricsSource.ask. Raises TooLarge when a namespace has more series than are read."""
        if not isinstance(question, Remembered):
            return await self._ask(question, at=at, namespaces=self.namespaces)
        memory = self.memories.of(question)
        whole = memory.unknown(self.namespaces, at=at)
        if known := sorted({*self.namespaces} - {*whole}):
            await self._ask(memory.begin_new(known, at=at), at=at, namespaces=known, memory=memory)
            memory.cover(known, at=at, whole=False)
            whole += memory.gaps()
        if whole:
            await self._ask(memory.begin_whole(whole, at=at), at=at, namespaces=whole, memory=memory)
            memory.cover(whole, at=at, whole=True)
        answer = await asyncio.to_thread(memory.answer, self.namespaces, at=at)
        if len(answer) > ANSWER_SERIES.limit:
            # Every look may bring others: what is kept of them is as much as one whole answer would be.
            ((largest, _),) = Counter(one.labels.get("namespace", "") for one in answer).most_common(1)
            ANSWER_SERIES.exceeded()
            memory.forget([largest])
            self.kept_too_much.add(largest)
            raise TooLarge("more series than are read (docs/budgets.md)", large=frozenset({largest}))
        return answer

    async def _ask(
        self, question: Question, *, at: float, namespaces: Sequence[str], memory: SeriesMemory | None = None
    ) -> Sequence[Series]:
        gauges = isinstance(question, Samples) and RUNNING in question.names
        allowance = self.first if gauges else self.others
        found: list[Series] = []
        for begin in range(0, len(namespaces), MOST_NAMED):
            named = namespaces[begin : begin + MOST_NAMED]
            found += await self.client.ask(question, at=at, namespaces=named, allowance=allowance, memory=memory)
        return found

    @property
    def too_large(self) -> frozenset[str]:
        """The namespaces that have more series than are read."""
        return self.first.left_out | self.others.left_out | self.kept_too_much


class Memories:
    """What is known of one source, by question."""

    def __init__(self) -> None:
        self._of: dict[Remembered, SeriesMemory] = {}
        self._asked: set[Remembered] = set()

    def of(self, question: Remembered) -> SeriesMemory:
        """The memory of a question, empty when it is asked for the first time."""
        self._asked.add(question)
        return self._of.setdefault(question, SeriesMemory(question))

    def keep_only(self, namespaces: Sequence[str]) -> None:
        """Drop what is known of other namespaces, and of questions that were not asked since the last call."""
        self._of = {question: memory for question, memory in self._of.items() if question in self._asked}
        self._asked.clear()
        for memory in self._of.values():
            memory.keep_only(namespaces)


class Sources:
    """Clients by name; the empty name is the operator's own."""

    def __init__(self, settings: OperatorSettings) -> None:
        addresses = {DEFAULT: settings.prometheus, **settings.sources}
        self._clients = {name: PrometheusSource(address) for name, address in addresses.items()}
        self._memories = {name: Memories() for name in addresses}
        self._not_asked: dict[tuple[str, str], float] = {}
        """Source and namespace -> until when (Unix seconds) it is not asked about."""
        self._suspected: dict[str, frozenset[str]] = {}
        """Source -> the namespaces that its last failed look may have failed for."""
        self._waited: dict[str, float] = {}
        """Source -> seconds that the failed looks of this tick took."""
        self._patience = {name: address.timeout.total_seconds() for name, address in addresses.items()}
        self._windows = WindowSettings(state=max(1, round(settings.window.total_seconds())))

    async def close(self) -> None:
        """Give all connections back."""
        for client in self._clients.values():
            await client.close()

    def begin_tick(self) -> None:
        """Ask every source again, also those that have failed for as long as a tick waits for one."""
        self._waited.clear()

    async def look(
        self, entries: Iterable[ServiceEntry], *, at: float, rests: Rests = never
    ) -> Mapping[str, FleetSnapshot]:
        """Take one snapshot of each source that is in use, at the same moment (Unix seconds).

        Where every service of a namespace `rests`, nothing but the gauges is asked about it.
        """
        used: dict[str, list[ServiceEntry]] = {}
        for entry in entries:
            if isinstance(entry.service, VLLMService):
                used.setdefault(source_of(entry.service), []).append(entry)
        names = [name for name in self._clients if name in used]
        found = await asyncio.gather(*(self._timed(name, used[name], at=at, rests=rests) for name in names))
        unknown = {
            name: self._nothing(
                f"metrics source {name} is not configured: correct spec.prometheus.source or add it to the operator",
                at=at,
            )
            for name in used.keys() - self._clients.keys()
        }
        return {**dict(zip(names, found, strict=True)), **unknown}

    def keep_only(self, entries: Iterable[ServiceEntry]) -> None:
        """Drop what is kept about namespaces and questions that no look since the last call was about."""
        namespaces = sorted({entry.namespace for entry in entries})
        for memories in self._memories.values():
            memories.keep_only(namespaces)

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

    async def _timed(self, name: str, entries: Sequence[ServiceEntry], *, at: float, rests: Rests) -> FleetSnapshot:
        """Look, unless the looks of this tick that failed took as long already as one answer may."""
        if self._waited.get(name, 0.0) >= self._patience[name]:
            return self._nothing("it has not answered in this tick", at=at)
        clock = asyncio.get_running_loop().time
        began = clock()
        snapshot = await self._look(name, entries, at=at, rests=rests)
        if snapshot.error is not None:
            self._waited[name] = self._waited.get(name, 0.0) + clock() - began
        return snapshot

    async def _look(self, name: str, entries: Sequence[ServiceEntry], *, at: float, rests: Rests) -> FleetSnapshot:
        snapshot: FleetSnapshot | None = None
        namespaces = {entry.namespace for entry in entries}
        for _ in range(MOST_LOOKS):
            asked = [each for each in sorted(namespaces) if self._not_asked.get((name, each), at) <= at]
            if not asked:
                return self._nothing(f"every namespace {TOO_MANY}", at=at)
            source = Within(client=self._clients[name], namespaces=tuple(asked), memories=self._memories[name])
            narrowed = partial(_narrowed, source=source, entries=entries, rests=rests)
            try:
                snapshot = await take_snapshot(source, at=at, settings=self._windows, narrowed=narrowed)
            except Exception as error:
                # An unexpected series blinds the services that share the source; it must not end the operator.
                logger.exception("failed to parse metrics", extra={"source": name or "default"})
                return self._nothing(f"failed to parse a response ({type(error).__name__}: {error})", at=at)
            if not (large := source.too_large):
                break
            # It is asked about again at once: nobody else is blind for whoever has too many series.
            await self._leave_out(large, of=asked, name=name, at=at)
        else:
            return self._nothing("several namespaces have more series than are read (docs/budgets.md)", at=at)
        # One failure may be the server's; the second with the same namespace in front is not. Where only one namespace
        # is asked about, nobody else waits for it.
        large = snapshot.left_out & self._suspected.get(name, frozenset())
        if snapshot.error is not None and large and len(asked) > 1:
            await self._leave_out(large, of=asked, name=name, at=at)
        self._suspected[name] = snapshot.left_out if snapshot.error is not None else frozenset()
        return snapshot

    async def _leave_out(self, large: frozenset[str], *, of: Sequence[str], name: str, at: float) -> None:
        """Do not ask about these namespaces for a while, nor about as many of the largest others as are too much."""
        counted = await self._counted(name, namespaces=[each for each in of if each not in large], at=at)
        while counted.total() > ANSWER_SERIES.limit:
            largest, _ = counted.most_common(1)[0]
            del counted[largest]
            large |= {largest}
        for namespace in large:
            # To leave it out costs seconds of each look: once is enough for a while.
            logger.warning("namespace has more series than are read", extra={"namespace": namespace, "source": name})
            self._not_asked[name, namespace] = at + NOT_ASKED_FOR

    async def _counted(self, name: str, *, namespaces: Sequence[str], at: float) -> Counter[str]:
        """How many series these namespaces have; empty where the source does not say."""
        if not namespaces:
            return Counter()
        try:
            answer = await self._clients[name].count(namespaces, at=at)
        except SourceError as error:
            logger.warning("failed to count series", extra={"source": name or "default", "error": str(error)})
            return Counter()
        return Counter({one.labels.get("namespace", ""): int(one.values[-1]) for one in answer if one.values})

    def _nothing(self, why: str, *, at: float) -> FleetSnapshot:
        return FleetSnapshot(
            at=at,
            state_window=self._windows.state,
            scrape_interval=None,
            engines={},
            error=NoData(Absence.PROVIDER_ERROR, why),
        )


def _narrowed(
    quiet: Set[PodName], *, source: Within, entries: Sequence[ServiceEntry], rests: Rests
) -> tuple[Within, Set[str]]:
    """The part of a source that has services that do not rest."""
    wanted = {entry.namespace for entry in entries if not rests(entry, quiet)} & {*source.namespaces}
    return replace(source, namespaces=tuple(sorted(wanted))), wanted


def source_of(service: VLLMService) -> str:
    """The name of the source that a service's metrics are in; empty for the operator's own."""
    return service.spec.prometheus.source if service.spec.prometheus is not None else DEFAULT
