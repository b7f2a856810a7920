"""A pod's status from what its containers are doing.

Apart from `pod` and `container`, because it is pure: a function of values, the same for tests and for the worker.
Must not: read a clock; times come with the states and with `now`, and a condition's time moves only with its status.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, assert_never

from e2e.agent.objects import Object, rfc3339


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Not running, for a reason in the kubelet's words."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The process is there."""

    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """The process ended; by signal n the exit code is 128 + n."""

    exit_code: int
    reason: str
    message: str = ""
    started_at: datetime
    finished_at: datetime
    container_id: str = ""


State: TypeAlias = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerView:
    """One container at one moment."""

    name: str
    image: str
    state: State
    last: Terminated | None = None
    container_id: str = ""
    ready: bool = False
    started: bool = False
    restart_count: int = 0
    sidecar: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether it ended with exit code 0."""
        return isinstance(self.state, Terminated) and self.state.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod at one moment. `ended`: no container will be started any more."""

    restart_policy: str
    init: Sequence[ContainerView]
    main: Sequence[ContainerView]
    pod_ip: str
    host_ip: str
    started_at: datetime
    ended: bool = False

    @property
    def initialized(self) -> bool:
        """Whether every init container is done; one that stays (a sidecar) counts from its start."""
        return all(each.started if each.sidecar else each.succeeded for each in self.init)

    @property
    def phase(self) -> str:
        """Return the pod's phase."""
        if self.ended:
            return "Succeeded" if self.initialized and all(each.succeeded for each in self.main) else "Failed"
        if not self.initialized or any(isinstance(each.state, Waiting) and not each.last for each in self.main):
            return "Pending"
        return "Running"


def restarts(policy: str, exit_code: int) -> bool:
    """Whether a container with this restart policy is started again after this exit code."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def pod_status(view: PodView, *, former: Sequence[Object], gates: Iterable[str], now: datetime) -> Object:
    """Return the strategic merge patch of the status.

    `former` are the conditions of the API object, `gates` its readinessGates.
    """
    status: Object = {
        "phase": view.phase,
        "startTime": rfc3339(view.started_at),
        "hostIP": view.host_ip,
        "hostIPs": [{"ip": view.host_ip}],
        "conditions": _conditions(view, former=former, gates=gates, now=now),
        "containerStatuses": [_container_status(each) for each in view.main],
    }
    if view.init:
        status["initContainerStatuses"] = [_container_status(each) for each in view.init]
    if view.pod_ip:
        # Replaced: a restarted node gives another address, and merged by `ip` there would be two.
        status |= {"podIP": view.pod_ip, "podIPs": [{"$patch": "replace"}, {"ip": view.pod_ip}]}
    return status


def _conditions(view: PodView, *, former: Sequence[Object], gates: Iterable[str], now: datetime) -> list[Object]:
    unready = [each.name for each in [*(each for each in view.init if each.sidecar), *view.main] if not each.ready]
    uninitialized = [each.name for each in view.init if not (each.started if each.sidecar else each.succeeded)]
    known = {each["type"]: each for each in former}
    closed = [gate for gate in gates if known.get(gate, {}).get("status") != "True"]
    if view.phase == "Succeeded":
        not_ready = ("PodCompleted", "")
    elif view.ended:
        not_ready = ("PodFailed", "")
    else:
        not_ready = ("ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    containers_ready = view.initialized and not unready and not view.ended
    rows = [
        ("PodReadyToStartContainers", bool(view.pod_ip), ("", "")),
        (
            "Initialized",
            view.initialized,
            ("ContainersNotInitialized", f"containers with incomplete status: [{' '.join(uninitialized)}]"),
        ),
        ("ContainersReady", containers_ready, not_ready),
        (
            "Ready",
            containers_ready and not closed,
            ("ReadinessGatesNotReady", f"gates not open: {closed}") if containers_ready else not_ready,
        ),
    ]
    return [
        _condition(kind, holds=holds, otherwise=otherwise, former=known, now=now) for kind, holds, otherwise in rows
    ]


def _condition(
    kind: str, *, holds: bool, otherwise: tuple[str, str], former: Mapping[str, Object], now: datetime
) -> Object:
    word = "True" if holds else "False"
    before = former.get(kind, {})
    since = before["lastTransitionTime"] if before.get("status") == word else rfc3339(now)
    reason, message = ("", "") if holds else otherwise
    # Strategic merge keeps what is not named, so that a reason that no longer holds must be set to null.
    return {
        "type": kind,
        "status": word,
        "lastTransitionTime": since,
        "reason": reason or None,
        "message": message or None,
    }


def _container_status(view: ContainerView) -> Object:
    status: Object = {
        "name": view.name,
        "image": view.image,
        "imageID": f"process://{view.image}" if view.container_id else "",
        "ready": view.ready,
        "started": view.started,
        "restartCount": view.restart_count,
        "state": _state(view.state),
        "lastState": _state(view.last) if view.last else {},
    }
    if view.container_id:
        status["containerID"] = view.container_id
    return status


def _state(state: State) -> Object:
    match state:
        case Waiting(reason=reason, message=message):
            return {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        case Running(started_at=started_at):
            return {"running": {"startedAt": rfc3339(started_at)}}
        case Terminated():
            terminated = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "startedAt": rfc3339(state.started_at),
                "finishedAt": rfc3339(state.finished_at),
            }
            optional = {"message": state.message, "containerID": state.container_id}
            return {"terminated": terminated | {name: value for name, value in optional.items() if value}}
        case unreachable:
            assert_never(unreachable)
