"""A cluster in virtual time: Deployments over one fleet, rolling updates, start-ups that fail, a person's repairs.

The rolling update is Kubernetes' own with maxSurge 1 and maxUnavailable 0, as the product renders it. All pods are
behind one Service, those of a trial as well: each gets its share of the requests from the moment it is ready.
Must not: decide replicas or flags (`apply` and `delete` are told, as an API server is), or judge a request.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from benchmarks.closedloop.candidates import Candidates
from benchmarks.closedloop.pods import NAME, Body, Pod, Template, wall
from benchmarks.closedloop.scenario import MetricsOutage, Scenario, Upgrade, Wedge
from benchmarks.slow_engines import slower
from benchmarks.uneven_routers import PrefersWarm
from vllm_autotuner.cluster.errors import NotFound
from vllm_autotuner.engine.flags import parse_flags
from vllm_autotuner.simulation.arguments import parse_arguments
from vllm_autotuner.simulation.configuration import EngineConfig, StartupRefused, configure
from vllm_autotuner.simulation.startup import announcement, capacity, refusal
from vllm_autotuner.simulation.virtual import RESTART_FIRST, RESTART_LONGEST, ClientPatience, VirtualFleet

__all__ = ["Deployment", "SimulatedCluster"]

REFUSED_AFTER: Final = 0.25
"""Part of a normal start after which an impossible configuration is refused. Our choice: weights are not loaded yet."""


@dataclass(slots=True, eq=False, kw_only=True)
class Deployment:
    """One Deployment, as it was last applied."""

    body: Body
    template: Template
    replicas: int
    generation: int = 1


class SimulatedCluster:
    """The world of one run. `apply` what shall run, `advance` the time, look at `pods`."""

    def __init__(self, scenario: Scenario, *, faults: bool = True) -> None:
        self.scenario = scenario
        patience = ClientPatience(timeout=scenario.patience)
        router = PrefersWarm(scenario.routing, seed=scenario.seed) if scenario.prefers_warm else scenario.routing
        self.fleet = VirtualFleet(scenario.traffic(), routing=router, patience=patience, seed=scenario.seed)
        self.pods: list[Pod] = []
        self.deployments: dict[str, Deployment] = {}
        self.rollouts = 0
        """Times that other arguments or another image were applied to the service: each restarts every replica."""
        self.scalings: list[tuple[float, int]] = []
        """(time, replicas) of each number asked for."""
        self.seats: list[tuple[float, int | None]] = []
        """(time, max-num-seqs) of each configuration applied to the service."""
        self._disturbances = tuple(scenario.disturbances) if faults else ()
        self._wedges = [one for one in self._disturbances if isinstance(one, Wedge)]
        self._repairs: list[tuple[float, Pod]] = []
        self._candidates: Candidates | None = None

    @property
    def now(self) -> float:
        """Seconds since the start of the run."""
        return self.fleet.now

    @property
    def replicas(self) -> int:
        """Asked for, of the service's own Deployment."""
        return self.deployments[NAME].replicas

    @property
    def ready(self) -> Sequence[Pod]:
        """Pods that serve."""
        return [pod for pod in self.pods if pod.ready]

    @property
    def scraped(self) -> bool:
        """Whether metrics can be read now."""
        outages = (one for one in self._disturbances if isinstance(one, MetricsOutage))
        return not any(outage.at <= self.now < outage.until for outage in outages)

    def live(self, name: str) -> Sequence[Pod]:
        """Pods of a Deployment that are not on their way out."""
        return [pod for pod in self.pods if pod.deployment == name and not pod.deleted]

    def wall(self) -> datetime:
        """The time of day."""
        return wall(self.now)

    def gpu_seconds(self, since: float, until: float) -> float:
        """What was paid for between two seconds."""
        return sum(pod.gpu_seconds(since, until) for pod in self.pods)

    def apply(self, body: Body, *, ready: bool = False) -> None:
        """Take a rendered Deployment. `ready`: its pods have been serving since before the run began."""
        name, template, replicas = body["metadata"]["name"], Template.of(body), int(body["spec"]["replicas"])
        found = self.deployments.get(name)
        if found is not None and template == found.template and replicas == found.replicas:
            return
        if name == NAME:
            if found is None or template != found.template:
                self.rollouts += found is not None
                self.seats.append((self.now, parse_flags(template.args).max_num_seqs))
            if found is None or replicas != found.replicas:
                self.scalings.append((self.now, replicas))
        generation = 1 if found is None else found.generation + 1
        self.deployments[name] = Deployment(body=body, template=template, replicas=replicas, generation=generation)
        if self._candidates is None:
            # What the user had written serves as it should.
            self._candidates = Candidates.of(self.scenario, start=template.args)
        self._reconcile(name, startup=0.0 if ready else None)

    def delete(self, name: str) -> None:
        """Remove a Deployment and its pods, which may finish what they have."""
        if (found := self.deployments.pop(name, None)) is not None:
            for pod in self.live(name):
                self._delete(pod, grace=found.template.grace)

    def advance(self, until: float) -> None:
        """Let everything happen until a second of the run."""
        while (at := self._next_event()) <= until:
            self.fleet.advance(at)
            self._let_happen(at)
            self._reconcile_all()
        self.fleet.advance(until)
        # An engine that died or came back by itself is no event of ours.
        self._reconcile_all()

    async def pod_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        previous: bool = False,
        head_bytes: int | None = None,
        tail_bytes: int | None = None,
    ) -> str:
        """Answer as `cluster.adapter.Cluster.pod_log` does."""
        found = next((one for one in self.pods if one.name == pod and not one.gone), None)
        if found is None or (previous and not found.restarts):
            raise NotFound(f"no log of {pod}", reason="NotFound")
        return found.log[-tail_bytes:] if tail_bytes is not None else found.log[:head_bytes]

    def _next_event(self) -> float:
        starting = (pod.next_event for pod in self.pods if not pod.deleted)
        wedges, repairs = (wedge.at for wedge in self._wedges), (at for at, _ in self._repairs)
        return min(math.inf, *starting, *wedges, *repairs)

    def _let_happen(self, at: float) -> None:
        for pod in self.pods:
            if pod.deleted or pod.next_event > at:
                continue
            if pod.virtual is None:
                pod.refused, pod.refused_at = pod.refused + 1, at
                pause = min(RESTART_FIRST * 2 ** (pod.refused - 1), RESTART_LONGEST)
                pod.next_event = at + pause + self.scenario.startup * REFUSED_AFTER
            else:
                pod.next_event = math.inf
        while self._wedges and self._wedges[0].at <= at:
            wedge = self._wedges.pop(0)
            if ready := self.ready:
                assert ready[0].virtual is not None
                self.fleet.wedge(ready[0].virtual)
                self._repairs.append((wedge.repaired, ready[0]))
        for due, pod in tuple(self._repairs):
            if due <= at:
                self._repairs.remove((due, pod))
                self._delete(pod, grace=0.0)

    def _reconcile_all(self) -> None:
        for name in self.deployments:
            self._reconcile(name)

    def _reconcile(self, name: str, *, startup: float | None = None) -> None:
        """What the Deployment controller does: surplus pods go, missing ones come, the old leave as the new serve."""
        template, replicas = self.deployments[name].template, self.deployments[name].replicas
        ready = sum(pod.ready for pod in self.live(name))
        for pod in sorted((one for one in self.live(name) if one.template != template), key=lambda one: one.ready):
            if not pod.ready or ready > replicas:
                ready -= pod.ready
                self._delete(pod, grace=template.grace)
        new = [pod for pod in self.live(name) if pod.template == template]
        surplus = max(0, len(new) - replicas)
        for pod in sorted(new, key=lambda one: (one.ready, -one.created))[:surplus]:
            self._delete(pod, grace=template.grace)
        live = self.live(name)
        new_count = sum(pod.template == template for pod in live)
        room = replicas + (new_count < len(live)) - len(live)
        for _ in range(min(room, replicas - new_count)):
            usual = self.scenario.startup * self.scenario.noise.startup(len(self.pods))
            self._create(name, template, startup=usual if startup is None else startup)

    def _create(self, name: str, template: Template, *, startup: float) -> None:
        assert self._candidates is not None
        bad, clock = self._candidates.flaw(template.args), f"{self.now:.0f}"
        head = announcement(parse_arguments(["serve", *template.args]), pid=1, at=clock)
        try:
            config = self._configured(template)
            if bad is not None:
                bad.check_start()
        except StartupRefused as error:
            self.pods.append(
                Pod(
                    name=f"refused-{len(self.pods)}",
                    deployment=name,
                    template=template,
                    created=self.now,
                    log=f"{head}\n{refusal(error, pid=1, at=clock)}",
                    bad="" if bad is None else bad.told,
                    next_event=self.now + startup * REFUSED_AFTER,
                )
            )
            return
        if bad is not None and not bad.becomes_ready:
            startup = math.inf
        virtual = self.fleet.start_pod(config, startup=startup, faults=None if bad is None else bad.faults)
        self.pods.append(
            Pod(
                name=virtual.name,
                deployment=name,
                template=template,
                created=self.now,
                log=f"{head}\n{capacity(config, pid=1, at=clock)}",
                virtual=virtual,
                bad="" if bad is None else bad.told,
                next_event=self.now + startup,
            )
        )

    def _configured(self, template: Template) -> EngineConfig:
        """The engine of this template's image and flags. Raises StartupRefused."""
        profile, pool = self.scenario.hardware.profile, 1.0
        for change in self._disturbances:
            if isinstance(change, Upgrade) and change.image == template.image:
                step, factor, pool = profile.step, change.step_factor, change.pool_factor
                upgraded = replace(
                    step,
                    base_ms=step.base_ms * factor,
                    per_sequence_ms=step.per_sequence_ms * factor,
                    per_ktoken_ms=step.per_ktoken_ms * factor,
                    prefill_per_token_ms=step.prefill_per_token_ms * factor,
                )
                profile = replace(profile, step=upgraded)
        config = configure(parse_flags(template.args), profile=profile)
        config = slower(config, factor=self.scenario.noise.speed(len(self.pods)))
        return replace(config, num_gpu_blocks=int(config.num_gpu_blocks * pool))

    def _delete(self, pod: Pod, *, grace: float) -> None:
        pod.deleted, pod.next_event, pod.ended = True, math.inf, self.now
        if pod.virtual is not None:
            self.fleet.terminate(pod.virtual, grace=grace)
