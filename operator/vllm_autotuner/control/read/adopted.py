"""An adopted Deployment (spec.targetRef) in one tick: how it is presented to the decision, and what is written to it.

What the owner wrote into the Deployment takes the place of `spec.engine`, so that the decision treats an adopted
service like any other. Apart from `adopting`, which reads from the API.
Must not: decide, or write anything but the engine's flags and, with `spec.scaling`, the replicas.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_autotuner.api.conditions import Reason
from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.spec import (
    MOST_REPLICAS,
    Accelerator,
    Engine,
    Mode,
    Model,
    StrategyType,
    VLLMServiceSpec,
)
from vllm_autotuner.api.status import ActiveChange, ChangeState, Effective, Source, VLLMServiceStatus
from vllm_autotuner.change.effective import effective_knobs
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.field_managers import declarers, is_ours, maker, template_list
from vllm_autotuner.control.decide.inputs import Adoption, Refusal, wanted_replicas
from vllm_autotuner.control.read.handover_instructions import flags_elsewhere, replicas_elsewhere
from vllm_autotuner.control.read.views import Body, DeploymentView, PodView, deployment_view, pod_view
from vllm_autotuner.engine.command_line import Field, command_line
from vllm_autotuner.engine.flags import FlagError
from vllm_autotuner.planning.bounds import value_of, with_value
from vllm_autotuner.workload.adoption import Marker, Target, Unwritable, digest_of, marker_of
from vllm_autotuner.workload.labels import CONSENT, CONSENT_GIVEN
from vllm_autotuner.workload.rollout import ready_floor, rollout_obstacle

__all__ = ["Adopted", "adopted_from"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """One adopted Deployment in one tick."""

    service: VLLMService
    """The VLLMService as if it had rendered what the owner of the Deployment wrote."""
    target: Target
    deployment: DeploymentView
    pods: tuple[PodView, ...]
    selector: str
    adoption: Adoption
    ours: frozenset[Field]
    """The lists of the engine's container that the operator owns already."""

    def hash_of(self, knobs: EngineKnobs) -> str:
        """The hash of the Deployment's pod template with these values. Raises Unwritable."""
        return self.target.hash(self.target.words(knobs))

    def differs(self, status: VLLMServiceStatus) -> bool:
        """Whether the Deployment differs from what the status says it should run."""
        asked = self.target.words(effective_knobs(self.service.spec, status))
        return asked != self.target.live or self._replicas(status) is not None

    async def follow(self, status: VLLMServiceStatus, *, cluster: Cluster, epoch: int) -> None:
        """Apply the written status to the Deployment, with at most one write: the flags first.

        Raises Conflict when the Deployment was written since it was read: the next tick reads it again.
        """
        target = self.target
        words = target.words(effective_knobs(self.service.spec, status))
        if words != target.live:
            body = target.patch(words, service_uid=self.service.metadata.uid, ours=self.ours)
            logger.info("writing engine flags", extra={"service": self.service.key, "deployment": self.deployment.name})
            await cluster.apply_adopted(body, epoch=epoch)
            return
        if (replicas := self._replicas(status)) is not None:
            logger.info("scaling deployment", extra={"service": self.service.key, "replicas": replicas})
            view = self.deployment
            await cluster.scale(view.namespace, view.name, replicas, resource_version=view.resource_version)

    def _replicas(self, status: VLLMServiceStatus) -> int | None:
        """The replicas to write; None where they are not ours, or already there."""
        wanted = wanted_replicas(self.service, status) if self.service.spec.scaling is not None else None
        return None if wanted == self.deployment.replicas else wanted


def adopted_from(
    service: VLLMService, *, target: Target, bodies: Sequence[Body], selector: str, autoscalers: Sequence[str]
) -> Adopted:
    """Build the adopted service from its Deployment, pods and autoscalers."""
    live = replace(deployment_view(target.deployment), config_hash=target.hash(target.live))
    target, mine = _as_written_by_its_owner(target, service)
    edited = _edited(target, service, mine=mine)
    left = service.status.active_change is not None and not mine and target.line.words != target.live
    locked, conflict = _locked(target, service, autoscalers=autoscalers)
    adoption = Adoption(
        about=_about(target),
        locked=locked,
        conflict=conflict,
        edited=edited,
        holds_candidate=left,
        floor=ready_floor(target.deployment),
    )
    return Adopted(
        service=replace(
            service,
            spec=_as_if_rendered(service.spec, target, live=live, scaled=Knob.REPLICAS not in locked),
            status=_as_if_followed(service, edited=edited, replicas=live.replicas),
        ),
        target=target.for_writing(),
        deployment=live,
        pods=tuple(_pod(body, target=target, live_hash=live.config_hash) for body in bodies),
        selector=selector,
        adoption=adoption,
        ours=_ours(target),
    )


def _as_written_by_its_owner(target: Target, service: VLLMService) -> tuple[Target, bool]:
    """The target with the owner's original flags, and whether the live flags were written by the operator."""
    status, marker = service.status, _marker(target, service)
    if marker is None:
        return target, False
    if marker.written != digest_of(target.live):
        return _without_candidate(target, status.active_change), False
    effective = status.effective
    in_force = status.active_change is not None or (
        # Values that the operator wrote count as tuned while the status has them in force or still has to roll them
        # back. A new VLLMService for a Deployment that an earlier one tuned takes the values as it finds them.
        effective is not None and (effective.source is Source.TUNED or effective.knobs != target.knobs)
    )
    return (target.from_line(marker.original) if in_force else target), True


def _without_candidate(target: Target, change: ActiveChange | None) -> Target:
    """The target of an edited list that still has the value under test: the owner's edit, with the value before."""
    if change is None or change.knob not in set(Knob):
        return target
    knob = Knob(change.knob)
    before, tested = value_of(knob, change.from_.knobs), value_of(knob, change.to.knobs)
    if tested is None or value_of(knob, target.knobs) != tested:
        return target
    try:
        if before is None:
            return target.without(knob, tested)
        return target.from_line(target.words(with_value(target.knobs, knob, before)))
    except Unwritable:
        return target


def _marker(target: Target, service: VLLMService) -> Marker | None:
    marker = marker_of(target.deployment)
    if marker is None or marker.service_uid != service.metadata.uid or marker.field is not target.line.field:
        return None
    return marker


def _edited(target: Target, service: VLLMService, *, mine: bool) -> bool:
    """Whether another field manager wrote the flags or the pod template since the operator did."""
    change, effective = service.status.active_change, service.status.effective
    try:
        if change is not None:
            return _edited_under(change, target=target, marker=_marker(target, service))
        tuned = effective is not None and effective.source is Source.TUNED
        return tuned and effective is not None and not mine and target.words(effective.knobs) != target.live
    except Unwritable:
        return True


def _edited_under(change: ActiveChange, *, target: Target, marker: Marker | None) -> bool:
    if target.hash(target.words(change.from_.knobs)) != change.from_.config_hash:
        return True
    new = target.words(change.to.knobs)
    if target.live == new or change.state is ChangeState.ROLLING_BACK:
        return False
    if change.state in (ChangeState.PROPOSED, ChangeState.PROVISIONING):
        # The old value there is either one that we have not replaced yet, or one that was put back.
        return marker is not None and marker.written == digest_of(new)
    return True


def _locked(
    target: Target, service: VLLMService, *, autoscalers: Sequence[str]
) -> tuple[Mapping[Knob, str], Refusal | None]:
    """Which knobs may not be written and why, and whether that conflicts with the service's spec."""
    live, tuning = target.deployment, service.spec.tuning
    owners = declarers(live, path=template_list(target.container_name, target.line.field))
    if (live["metadata"].get("annotations") or {}).get(CONSENT) == CONSENT_GIVEN:
        # Not from another operator, whatever its user consents to: it writes the whole Deployment again.
        owners = maker(live)
    locked: dict[Knob, str] = {}
    common = rollout_obstacle(live)
    if owners:
        common = f"the engine flags are declared by {', '.join(owners)} (see condition OwnershipConflict)"
    for knob in Knob:
        why = common or target.obstacle(knob)
        if knob is Knob.REPLICAS:
            why = f"the replicas are set by {', '.join(dict.fromkeys(autoscalers))}" if autoscalers else ""
        elif knob is Knob.TENSOR_PARALLEL_SIZE and not why:
            why = "it changes the GPUs per pod, and the operator does not write the resources of an adopted Deployment"
        if why:
            locked[knob] = why
    conflict = None
    if owners and tuning.mode in (Mode.APPROVE, Mode.AUTOMATIC):
        conflict = Refusal(Reason.FLAGS_DECLARED_ELSEWHERE, flags_elsewhere(target, owners))
    elif autoscalers and service.spec.scaling is not None:
        message = replicas_elsewhere(dict.fromkeys(autoscalers))
        conflict = Refusal(Reason.REPLICAS_CONTROLLED_ELSEWHERE, message)
    return locked, conflict


def _as_if_rendered(spec: VLLMServiceSpec, target: Target, *, live: DeploymentView, scaled: bool) -> VLLMServiceSpec:
    """The spec with engine, model, device and replicas taken from the owner's Deployment."""
    flags, scaling = target.flags, spec.scaling if scaled else None
    name = flags.model or flags.served_model_name
    engine = Engine.model_construct(
        image=str(target.container.get("image", "")), args=target.other_arguments, **target.knobs.model_dump()
    )
    strategy = spec.tuning.strategy.updated(type=StrategyType.IN_PLACE)
    return spec.updated(
        model=None if name is None else Model.model_construct(name=name, served_name=flags.served_model_name),
        engine=engine,
        accelerator=spec.accelerator or _accelerator(target),
        scaling=scaling,
        # More than a spec may ask for is never what the status says: such a Deployment is observed, and not changed.
        replicas=min(live.replicas, MOST_REPLICAS) if scaling is None else None,
        tuning=spec.tuning.updated(strategy=strategy),
    )


def _as_if_followed(service: VLLMService, *, edited: bool, replicas: int) -> VLLMServiceStatus:
    """The status without tuned values that another field manager has overwritten; scaling begins at `replicas`."""
    status, effective = service.status, service.status.effective
    if effective is None:
        return status.updated(effective=Effective(replicas=replicas))
    if edited and effective.source is Source.TUNED:
        return status.updated(effective=effective.updated(source=Source.OBSERVED))
    return status


def _about(target: Target) -> str:
    name = target.deployment["metadata"]["name"]
    text = f"Deployment {name}, container {target.container_name}: engine flags are in {target.line.field}"
    if target.unreadable:
        text += f"; they cannot be parsed: {target.unreadable}"
    if target.flags.config is not None:
        text += f"; options in the file {target.flags.config} (--config) are not visible to the operator"
    return text


def _accelerator(target: Target) -> Accelerator | None:
    """The device of the owner's Deployment: the resource that a pod requests, and the product its node must have."""
    limits = (target.container.get("resources") or {}).get("limits") or {}
    selector = target.deployment["spec"]["template"]["spec"].get("nodeSelector") or {}
    name = next((str(each) for each in limits if str(each).endswith("/gpu")), None)
    product = next((str(value) for label, value in selector.items() if label.endswith("/gpu.product")), None)
    if name is None and product is None:
        return None
    return Accelerator.model_construct(resource_name=name or "nvidia.com/gpu", product=product)


def _pod(body: Body, *, target: Target, live_hash: str | None) -> PodView:
    containers = body.get("spec", {}).get("containers") or []
    container: Mapping[str, Any] = next((one for one in containers if one["name"] == target.container_name), {})
    # Not the image: a webhook may have put a mirror's in its place. How many pods are of the latest template the
    # Deployment itself counts.
    current = all((container.get(field) or []) == (target.container.get(field) or []) for field in Field)
    try:
        args = command_line(container).arguments
    except FlagError:
        args = ()
    view = pod_view(body, container=target.container_name)
    return replace(view, args=args, config_hash=live_hash if current else None)


def _ours(target: Target) -> frozenset[Field]:
    live, name = target.deployment, target.container_name
    return frozenset(field for field in Field if is_ours(live, path=template_list(name, field)))
