"""A Deployment over a fleet in virtual time: rolling updates, start-ups that fail, a person's repairs.

The rolling update is Kubernetes' own with maxSurge 1 and maxUnavailable 0, as the product renders it.
Must not: decide replicas or flags (`apply` is told, as an API server is), or judge a request.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from benchmarks.closedloop.scenario import MetricsOutage, Scenario, Upgrade, Wedge
from vllm_autotuner.cluster.errors import NotFound
from vllm_autotuner.control.views import DeploymentView, PodView, Termination
from vllm_autotuner.engine.flags import parse_flags
from vllm_autotuner.simulation.arguments import parse_arguments
from vllm_autotuner.simulation.configuration import EngineConfig, StartupRefused, configure
from vllm_autotuner.simulation.pods import PodState, VirtualPod
from vllm_autotuner.simulation.startup import announcement, capacity, refusal
from vllm_autotuner.simulation.virtual import RESTART_FIRST, RESTART_LONGEST, ClientPatience, VirtualFleet
from vllm_autotuner.workload.hashing import RENDERING_VERSION, recorded_hash

__all__ = ["EPOCH", "IMAGE", "NAME", "NAMESPACE", "Deployment", "Pod", "Template"]

EPOCH: Final = datetime(2026, 1, 5, tzinfo=UTC)
"""The wall clock at second 0 of every run: a Monday midnight, for no other reason than to be the same each time."""
NAMESPACE: Final = "bench"
NAME: Final = "service"
IMAGE: Final = "vllm/vllm-openai:v0.32.0"
REFUSED_AFTER: Final = 0.25
"""Part of a normal start after which an impossible configuration is refused. Our choice: weights are not loaded yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What a rendered Deployment says about its pods."""

    config_hash: str
    image: str
    args: tuple[str, ...]
    grace: float
    """Seconds between the decision to stop a pod and its end."""
    gpus: int

    @classmethod
    def of(cls, body: dict[str, Any]) -> "Template":
        """Read a rendered Deployment."""
        template = body["spec"]["template"]
        container = template["spec"]["containers"][0]
        recorded = recorded_hash(body)
        assert recorded is not None, "a rendered Deployment carries its hash"
        return cls(
            config_hash=recorded[0],
            image=container["image"],
            args=tuple(container["args"]),
            grace=float(template["spec"]["terminationGracePeriodSeconds"]),
            gpus=sum(int(count) for count in container["resources"]["limits"].values()),
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Pod:
    """A pod of the Deployment: a simulated one, or one whose engine refuses to start. Times in seconds of the run."""

    name: str
    template: Template
    created: float
    log: str
    virtual: VirtualPod | None = None
    """None: the engine refuses its configuration, over and over."""
    next_event: float = math.inf
    """When it becomes ready, or is refused once more."""
    refused: int = 0
    refused_at: float | None = None
    deleted: bool = False
    """A person or the controller removed it; it may still drain."""
    ended: float = math.inf

    @property
    def ready(self) -> bool:
        """Whether requests are sent to it."""
        return self.virtual is not None and self.virtual.state is PodState.READY and not self.deleted

    @property
    def gone(self) -> bool:
        """Whether it holds nothing any more."""
        return self.virtual.state is PodState.GONE if self.virtual is not None else self.deleted

    def gpu_seconds(self, since: float, until: float) -> float:
        """What it costs between two seconds: from its creation to its end, ready or not."""
        ended = self.ended if self.virtual is None or self.virtual.ended is None else self.virtual.ended
        return max(0.0, min(ended, until) - max(self.created, since)) * self.template.gpus


class Deployment:
    """The world of one run. `apply` what shall run, `advance` the time, look at `pods`."""

    def __init__(self, scenario: Scenario, *, faults: bool = True) -> None:
        self.scenario = scenario
        patience = ClientPatience(timeout=scenario.patience)
        self.fleet = VirtualFleet(scenario.traffic(), routing=scenario.routing, patience=patience, seed=scenario.seed)
        self.pods: list[Pod] = []
        self.rollouts = 0
        """Times that other arguments or another image were applied: each restarts every replica."""
        self.scalings: list[tuple[float, int]] = []
        """(time, replicas) of each number asked for."""
        self.seats: list[tuple[float, int | None]] = []
        """(time, max-num-seqs) of each configuration applied."""
        self.replicas = 0
        """Asked for."""
        self._template: Template | None = None
        self._generation = 0
        self._disturbances = tuple(scenario.disturbances) if faults else ()
        self._wedges = [one for one in self._disturbances if isinstance(one, Wedge)]
        self._repairs: list[tuple[float, Pod]] = []

    @property
    def now(self) -> float:
        """Seconds since the start of the run."""
        return self.fleet.now

    @property
    def live(self) -> Sequence[Pod]:
        """Pods that are not on their way out."""
        return [pod for pod in self.pods if not pod.deleted]

    @property
    def ready(self) -> Sequence[Pod]:
        """Pods that serve."""
        return [pod for pod in self.pods if pod.ready]

    @property
    def scraped(self) -> bool:
        """Whether metrics can be read now."""
        outages = (one for one in self._disturbances if isinstance(one, MetricsOutage))
        return not any(outage.at <= self.now < outage.until for outage in outages)

    def wall(self) -> datetime:
        """The time of day."""
        return EPOCH + timedelta(seconds=self.now)

    def gpu_seconds(self, since: float, until: float) -> float:
        """What was paid for between two seconds."""
        return sum(pod.gpu_seconds(since, until) for pod in self.pods)

    def apply(self, body: dict[str, Any], *, ready: bool = False) -> None:
        """Take a rendered Deployment. `ready`: its pods have been serving since before the run began."""
        template, replicas = Template.of(body), int(body["spec"]["replicas"])
        if template == self._template and replicas == self.replicas:
            return
        if template != self._template:
            self.rollouts += self._template is not None
            self.seats.append((self.now, parse_flags(template.args).max_num_seqs))
        if replicas != self.replicas:
            self.scalings.append((self.now, replicas))
        self._template, self.replicas = template, replicas
        self._generation += 1
        self._reconcile(startup=0.0 if ready else None)

    def advance(self, until: float) -> None:
        """Let everything happen until a second of the run."""
        while (at := self._next_event()) <= until:
            self.fleet.advance(at)
            self._let_happen(at)
            self._reconcile()
        self.fleet.advance(until)

    def view(self) -> DeploymentView:
        """The Deployment as the registry would hold it."""
        assert self._template is not None
        live, ready = self.live, len(self.ready)
        return DeploymentView(
            namespace=NAMESPACE,
            name=NAME,
            uid="deployment",
            service=NAME,
            owner_uid="service",
            resource_version=str(self._generation),
            generation=self._generation,
            observed_generation=self._generation,
            replicas=self.replicas,
            current_replicas=len(live),
            ready_replicas=ready,
            updated_replicas=sum(pod.template == self._template for pod in live),
            available=ready,
            unavailable=len(live) - ready,
            config_hash=self._template.config_hash,
            hash_version=RENDERING_VERSION,
            progressing=None,
            deleting=False,
        )

    def pod_views(self) -> Sequence[PodView]:
        """The pods as the registry would hold them."""
        return [_view(pod) for pod in self.pods if not pod.gone]

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
        if found is None or (previous and not found.refused):
            raise NotFound(f"no log of {pod}", reason="NotFound")
        return found.log[-tail_bytes:] if tail_bytes is not None else found.log[:head_bytes]

    def _next_event(self) -> float:
        starting = (pod.next_event for pod in self.live)
        wedges, repairs = (wedge.at for wedge in self._wedges), (at for at, _ in self._repairs)
        return min(math.inf, *starting, *wedges, *repairs)

    def _let_happen(self, at: float) -> None:
        for pod in self.live:
            if pod.next_event > at:
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

    def _reconcile(self, *, startup: float | None = None) -> None:
        """What the Deployment controller does: surplus pods go, missing ones come, the old leave as the new serve."""
        template = self._template
        assert template is not None
        ready = len(self.ready)
        for pod in sorted((one for one in self.live if one.template != template), key=lambda one: one.ready):
            if not pod.ready or ready > self.replicas:
                ready -= pod.ready
                self._delete(pod, grace=template.grace)
        new = [pod for pod in self.live if pod.template == template]
        surplus = max(0, len(new) - self.replicas)
        for pod in sorted(new, key=lambda one: (one.ready, -one.created))[:surplus]:
            self._delete(pod, grace=template.grace)
        live = self.live
        new_count = sum(pod.template == template for pod in live)
        room = self.replicas + (new_count < len(live)) - len(live)
        for _ in range(min(room, self.replicas - new_count)):
            self._create(template, startup=self.scenario.startup if startup is None else startup)

    def _create(self, template: Template, *, startup: float) -> None:
        clock = f"{self.now:.0f}"
        head = announcement(parse_arguments(["serve", *template.args]), pid=1, at=clock)
        try:
            config = self._configured(template)
        except StartupRefused as error:
            self.pods.append(
                Pod(
                    name=f"refused-{len(self.pods)}",
                    template=template,
                    created=self.now,
                    log=f"{head}\n{refusal(error, pid=1, at=clock)}",
                    next_event=self.now + startup * REFUSED_AFTER,
                )
            )
            return
        virtual = self.fleet.start_pod(config, startup=startup)
        self.pods.append(
            Pod(
                name=virtual.name,
                template=template,
                created=self.now,
                log=f"{head}\n{capacity(config, pid=1, at=clock)}",
                virtual=virtual,
                next_event=self.now + startup,
            )
        )

    def _configured(self, template: Template) -> EngineConfig:
        """The engine of this template's image and flags. Raises StartupRefused."""
        profile, pool = self.scenario.hardware.profile, 1.0
        for change in self._disturbances:
            if isinstance(change, Upgrade) and change.image == template.image:
                step, factor, pool = profile.step, change.step_factor, change.pool_factor
                slower = replace(
                    step,
                    base_ms=step.base_ms * factor,
                    per_sequence_ms=step.per_sequence_ms * factor,
                    per_ktoken_ms=step.per_ktoken_ms * factor,
                    prefill_per_token_ms=step.prefill_per_token_ms * factor,
                )
                profile = replace(profile, step=slower)
        config = configure(parse_flags(template.args), profile=profile)
        return replace(config, num_gpu_blocks=int(config.num_gpu_blocks * pool))

    def _delete(self, pod: Pod, *, grace: float) -> None:
        pod.deleted, pod.next_event, pod.ended = True, math.inf, self.now
        if pod.virtual is not None:
            self.fleet.terminate(pod.virtual, grace=grace)


def _view(pod: Pod) -> PodView:
    def moment(at: float) -> datetime:
        return EPOCH + timedelta(seconds=at)

    restarts = pod.refused if pod.virtual is None else pod.virtual.restarts
    ended = None
    if pod.refused_at is not None:
        ended = Termination(exit_code=1, reason="Error", message="", finished_at=moment(pod.refused_at))
    startup = 0.0 if pod.virtual is None else pod.virtual.startup
    return PodView(
        namespace=NAMESPACE,
        name=pod.name,
        uid=pod.name,
        service=NAME,
        phase="Running",
        ready=pod.ready,
        ready_since=moment(pod.created + startup) if pod.ready else None,
        created=moment(pod.created),
        deleting=pod.deleted,
        pod_template_hash=pod.template.config_hash,
        config_hash=pod.template.config_hash,
        args=pod.template.args,
        restarts=restarts,
        waiting_reason="CrashLoopBackOff" if pod.refused else None,
        unschedulable=None,
        last_termination=ended,
        container_started_at=None,
    )
