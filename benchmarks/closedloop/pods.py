"""The pods of a simulated cluster, and what an API server shows of them.

Apart from the cluster, which decides when something happens to one. Must not: choose a time, or know a Deployment.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from vllm_autotuner.control.read.views import ENGINE_CONTAINER
from vllm_autotuner.simulation.simulated_pod import PodState, VirtualPod
from vllm_autotuner.workload.hashing import recorded_hash
from vllm_autotuner.workload.labels import CONFIG_HASH, STABLE, TRACK

__all__ = ["EPOCH", "GPUS", "IMAGE", "NAME", "NAMESPACE", "Pod", "Template", "pod_body", "wall"]

EPOCH: Final = datetime(2026, 1, 5, tzinfo=UTC)
"""The wall clock at second 0 of every run: a Monday midnight, for no other reason than to be the same each time."""
NAMESPACE: Final = "bench"
NAME: Final = "service"
GPUS: Final = "nvidia.com/gpu"
"""As pods ask for them."""
IMAGE: Final = "vllm/vllm-openai:v0.32.0"

Body = dict[str, Any]


def wall(at: float) -> datetime:
    """The time of day at a second of the run."""
    return EPOCH + timedelta(seconds=at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What a rendered Deployment says about its pods."""

    config_hash: str
    image: str
    args: tuple[str, ...]
    grace: float
    """Seconds between the decision to stop a pod and its end."""
    gpus: int
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, body: Body) -> "Template":
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
            labels=tuple(sorted(template["metadata"]["labels"].items())),
        )

    @property
    def track(self) -> str:
        """`STABLE` for the service's own pods, else what they are to a change."""
        return dict(self.labels).get(TRACK, STABLE)


@dataclass(slots=True, eq=False, kw_only=True)
class Pod:
    """A pod of a Deployment: a simulated one, or one whose engine refuses to start. Times in seconds of the run."""

    name: str
    deployment: str
    template: Template
    created: float
    log: str
    virtual: VirtualPod | None = None
    """None: the engine refuses its configuration, over and over."""
    bad: str = ""
    """What is secretly wrong with its configuration; empty when nothing is."""
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

    @property
    def end(self) -> float:
        """When it was gone."""
        return self.ended if self.virtual is None or self.virtual.ended is None else self.virtual.ended

    @property
    def restarts(self) -> int:
        """How often its engine has ended by itself."""
        return self.refused if self.virtual is None else self.virtual.restarts

    def gpu_seconds(self, since: float, until: float) -> float:
        """What it costs between two seconds: from its creation to its end, ready or not."""
        return max(0.0, min(self.end, until) - max(self.created, since)) * self.template.gpus

    def serving(self, until: float) -> list[tuple[float, float]]:
        """From when to when requests were sent to it, up to a second of the run."""
        if self.virtual is None:
            return []
        entered = [*self.virtual.entered, (until, PodState.GONE)]
        return [
            (since, min(at, until))
            for (since, state), (at, _) in pairwise(entered)
            if state is PodState.READY and since < until
        ]


def pod_body(pod: Pod, *, version: int) -> Body:
    """The object as a watch would bring it."""
    metadata: Body = {
        "namespace": NAMESPACE,
        "name": pod.name,
        "uid": pod.name,
        "resourceVersion": str(version),
        "creationTimestamp": wall(pod.created).isoformat(),
        "labels": dict(pod.template.labels),
        "annotations": {CONFIG_HASH: pod.template.config_hash},
    }
    if pod.deleted:
        metadata["deletionTimestamp"] = wall(pod.created).isoformat()
    ready: Body = {"type": "Ready", "status": "True" if pod.ready else "False"}
    container: Body = {"name": ENGINE_CONTAINER, "restartCount": pod.restarts, "state": {"running": {}}}
    died = pod.refused_at
    if pod.virtual is not None:
        # The last of each state counts.
        times = {state: at for at, state in pod.virtual.entered}
        if pod.ready:
            ready["lastTransitionTime"] = wall(times[PodState.READY]).isoformat()
        died = times[PodState.STARTING] if pod.restarts else None
    elif pod.refused:
        container["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    if died is not None:
        container["lastState"] = {
            "terminated": {"exitCode": 1, "reason": "Error", "finishedAt": wall(died).isoformat()}
        }
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": ENGINE_CONTAINER, "args": list(pod.template.args)}]},
        "status": {"phase": "Running", "conditions": [ready], "containerStatuses": [container]},
    }
