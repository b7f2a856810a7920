"""A Deployment of simulated engines behind a Service, in virtual time, under the requests of a scenario.

The rolling update is Kubernetes' own with maxSurge 1 and maxUnavailable 0; the Service goes round its ready pods.
Must not: decide replicas or flags: `apply` is told, as an API server is.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final

from benchmarks.closedloop.ledger import Ledger
from benchmarks.closedloop.pod import CRASH_AFTER, Phase, Pod, Template
from benchmarks.closedloop.scenario import MetricsOutage, Scenario, Upgrade, Wedge
from vllm_autotuner.cluster.errors import NotFound
from vllm_autotuner.control.views import DeploymentView, PodView
from vllm_autotuner.engine.flags import parse_flags
from vllm_autotuner.simulation.configuration import Profile
from vllm_autotuner.simulation.sequence import Request

__all__ = ["EPOCH", "IMAGE", "NAME", "NAMESPACE", "Fleet"]

EPOCH: Final = datetime(2026, 1, 5, tzinfo=UTC)
"""The wall clock at second 0 of every run: a Monday midnight, for no other reason than to be the same each time."""
NAMESPACE: Final = "bench"
NAME: Final = "service"
IMAGE: Final = "vllm/vllm-openai:v0.32.0"
DRAIN_CHECK: Final = 1.0
"""Seconds between two looks whether a draining pod is empty."""


class Fleet:
    """The world of one run. `apply` what shall run, `advance` the time, look at `pods`."""

    def __init__(self, scenario: Scenario, *, faults: bool = True) -> None:
        self.scenario = scenario
        self.ledger = Ledger(len(scenario.traffic))
        self.now = 0.0
        self.pods: list[Pod] = []
        self._template: Template | None = None
        self._replicas = 0
        self._generation = 0
        self._arrived = 0
        self._turn = -1
        self._serving: list[Pod] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._disturbances = tuple(scenario.disturbances) if faults else ()
        for disturbance in self._disturbances:
            if isinstance(disturbance, Wedge):
                self._at(disturbance.at, lambda until=disturbance.repaired: self._wedge(until))

    @property
    def live(self) -> Sequence[Pod]:
        """Pods that are not on their way out."""
        return [pod for pod in self.pods if pod.phase in (Phase.STARTING, Phase.READY)]

    @property
    def replicas(self) -> int:
        """Asked for."""
        return self._replicas

    @property
    def scraped(self) -> bool:
        """Whether metrics can be read now."""
        outages = (one for one in self._disturbances if isinstance(one, MetricsOutage))
        return not any(outage.at <= self.now < outage.until for outage in outages)

    @property
    def busy(self) -> bool:
        """Whether requests are still to come or under way."""
        return self._arrived < len(self.scenario.traffic) or any(pod.in_flight for pod in self.pods)

    def apply(self, body: dict[str, Any], *, ready: bool = False) -> None:
        """Take a rendered Deployment. `ready`: its pods have been serving since before the run began."""
        template, replicas = Template.of(body), int(body["spec"]["replicas"])
        if template == self._template and replicas == self._replicas:
            return
        if template != self._template:
            self.ledger.rollouts += self._template is not None
            self.ledger.seats.append((self.now, parse_flags(template.args).max_num_seqs))
        if replicas != self._replicas:
            self.ledger.scalings.append((self.now, replicas))
        self._template, self._replicas = template, replicas
        self._generation += 1
        self._reconcile()
        for pod in self.live if ready else ():
            self._became_ready(pod)

    def advance(self, until: float) -> None:
        """Let requests arrive, pods come and go, and engines work, until the given second."""
        arrivals = self.scenario.traffic.arrivals
        while True:
            due = self._events[0][0] if self._events else float("inf")
            arrival = float(arrivals[self._arrived]) if self._arrived < len(arrivals) else float("inf")
            if min(due, arrival) > until:
                break
            self.now = min(due, arrival)
            if due <= arrival:
                heapq.heappop(self._events)[2]()
            else:
                self._arrive()
        self.now = until
        for pod in self.pods:
            pod.advance(until, ledger=self.ledger)

    def gpu_seconds(self, since: float, until: float) -> float:
        """What was paid for between two seconds: a pod costs from its creation to its end, ready or not."""
        spans = ((max(pod.created, since), min(pod.gone_at, until), pod.template.gpus) for pod in self.pods)
        return sum(max(0.0, end - start) * gpus for start, end, gpus in spans)

    def finish(self) -> None:
        """End the run: give up what is still under way."""
        for pod in self.pods:
            if pod.phase is not Phase.GONE:
                self._end(pod)
        for index in (self.ledger.fate == 0).nonzero()[0]:
            self.ledger.failed(int(index))

    def deployment(self) -> DeploymentView:
        """The Deployment as the registry would hold it."""
        assert self._template is not None
        live = self.live
        ready = sum(pod.phase is Phase.READY for pod in live)
        return DeploymentView(
            namespace=NAMESPACE,
            name=NAME,
            uid="deployment",
            service=NAME,
            owner_uid="service",
            resource_version=str(self._generation),
            generation=self._generation,
            observed_generation=self._generation,
            replicas=self._replicas,
            current_replicas=len(live),
            ready_replicas=ready,
            updated_replicas=sum(pod.template == self._template for pod in live),
            available=ready,
            unavailable=len(live) - ready,
            config_hash=self._template.config_hash,
            progressing=None,
            deleting=False,
        )

    def pod_views(self) -> Sequence[PodView]:
        """The pods as the registry would hold them."""
        there = (pod for pod in self.pods if pod.phase is not Phase.GONE)
        return [pod.view(epoch=EPOCH, namespace=NAMESPACE, service=NAME) for pod in there]

    async def pod_log(
        self,
        namespace: str,
        name: str,
        container: str,
        *,
        previous: bool = False,
        tail_bytes: int | None = None,
        head_bytes: int | None = None,
    ) -> str:
        """Answer as `cluster.adapter.Cluster.pod_log` does."""
        pod = next((one for one in self.pods if one.name == name and one.phase is not Phase.GONE), None)
        text = "" if pod is None else pod.previous_log if previous else pod.log
        if not text:
            raise NotFound(f"no log of {name}", reason="NotFound")
        return text[-tail_bytes:] if tail_bytes else text[:head_bytes]

    def wall(self) -> datetime:
        """The time of day."""
        return EPOCH + timedelta(seconds=self.now)

    def profile_of(self, image: str) -> Profile:
        """What engines of this image are like."""
        profile = self.scenario.hardware.profile
        for change in self._disturbances:
            if isinstance(change, Upgrade) and change.image == image:
                step, factor = profile.step, change.step_factor
                slower = replace(
                    step,
                    base_ms=step.base_ms * factor,
                    per_sequence_ms=step.per_sequence_ms * factor,
                    per_ktoken_ms=step.per_ktoken_ms * factor,
                    prefill_per_token_ms=step.prefill_per_token_ms * factor,
                )
                return replace(profile, step=slower, gpu_blocks=int(profile.gpu_blocks * change.pool_factor))
        return profile

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def _arrive(self) -> None:
        index = self._arrived
        self._arrived += 1
        if not self._serving:
            self.ledger.failed(index)
            return
        self._turn += 1
        traffic = self.scenario.traffic
        request = Request(
            arrival=float(traffic.arrivals[index]),
            prompt_tokens=int(traffic.prompt_tokens[index]),
            max_tokens=int(traffic.output_tokens[index]),
        )
        pod = self._serving[self._turn % len(self._serving)]
        pod.take(index, request, patience=self.scenario.patience, ledger=self.ledger)

    def _reconcile(self) -> None:
        """What the Deployment controller does: surplus pods go, missing ones come, the old leave as the new serve."""
        template = self._template
        assert template is not None
        ready = sum(pod.phase is Phase.READY for pod in self.live)
        for pod in sorted((p for p in self.live if p.template != template), key=lambda p: p.phase is Phase.READY):
            if pod.phase is Phase.STARTING or ready > self._replicas:
                ready -= pod.phase is Phase.READY
                self._leave(pod)
        new = [pod for pod in self.live if pod.template == template]
        for pod in sorted(new, key=lambda p: (p.phase is Phase.READY, -p.created))[: max(0, len(new) - self._replicas)]:
            self._leave(pod)
        live = self.live
        new_count = sum(pod.template == template for pod in live)
        room = self._replicas + (new_count < len(live)) - len(live)
        for _ in range(min(room, self._replicas - new_count)):
            self._create(template)

    def _create(self, template: Template) -> None:
        self.ledger.pods_started += 1
        number = self.ledger.pods_started
        pod = Pod(f"{NAME}-{number}", template, self.now, seed=self.scenario.seed + number)
        self.pods.append(pod)
        self._start(pod)

    def _start(self, pod: Pod) -> None:
        if pod.phase is not Phase.STARTING:
            return
        startup = self.scenario.startup
        if pod.start(self.profile_of(pod.template.image), at=self.now):
            self._at(self.now + startup, lambda: self._became_ready(pod))
        else:
            self._at(self.now + startup * CRASH_AFTER, lambda: self._crashed(pod))

    def _became_ready(self, pod: Pod) -> None:
        if pod.phase is not Phase.STARTING:
            return
        pod.phase, pod.ready_since = Phase.READY, self.now
        self._serving.append(pod)
        self._reconcile()

    def _crashed(self, pod: Pod) -> None:
        if pod.phase is Phase.STARTING:
            self._at(pod.crash(at=self.now), lambda: self._start(pod))

    def _leave(self, pod: Pod) -> None:
        if pod.phase is Phase.STARTING:
            self._end(pod)
            return
        self._serving.remove(pod)
        pod.phase, pod.deadline = Phase.DRAINING, self.now + pod.template.grace
        self._drain(pod)

    def _drain(self, pod: Pod) -> None:
        if pod.phase is not Phase.DRAINING:
            return
        pod.advance(self.now, ledger=self.ledger)
        if not pod.in_flight or self.now >= pod.deadline:
            self._end(pod)
        else:
            self._at(min(self.now + DRAIN_CHECK, pod.deadline), lambda: self._drain(pod))

    def _end(self, pod: Pod) -> None:
        if pod in self._serving:
            self._serving.remove(pod)
        pod.end(at=self.now, ledger=self.ledger)

    def _wedge(self, until: float) -> None:
        ready = [pod for pod in self._serving if not pod.wedged]
        if not ready:
            return
        victim = min(ready, key=lambda pod: (pod.ready_since, pod.created))
        victim.advance(self.now, ledger=self.ledger)
        victim.wedged = True
        self._at(until, lambda: self._repair(victim))

    def _repair(self, pod: Pod) -> None:
        if pod.phase in (Phase.READY, Phase.DRAINING):
            self._end(pod)
            self._reconcile()
