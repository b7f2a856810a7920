"""The product in the loop: its own fleet loop, tick by tick, in front of a simulated cluster.

Nothing of the product is played here: it reads, decides, writes its status and its Deployments as in a real cluster.
Must not: hold a threshold, or look into an engine.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from benchmarks.closedloop.api_server import ApiServer
from benchmarks.closedloop.cluster import SimulatedCluster
from benchmarks.closedloop.pods import EPOCH, NAMESPACE
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.service import Owner
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.status import Effective, Outcome, VLLMServiceStatus, parse_status
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.lease import Election
from vllm_autotuner.control.operator_settings import OperatorSettings
from vllm_autotuner.control.read.metrics_sources import Memories, Rests, Sources, Within, never
from vllm_autotuner.control.read.registry import Registry
from vllm_autotuner.control.read.views import ServiceEntry
from vllm_autotuner.control.run.context import ControlContext
from vllm_autotuner.control.run.fleet_loop import FleetLoop
from vllm_autotuner.control.run.liveness import Heartbeat
from vllm_autotuner.control.run.operator_metrics import OperatorMetrics
from vllm_autotuner.observation.prometheus import PrometheusAddress, PrometheusSource
from vllm_autotuner.observation.questions import MetricsSource, Question
from vllm_autotuner.observation.quiet_pods import PodName
from vllm_autotuner.observation.recording import Recording
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.series_memory import SeriesMemory
from vllm_autotuner.observation.snapshot import FleetSnapshot, WindowSettings, take_snapshot

__all__ = ["Autotuner", "Ended"]

DAY: Final = 86_400.0
"""Seconds that the budget of changes is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A change that is over. Times in seconds since the start of the run."""

    began: float
    at: float
    knob: str
    from_value: str | None
    to_value: str | None
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class _Leader:
    """An election that this process has won for good."""

    is_leader: bool = True
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class _Recorded:
    """Takes the place of a connection to Prometheus."""

    recording: Recording

    async def ask(
        self, question: Question, *, at: float, memory: SeriesMemory | None = None, **_: object
    ) -> Sequence[Series]:
        found = await self.recording.ask(question, at=at)
        if memory is None:
            return found
        return [memory.take(_text(one), one.labels, list(zip(one.times, one.values, strict=True))) for one in found]


def _text(series: Series) -> bytes:
    """Its labels as Prometheus sends them: a JSON object in the order of the names."""
    return msgspec.json.encode(series.labels, order="sorted")


@dataclass(frozen=True, slots=True)
class _Scrapes:
    """Answers as `control.read.metrics_sources.Sources` does, from what was scraped."""

    scraper: Scraper
    whole: bool
    """Each look reads everything anew, not only what is new."""
    memories: Memories = field(default_factory=Memories)

    def begin_tick(self) -> None:
        """Every look succeeds."""

    async def look(
        self, entries: Iterable[ServiceEntry], *, at: float, rests: Rests = never
    ) -> Mapping[str, FleetSnapshot]:
        source: MetricsSource = self.scraper.recording
        if not self.whole:
            client = cast(PrometheusSource, _Recorded(self.scraper.recording))
            source = Within(client=client, namespaces=(NAMESPACE,), memories=self.memories)

        def narrowed(quiet: Set[PodName]) -> tuple[MetricsSource, Set[str]]:
            return source, {entry.namespace for entry in entries if not rests(entry, quiet)}

        return {"": await take_snapshot(source, at=at, settings=WindowSettings(), narrowed=narrowed)}

    def keep_only(self, entries: Iterable[ServiceEntry]) -> None:
        """What was scraped is kept by the scraper; of what was read, the questions that are no longer asked go."""
        self.memories.keep_only((NAMESPACE,))

    def of(self, service: object, snapshots: Mapping[str, FleetSnapshot]) -> FleetSnapshot:
        return snapshots[""]


@dataclass(slots=True)
class Autotuner:
    """The operator, for one service."""

    scenario: Scenario
    owner: Owner
    scraper: Scraper
    reads_whole: bool = False
    """Each look reads everything anew; the product reads what is new."""
    ended: list[Ended] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)
    """Ticks by the class that was named."""
    named: list[tuple[float, str]] = field(default_factory=list)
    """(time, class) whenever another class was named."""
    states: list[tuple[float, str]] = field(default_factory=list)
    """(time, what a change does) whenever a change came into another state."""
    _api: ApiServer | None = None
    _loop: FleetLoop | None = None
    _context: ControlContext | None = None
    _cluster: SimulatedCluster | None = None

    @property
    def status(self) -> dict[str, Any]:
        """As it was last written."""
        assert self._api is not None
        return self._api.status

    @property
    def quiet_since(self) -> float:
        """See Policy: after the last change, and where there is budget for another after the cooldown before it.

        Nor before its replicas stand still: whoever tries fewer of them ever more seldom goes on as nobody can tell.
        """
        status = parse_status(self.status)
        if status.active_change is not None or status.queued_since is not None:
            return math.inf
        assert self._cluster is not None
        scaled = [at for at, _ in self._cluster.scalings]
        last = max([*scaled, *(one.at for one in self.ended)], default=0.0)
        tuning = self.owner.service().spec.tuning
        today = sum(one.at > self._now_in_run() - DAY for one in self.ended)
        if status.cooldown_until is None or today >= tuning.budget.changes_per_day:
            return last
        rested = (status.cooldown_until - EPOCH).total_seconds()
        return last if rested >= self.scenario.duration else max(last, rested)

    def _now_in_run(self) -> float:
        return self._now() - EPOCH.timestamp()

    def begin(self, cluster: SimulatedCluster) -> None:
        """The service has been serving at its start before the operator looks at it."""
        self._cluster = cluster
        cluster.apply(self.owner.rendered(seats=self.scenario.seats, replicas=self.scenario.replicas), ready=True)
        status = VLLMServiceStatus(effective=Effective(replicas=self.scenario.replicas))
        self._api = ApiServer(self.owner, cluster, status=to_wire(status), gpus=self.scenario.gpus_there)

        def seconds() -> float:
            return cluster.wall().timestamp()

        self._context = ControlContext(
            settings=OperatorSettings(prometheus=PrometheusAddress(url="http://127.0.0.1:9"), identity="benchmark"),
            cluster=cast(Cluster, self._api),
            registry=Registry(),
            election=cast(Election, _Leader()),
            metrics=OperatorMetrics(),
            heartbeat=Heartbeat(seconds),
            monotonic=seconds,
            wall=cluster.wall,
        )
        self._loop = FleetLoop(self._context, sources=cast(Sources, _Scrapes(self.scraper, whole=self.reads_whole)))

    async def tick(self, cluster: SimulatedCluster) -> None:
        """Bring what the watches tell, and let the fleet loop look."""
        assert self._api is not None
        assert self._loop is not None
        assert self._context is not None
        self._api.tell(self._context.registry)
        await self._loop.tick()
        failed = self._context.metrics.registry.get_sample_value("vllm_autotuner_ticks_total", {"outcome": "Failed"})
        assert not failed, "the fleet loop failed on this service; its log has the cause"
        self._note(parse_status(self._api.status), now=cluster.now)

    def _note(self, status: VLLMServiceStatus, *, now: float) -> None:
        named = "" if status.diagnosis is None else status.diagnosis.class_
        self.classes[named] += 1
        if not self.named or self.named[-1][1] != named:
            self.named.append((now, named))
        change = status.active_change
        state = "" if change is None else f"{change.knob}={change.to_value} {change.state.value}: {change.state_reason}"
        if state and (not self.states or self.states[-1][1] != state):
            self.states.append((now, state))
        for entry in status.history:
            if entry.finished_at is None or entry.started_at is None:
                continue
            # The loop stamps what it writes with the time of this very tick.
            if entry.finished_at.timestamp() == self._now():
                took = (entry.finished_at - entry.started_at).total_seconds()
                self.ended.append(
                    Ended(
                        began=now - took,
                        at=now,
                        knob=entry.knob,
                        from_value=entry.from_value,
                        to_value=entry.to_value,
                        outcome=entry.outcome,
                        reason=entry.reason,
                    )
                )

    def _now(self) -> float:
        assert self._context is not None
        return self._context.monotonic()
