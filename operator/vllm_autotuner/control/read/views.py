"""Typed views of VLLMServices, Deployments and pods: the few fields that decisions need, parsed once per change.

Apart from `registry`: parsing is about the shape of Kubernetes objects, the registry about their order in time.
Any field may be missing: a controller may not have reported yet, and people edit objects.
Must not: judge, e.g. whether a replica count is enough.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from vllm_autotuner.api.annotations import whole_number
from vllm_autotuner.api.pod_template import refusal
from vllm_autotuner.api.service import InvalidReason, InvalidService, VLLMService, parse_service
from vllm_autotuner.cluster.bounded_json import OBJECT_TOO_LARGE, is_cut
from vllm_autotuner.cluster.field_managers import last_writer, scaled_by, taken_by, template_list
from vllm_autotuner.workload.labels import CHANGE, CONFIG_HASH, HASH_VERSION, METADATA_HASH, SERVICE, STABLE, TRACK
from vllm_autotuner.workload.pod_permissions import refused_fields

ENGINE_CONTAINER: Final = "vllm"
"""The container that is tuned; sidecars are not looked at."""

_TRANSIENT: Final = frozenset({"PodInitializing", "ContainerCreating"})
"""Waiting reasons of every healthy start."""
_NO_NODE: Final = frozenset({"Unschedulable", "SchedulingGated"})
"""Reasons of a pod that no node takes: none fits, or a scheduling gate is closed."""

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceEntry:
    """A VLLMService: the object as it was seen, and as it reads."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created: str
    """When, as the API server wrote it; empty where it did not."""

    text: bytes = field(repr=False)
    """The object as JSON, a fraction of what it takes as a value: a fleet has thousands of them, seldom asked for."""

    service: VLLMService | InvalidService

    @property
    def body(self) -> Body:
        """The whole object but for managedFields, and for a pod template that is refused; a new value each time."""
        body: Body = json.loads(self.text)
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressing:
    """The Deployment controller's own account of a rollout."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """A Deployment that the operator manages; counts are pods."""

    namespace: str
    name: str
    uid: str
    service: str
    """Name of its VLLMService, by label; empty when the label is missing."""

    owner_uid: str | None
    """The controller reference's uid: a label can be copied, this cannot be guessed."""

    resource_version: str
    generation: int
    observed_generation: int
    """What the counts below are about; older than `generation` means that they are about the past."""

    replicas: int
    """The desired number, from the spec."""

    current_replicas: int
    ready_replicas: int
    updated_replicas: int
    available: int
    unavailable: int
    config_hash: str | None
    hash_version: int | None
    """Version of the rendering that the hash is of; None when not annotated."""
    metadata_hash: str | None
    """Of the user's labels and annotations; None when there are none."""
    progressing: Progressing | None
    deleting: bool
    track: str = STABLE
    """`STABLE`, or what it is to a trial (`change.trial_deployments.Track`)."""

    change: str = ""
    """Of a trial: the id of its change."""

    args: tuple[str, ...] = ()
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    """Of the engine's container; variables without a plain value are left out."""

    taken: Mapping[str, str] = field(default_factory=dict)
    """Fields of the operator that another field manager has overwritten: the field and the manager."""

    last_writer: str = ""
    """The manager other than us that wrote last."""

    scaled_by: str = ""
    """The autoscaler that owns the replicas."""

    not_created: str = ""
    """Why a pod that it lacks cannot be created, e.g. a quota; empty if none is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """How an instance of a container ended."""

    exit_code: int | None
    reason: str
    message: str
    """The termination message: with FallbackToLogsOnError the last 2 KiB of the log."""

    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A pod of a service, and its engine container."""

    namespace: str
    name: str
    uid: str
    service: str
    phase: str
    ready: bool
    ready_since: datetime | None
    created: datetime | None
    deleting: bool
    pod_template_hash: str | None
    config_hash: str | None
    args: tuple[str, ...]
    """What its engine is given."""

    restarts: int
    waiting_reason: str | None
    """Why a container does not run, e.g. CrashLoopBackOff; the usual waiting of a start is left out."""

    unschedulable: str | None
    """The scheduler's message while no node takes it: none fits, or a scheduling gate is closed."""

    last_termination: Termination | None
    container_started_at: datetime | None
    container: str = ENGINE_CONTAINER
    """The name of the engine's container."""
    node: str = ""
    """Where it runs; empty while it is not scheduled."""
    track: str = STABLE
    change: str = ""


def service_entry(body: Body, *, pod_permissions: frozenset[str] = frozenset()) -> ServiceEntry:
    """Read a VLLMService. Unreadable specs and statuses are values of `service`, not errors.

    `pod_permissions`: what the installation allows in pod templates (`workload.pod_permissions`). A template that asks
    for more makes the spec unreadable: nothing may be rendered from it.
    """
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    kept = {**body, "metadata": metadata}
    spec = body.get("spec") or {}
    if not is_cut(body) and (why := refusal(spec.get("podTemplate"))):
        # Kept for as long as the object is there: the reason is enough, and a hundred such objects would fill memory.
        kept["spec"] = {**spec, "podTemplate": why}
    service = _permitted(parse_service(kept), allowed=pod_permissions)
    return ServiceEntry(
        namespace=service.metadata.namespace,
        name=service.metadata.name,
        uid=service.metadata.uid,
        generation=service.metadata.generation,
        resource_version=service.metadata.resource_version,
        created=str(metadata.get("creationTimestamp", "")),
        text=json.dumps(kept, separators=(",", ":")).encode(),
        service=service,
    )


def _permitted(service: VLLMService | InvalidService, *, allowed: frozenset[str]) -> VLLMService | InvalidService:
    if isinstance(service, InvalidService) or service.spec.pod_template is None:
        return service
    why = refused_fields(service.spec.pod_template.overlay(), allowed=allowed)
    if not why:
        return service
    return InvalidService(
        metadata=service.metadata,
        reason=InvalidReason.SPEC,
        message=f"spec.podTemplate: {why}",
        status=service.status,
        spec=service.spec,
    )


def deployment_view(body: Body) -> DeploymentView:
    """Read a Deployment. Raises TooLarge."""
    _require_whole(body)
    metadata, spec, status = body["metadata"], _part(body, "spec"), _part(body, "status")
    engine = _named(_parts(_part(_part(spec, "template"), "spec"), "containers"), ENGINE_CONTAINER)
    env = {each.get("name", ""): str(each["value"]) for each in _parts(engine, "env") if "value" in each}
    return DeploymentView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        service=_part(metadata, "labels").get(SERVICE, ""),
        owner_uid=next(
            (each.get("uid") for each in _parts(metadata, "ownerReferences") if each.get("controller")), None
        ),
        resource_version=metadata.get("resourceVersion", ""),
        generation=_count(metadata, "generation"),
        observed_generation=_count(status, "observedGeneration"),
        # The API server writes the default 1 into the object; only one that was never stored lacks it.
        replicas=_count(spec, "replicas", missing=1),
        current_replicas=_count(status, "replicas"),
        ready_replicas=_count(status, "readyReplicas"),
        updated_replicas=_count(status, "updatedReplicas"),
        available=_count(status, "availableReplicas"),
        unavailable=_count(status, "unavailableReplicas"),
        config_hash=_part(metadata, "annotations").get(CONFIG_HASH),
        hash_version=whole_number(_part(metadata, "annotations").get(HASH_VERSION)),
        metadata_hash=_part(metadata, "annotations").get(METADATA_HASH),
        progressing=_progressing(status),
        deleting="deletionTimestamp" in metadata,
        args=tuple(engine.get("args") or ()),
        image=engine.get("image", ""),
        env=env,
        taken=_taken(body, env),
        last_writer=last_writer(body),
        scaled_by=", ".join(scaled_by(body)),
        track=_part(metadata, "labels").get(TRACK, STABLE),
        change=_part(metadata, "labels").get(CHANGE, ""),
        not_created=_not_created(status),
    )


def _taken(body: Body, env: Iterable[str]) -> Mapping[str, str]:
    variables = template_list(ENGINE_CONTAINER, "env")
    paths = {
        "args": template_list(ENGINE_CONTAINER, "args"),
        "image": template_list(ENGINE_CONTAINER, "image"),
        "config-hash": ("f:metadata", "f:annotations", f"f:{CONFIG_HASH}"),
        "replicas": ("f:spec", "f:replicas"),
        **{f"env {name}": (*variables, f'k:{{"name":"{name}"}}', "f:value") for name in env},
    }
    found = {name: taken_by(body, path=path) for name, path in paths.items()}
    return {name: manager for name, manager in found.items() if manager}


def pod_view(body: Body, *, container: str = ENGINE_CONTAINER) -> PodView:
    """Read a pod, and the container in it that is the engine. Raises TooLarge."""
    _require_whole(body)
    metadata, spec, status = body["metadata"], _part(body, "spec"), _part(body, "status")
    engine = _named(_parts(status, "containerStatuses"), container)
    labels = _part(metadata, "labels")
    ready = _condition(status, "Ready")
    is_ready = ready.get("status") == "True"
    return PodView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        service=labels.get(SERVICE, ""),
        phase=status.get("phase", ""),
        ready=is_ready,
        ready_since=_moment(ready.get("lastTransitionTime")) if is_ready else None,
        created=_moment(metadata.get("creationTimestamp")),
        deleting="deletionTimestamp" in metadata,
        pod_template_hash=labels.get("pod-template-hash"),
        config_hash=_part(metadata, "annotations").get(CONFIG_HASH),
        args=tuple(_named(_parts(spec, "containers"), container).get("args") or ()),
        restarts=_count(engine, "restartCount"),
        waiting_reason=_waiting_reason(status),
        unschedulable=_unschedulable(status),
        last_termination=_termination(engine),
        container_started_at=_moment(_part(_part(engine, "state"), "running").get("startedAt")),
        container=container,
        node=str(spec.get("nodeName") or ""),
        track=labels.get(TRACK, STABLE),
        change=labels.get(CHANGE, ""),
    )


class TooLarge(ValueError):
    """An object of which not everything was read."""


def _require_whole(body: Body) -> None:
    if is_cut(body):
        raise TooLarge(OBJECT_TOO_LARGE)


def _progressing(status: Body) -> Progressing | None:
    found = _condition(status, "Progressing")
    if not found:
        return None
    return Progressing(status=found.get("status", ""), reason=found.get("reason", ""), message=found.get("message", ""))


def _not_created(status: Body) -> str:
    failure = _condition(status, "ReplicaFailure")
    if failure.get("status") == "True" and failure.get("reason") == "FailedCreate":
        return str(failure.get("message", ""))
    return ""


def _waiting_reason(status: Body) -> str | None:
    # Init containers first: while one of them fails, the engine only says PodInitializing.
    for container in (*_parts(status, "initContainerStatuses"), *_parts(status, "containerStatuses")):
        reason: str | None = _part(_part(container, "state"), "waiting").get("reason")
        if reason and reason not in _TRANSIENT:
            return reason
    return None


def _unschedulable(status: Body) -> str | None:
    scheduled = _condition(status, "PodScheduled")
    reason = scheduled.get("reason")
    if scheduled.get("status") == "False" and reason in _NO_NODE:
        return str(scheduled.get("message") or reason)
    return None


def _termination(engine: Body) -> Termination | None:
    # A container that does not come back (or not yet) has its end in `state`, a restarted one in `lastState`.
    found = _part(_part(engine, "state"), "terminated") or _part(_part(engine, "lastState"), "terminated")
    if not found:
        return None
    return Termination(
        exit_code=found.get("exitCode"),
        reason=found.get("reason", ""),
        message=found.get("message", ""),
        finished_at=_moment(found.get("finishedAt")),
    )


def _condition(status: Body, type_: str) -> Body:
    return next((each for each in _parts(status, "conditions") if each.get("type") == type_), {})


def _named(containers: Iterable[Body], name: str) -> Body:
    return next((each for each in containers if each.get("name") == name), {})


def _part(body: Body, key: str) -> Body:
    return body.get(key) or {}


def _parts(body: Body, key: str) -> list[Body]:
    return body.get(key) or []


def _count(body: Body, key: str, *, missing: int = 0) -> int:
    value = body.get(key)
    return missing if value is None else int(value)


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
