"""The product in the loop: its own reading, deciding and rendering, tick by tick, with the status carried on.

What the fleet loop does around `decide` is done here without an API server: the status goes through its wire form,
the Deployment follows the written status. Must not: hold a threshold, or look into an engine.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from benchmarks.closedloop.deployment import Deployment
from benchmarks.closedloop.scenario import Scenario
from benchmarks.closedloop.scraping import Scraper
from benchmarks.closedloop.service import Owner
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.status import Effective, Outcome, VLLMServiceStatus
from vllm_autotuner.change.effective import effective_knobs
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.control.looking import approved_id, hash_of, is_paused, observed, rollout_of, verification_of
from vllm_autotuner.control.sight import Sight, wanted_replicas
from vllm_autotuner.control.starting import pods_view
from vllm_autotuner.control.tick import Decision, decide
from vllm_autotuner.diagnosis.diagnose import History
from vllm_autotuner.observation.snapshot import WindowSettings, take_snapshot
from vllm_autotuner.workload.hashing import RENDERING_VERSION
from vllm_autotuner.workload.rendering import pod_selector, render_deployment

__all__ = ["Autotuner", "Ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A change that is over. Time in seconds since the start of the run."""

    at: float
    knob: str
    from_value: str | None
    to_value: str
    outcome: Outcome
    reason: str


@dataclass(slots=True)
class Autotuner:
    """The operator, for one service."""

    scenario: Scenario
    owner: Owner
    scraper: Scraper
    status: dict[str, Any] = field(default_factory=dict)
    history: History = field(default_factory=History)
    watching_since: datetime | None = None
    ended: list[Ended] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)
    """Ticks by the class that was named."""
    named: list[tuple[float, str]] = field(default_factory=list)
    """(time, class) whenever another class was named."""

    def begin(self, deployment: Deployment) -> None:
        """The service has been serving at its start before the operator looks at it."""
        status = VLLMServiceStatus(effective=Effective(replicas=self.scenario.replicas))
        self.status = to_wire(status)
        deployment.apply(self.owner.rendered(seats=self.scenario.seats, replicas=self.scenario.replicas), ready=True)
        self.watching_since = deployment.wall()

    async def tick(self, deployment: Deployment) -> None:
        """Look, decide, write the status, let the workload follow."""
        service = self.owner.service(self.status)
        decision = decide(await self._sight(service, deployment))
        self._note(decision, now=deployment.now)
        self.history, self.status = decision.history, to_wire(decision.status)
        written = self.owner.service(self.status)
        knobs, replicas = effective_knobs(written.spec, written.status), wanted_replicas(written, written.status)
        deployment.apply(render_deployment(written, knobs, replicas))

    async def _sight(self, service: VLLMService, deployment: Deployment) -> Sight:
        now = deployment.wall()
        snapshot = await take_snapshot(self.scraper.recording, at=now.timestamp(), settings=WindowSettings())
        pods, cluster = deployment.pod_views(), cast(Cluster, deployment)
        starts = await pods_view(pods, warm_up=service.spec.tuning.strategy.warm_up, cluster=cluster, now=now)
        observation = observed(snapshot, pods, now=now, starts=starts)
        return Sight(
            service=service,
            observation=observation,
            rollout=rollout_of(deployment.view(), pods, starts=starts),
            verification=await verification_of(service, pods, cluster=cluster, observation=observation),
            history=self.history,
            hash_of=lambda knobs: hash_of(service, knobs),
            hash_version=RENDERING_VERSION,
            paused=is_paused(service),
            approved=approved_id(service),
            now=now,
            watching_since=self.watching_since or now,
            epoch=1,
            pods=len(deployment.live),
            selector=pod_selector(service.metadata.name),
        )

    def _note(self, decision: Decision, *, now: float) -> None:
        named = decision.diagnosis.primary.value
        self.classes[named] += 1
        if not self.named or self.named[-1][1] != named:
            self.named.append((now, named))
        if decision.ended is not None:
            change, ending = decision.ended
            self.ended.append(
                Ended(
                    at=now,
                    knob=change.knob,
                    from_value=change.from_value,
                    to_value=change.to_value,
                    outcome=ending.outcome,
                    reason=ending.reason,
                )
            )
