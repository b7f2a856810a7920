"""From a VLLMService and one setting of its knobs to the complete bodies that are applied to the cluster.

The bodies are complete, because a server-side apply gives up every field that it leaves out. Which values to run (those
of the spec or tuned ones) is decided before; here nothing is chosen.
"""

from typing import Any, Final

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import API_VERSION, KIND, VLLMService
from vllm_autotuner.api.spec import DeletionPolicy
from vllm_autotuner.change.trial_deployments import Trial
from vllm_autotuner.workload.engine_container import (
    DRAIN_SECONDS,
    HTTP_PORT,
    SHARED_MEMORY_VOLUME,
    device_resources,
    engine_container,
    ranks,
)
from vllm_autotuner.workload.hashing import RENDERING_VERSION, metadata_hash, template_hash
from vllm_autotuner.workload.labels import (
    CHANGE,
    CONFIG_HASH,
    HASH_VERSION,
    MANAGED_BY,
    METADATA_HASH,
    OPERATOR,
    SERVICE,
    SERVICE_UID,
    STABLE,
    TRACK,
)
from vllm_autotuner.workload.merge import merged

GRACE_SECONDS: Final = 60 + DRAIN_SECONDS
"""For requests in progress when a pod stops: a minute of generation after the drain. Our choice; the pod template can
raise it for longer outputs."""


class NothingToRender(ValueError):
    """The service adopts a Deployment (targetRef): the operator renders no workload for it."""


def rendered_hash(service: VLLMService, config: EngineKnobs) -> str:
    """Return the hash of the pod template that these knobs would give. Raises NothingToRender for a targetRef."""
    return template_hash(_pod_template(service, config))


def render_deployment(service: VLLMService, config: EngineKnobs, replicas: int | None) -> dict[str, Any]:
    """Return the service's Deployment with these knobs, hash included.

    `replicas` None leaves the field to another writer. Beware: giving up a field that no other manager owns resets it
    to 1, so an autoscaler must have written it first. Raises NothingToRender for a targetRef.
    """
    template = _pod_template(service, config)
    hashed = {CONFIG_HASH: template_hash(template), HASH_VERSION: str(RENDERING_VERSION)}
    template["metadata"]["annotations"] |= hashed
    spec: dict[str, Any] = {
        "selector": {"matchLabels": {SERVICE: service.metadata.name, TRACK: STABLE}},
        # The new pod first, then the old one stops: capacity never falls below the desired replicas.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "progressDeadlineSeconds": max(1, int(service.spec.tuning.strategy.provisioning_deadline.total_seconds())),
        "template": template,
    }
    if replicas is not None:
        spec = {"replicas": replicas, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata(service, hashed), "spec": spec}


def render_trial(service: VLLMService, trial: Trial) -> dict[str, Any]:
    """Return the Deployment of one pod that exists for a change. Raises NothingToRender for a targetRef.

    Its pod is what the service's own Deployment would start with the same knobs, under the same hash, but for two
    labels. The Service selects it like any other. It is always owned: whatever happens to the VLLMService, a trial
    goes with it.
    """
    deployment = render_deployment(service, trial.knobs, 1)
    labels = {TRACK: trial.track.value, CHANGE: trial.change_id}
    template = deployment["spec"]["template"]
    template["metadata"]["labels"] |= labels
    deployment["spec"]["selector"] = {"matchLabels": {SERVICE: service.metadata.name, **labels}}
    metadata = deployment["metadata"] | {"name": trial.name, "ownerReferences": [_owner(service)]}
    metadata["labels"] = metadata["labels"] | labels
    return deployment | {"metadata": metadata}


def render_service(service: VLLMService) -> dict[str, Any]:
    """Return the Service in front of every pod of this VLLMService. Raises NothingToRender for a targetRef."""
    engine = service.spec.engine
    if engine is None:
        raise NothingToRender(f"{service.key} names a Deployment of its own")
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(service, {}),
        "spec": {
            "type": "ClusterIP",
            "selector": {SERVICE: service.metadata.name},
            "ports": [{"name": "http", "port": engine.port or HTTP_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def pod_selector(service_name: str) -> str:
    """Return the selector of the pods that `spec.replicas` counts, for `status.selector`: those of a trial are not."""
    return f"{SERVICE}={service_name},{TRACK}={STABLE}"


def _pod_template(service: VLLMService, config: EngineKnobs) -> dict[str, Any]:
    """Render the pod template: the operator's, overlaid with the user's, and then the fields no overlay may change."""
    model, engine = service.spec.model, service.spec.engine
    if model is None or engine is None:
        raise NothingToRender(f"{service.key} names a Deployment of its own")
    accelerator = service.spec.accelerator
    container = engine_container(model=model, engine=engine, knobs=config, accelerator=accelerator)
    spec: dict[str, Any] = {
        "containers": [container],
        # A Service called `vllm` would otherwise set VLLM_PORT to an address, which vLLM reads as its own setting.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
    }
    if ranks(config) > 1:
        spec["volumes"] = [SHARED_MEMORY_VOLUME]
    annotations = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(engine.port or HTTP_PORT),
        "prometheus.io/path": "/metrics",
    }
    base: dict[str, Any] = {"metadata": {"labels": {}, "annotations": annotations}, "spec": spec}
    overlay = service.spec.pod_template.overlay() if service.spec.pod_template is not None else {}
    template = merged(base, overlay)
    ours = {"metadata": {"labels": {**_labels(service), TRACK: STABLE}, "annotations": {}}}
    fixed: dict[str, Any] = {
        name: container[name] for name in ("name", "image", "command", "args") if name in container
    }
    if devices := device_resources(knobs=config, accelerator=accelerator):
        fixed["resources"] = devices
    return merged(template, {**ours, "spec": {"containers": [fixed]}})


def _metadata(service: VLLMService, annotations: dict[str, str]) -> dict[str, Any]:
    given = to_wire(service.spec.workload_metadata) if service.spec.workload_metadata is not None else {}
    hashed = {METADATA_HASH: metadata_hash(given)} if given else {}
    metadata: dict[str, Any] = {
        "name": service.metadata.name,
        "namespace": service.metadata.namespace,
        "labels": {**given.get("labels", {}), **_labels(service)},
        "annotations": {**given.get("annotations", {}), **hashed, SERVICE_UID: service.metadata.uid, **annotations},
    }
    if service.spec.deletion_policy is DeletionPolicy.DELETE:
        metadata["ownerReferences"] = [_owner(service)]
    return metadata


def _owner(service: VLLMService) -> dict[str, Any]:
    """Return the reference by which garbage collection finds a child.

    With deletionPolicy Retain there is none: it is the only way to survive the owner without a finalizer, and a
    finalizer would keep objects from being deleted while the operator is away. Label and uid name the owner instead.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": service.metadata.name,
        "uid": service.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _labels(service: VLLMService) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "vllm",
        "app.kubernetes.io/instance": service.metadata.name,
        MANAGED_BY: OPERATOR,
        SERVICE: service.metadata.name,
    }
