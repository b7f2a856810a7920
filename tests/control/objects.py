"""Objects as the API server gives them: healthy, and different only in what a test names."""

from typing import Any

from vllm_autotuner.workload.labels import CONFIG_HASH, HASH_VERSION, MANAGED_BY, OPERATOR, SERVICE


def metadata(name: str, *, uid: str, version: str, namespace: str = "prod", **rest: Any) -> dict[str, Any]:
    return {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": version, "generation": 1} | rest


def service_object(
    name: str = "chat", *, uid: str = "u1", version: str = "10", namespace: str = "prod", **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "vllm-autotuner.dev/v1alpha1",
        "kind": "VLLMService",
        "metadata": metadata(name, uid=uid, version=version, namespace=namespace),
        "spec": {
            "model": {"name": "example/tiny"},
            "engine": {"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 8},
            "replicas": 1,
        }
        | spec,
    }


def child_metadata(name: str, *, uid: str, version: str, service: str) -> dict[str, Any]:
    return metadata(
        name,
        uid=uid,
        version=version,
        labels={MANAGED_BY: OPERATOR, SERVICE: service, "pod-template-hash": "77b"},
        annotations={CONFIG_HASH: "abc", HASH_VERSION: "1"},
        ownerReferences=[{"kind": "VLLMService", "name": service, "uid": "u1", "controller": True}],
        creationTimestamp="2026-11-20T12:00:00Z",
    )


def deployment_object(
    name: str = "chat", *, uid: str = "d1", version: str = "20", service: str = "chat", **status: Any
) -> dict[str, Any]:
    return {
        "kind": "Deployment",
        "metadata": child_metadata(name, uid=uid, version=version, service=service),
        "spec": {"replicas": 2},
        "status": {
            "observedGeneration": 1,
            "replicas": 2,
            "readyReplicas": 2,
            "updatedReplicas": 2,
            "availableReplicas": 2,
            "conditions": [
                {"type": "Available", "status": "True"},
                {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable", "message": "m"},
            ],
        }
        | status,
    }


def pod_object(
    name: str = "chat-77b-x", *, uid: str = "p1", version: str = "30", service: str = "chat", **status: Any
) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": child_metadata(name, uid=uid, version=version, service=service),
        "spec": {
            "containers": [
                {"name": "sidecar", "args": ["--other"]},
                {"name": "vllm", "args": ["--model", "example/tiny", "--max-num-seqs", "8"]},
            ]
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T12:01:00Z"},
            ],
            "containerStatuses": [
                {"name": "sidecar", "restartCount": 9, "state": {"running": {}}},
                {
                    "name": "vllm",
                    "restartCount": 1,
                    "state": {"running": {"startedAt": "2026-11-20T12:00:30Z"}},
                    "lastState": {
                        "terminated": {
                            "exitCode": 1,
                            "reason": "Error",
                            "message": "ValueError: no KV cache",
                            "finishedAt": "2026-11-20T12:00:20Z",
                        }
                    },
                },
            ],
        }
        | status,
    }


def node_object(
    name: str = "a",
    *,
    devices: int | str = 8,
    resource: str = "nvidia.com/gpu",
    labels: dict[str, str] | None = None,
    ready: str = "True",
    **spec: Any,
) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", resource: str(devices)},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def gpu_pod(
    name: str = "chat-0", *, node: str = "a", devices: int = 1, resource: str = "nvidia.com/gpu", **spec: Any
) -> dict[str, Any]:
    """A pod that asks for devices."""
    amounts = {resource: str(devices)}
    engine = {"name": "vllm", "resources": {"requests": amounts | {"cpu": "4"}, "limits": amounts}}
    return {
        "kind": "Pod",
        "metadata": {"namespace": "prod", "name": name},
        "spec": {"nodeName": node, "containers": [engine]} | spec,
        "status": {"phase": "Running" if node else "Pending"},
    }
