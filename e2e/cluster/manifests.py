"""What is applied to the cluster: a Prometheus, three services, and load on them.

Apart from the acts, because these are the files that a user would write. All pods meet the Pod Security Standard
`restricted`.
Must not: name an address; those are known only when the cluster has given them.
"""

from typing import Any, Final

import yaml

PROMETHEUS: Final = "prometheus"
PROMETHEUS_PORT: Final = 9090
ENGINE_PORT: Final = 8000
MODEL: Final = "example/tiny"
MADE_BY: Final = "vllm-autotuner-e2e"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
NAME: Final = "app.kubernetes.io/name"

REPLICAS: Final = 3
"""Of the services that are changed by canary: one slow canary is then a fifth of the service."""
MAX_NUM_SEQS: Final = 4
"""max-num-seqs before the change."""
CROWD: Final = 10
"""Clients of each replica: more than twice as many as it serves at once, also where kube-proxy is uneven by chance."""
RAMP: Final = (4, 4, 6, 6)
"""Clients of `search` that come step by step: a knee is only visible beside smaller batches."""
BRIEF: Final = {"warmUp": "8s", "analysis": "60s", "bake": "12s", "provisioningDeadline": "3m"}
"""Phases of seconds instead of minutes. Prometheus discovers a new pod within 5 s, which is part of the warm-up."""

RESTRICTED_POD: Final = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_CONTAINER: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def namespace(name: str, *, made_crd: bool, annotation: str) -> dict[str, Any]:
    """The namespace of the run. It remembers whether the CRD is of this run, for a later run that cleans up."""
    metadata = {
        "name": name,
        # Enforced, so that what holds here holds in a cluster of the strictest standard.
        "labels": {MANAGED_BY: MADE_BY, "pod-security.kubernetes.io/enforce": "restricted"},
        "annotations": {annotation: str(made_crd).lower()},
    }
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def prometheus(namespace: str, image: str) -> tuple[dict[str, Any], ...]:
    """A Prometheus that finds annotated pods of the namespace, with the rights for that and no others."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": PROMETHEUS}
    subject = {"kind": "ServiceAccount", "name": PROMETHEUS, "namespace": namespace}
    config = yaml.safe_dump(scrape_config(namespace), sort_keys=False)
    container = {
        "name": PROMETHEUS,
        "image": image,
        "args": [
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            f"--web.listen-address=:{PROMETHEUS_PORT}",
        ],
        "ports": [{"name": "http", "containerPort": PROMETHEUS_PORT}],
        "readinessProbe": {
            "httpGet": {"path": "/-/ready", "port": "http"},
            "periodSeconds": 2,
            "timeoutSeconds": 10,
        },
        "securityContext": RESTRICTED_CONTAINER,
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/prometheus"},
            {"name": "data", "mountPath": "/prometheus"},
        ],
    }
    pod = {
        "serviceAccountName": PROMETHEUS,
        # The user `nobody` of the image, who may then write into the empty volume.
        "securityContext": RESTRICTED_POD | {"runAsUser": 65534, "fsGroup": 65534},
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": PROMETHEUS}}, {"name": "data", "emptyDir": {}}],
    }
    return (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": PROMETHEUS}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": PROMETHEUS},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": PROMETHEUS},
            "roleRef": role,
            "subjects": [subject],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": PROMETHEUS},
            "data": {"prometheus.yml": config},
        },
        _deployment(PROMETHEUS, pod),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": PROMETHEUS},
            "spec": {
                "selector": {NAME: PROMETHEUS},
                "ports": [{"name": "http", "port": PROMETHEUS_PORT, "targetPort": "http"}],
            },
        },
    )


def scrape_config(namespace: str) -> dict[str, Any]:
    """Scrape the annotated port of pods annotated `prometheus.io/scrape: "true"`; keep `namespace` and `pod`."""

    def meta(name: str) -> list[str]:
        return [f"__meta_kubernetes_{name}"]

    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "900ms"},
        "scrape_configs": [
            {
                "job_name": "pods",
                "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [namespace]}}],
                "relabel_configs": [
                    {
                        "source_labels": meta("pod_annotation_prometheus_io_scrape"),
                        "regex": "true",
                        "action": "keep",
                    },
                    # Of the declared ports the one of the annotation: its address is right for IPv6, too.
                    {
                        "source_labels": meta("pod_annotation_prometheus_io_port"),
                        "target_label": "__meta_kubernetes_pod_container_port_number",
                        "action": "keepequal",
                    },
                    {"source_labels": meta("pod_phase"), "regex": "Pending|Succeeded|Failed", "action": "drop"},
                    {"source_labels": meta("namespace"), "target_label": "namespace"},
                    {"source_labels": meta("pod_name"), "target_label": "pod"},
                ],
            }
        ],
    }


def chat(image: str, *, mode: str) -> dict[str, Any]:
    """More requests than running-sequence slots, which more slots cure: ConcurrencyCapped."""
    return _service("chat", image, {"replicas": REPLICAS, "tuning": _tuning(mode)})


def batch(image: str) -> dict[str, Any]:
    """The same to look at, but this engine gets six times slower with more slots: the change must not be kept."""
    return _service(
        "batch",
        image,
        {"replicas": REPLICAS, "tuning": _tuning("Automatic")},
        degrade_above_seqs=MAX_NUM_SEQS,
        degrade_factor=6,
    )


def search(image: str) -> dict[str, Any]:
    """One replica, where each further sequence slows down every token and adds no throughput: past the TPOT knee."""
    spec = {
        "replicas": 1,
        "engine": {"image": image, "maxNumSeqs": 32},
        "objectives": {"profile": "Throughput", "ttft": {"target": "10s"}, "tpot": {"target": "50ms"}},
        "tuning": _tuning("Automatic") | {"maxNumSeqs": {"min": 4, "max": 64}},
    }
    return _service("search", image, spec, step_base_ms=2, step_per_seq_ms=2.7)


def api(image: str) -> dict[str, Any]:
    """One to three replicas, and no bounds for max-num-seqs: only the replicas may change."""
    scaling = {"minReplicas": 1, "maxReplicas": 3, "scaleOut": {"waitingFor": "30s"}}
    objectives = {"profile": "Bursty", "ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
    spec = {"scaling": scaling, "objectives": objectives, "tuning": {"mode": "Automatic", "strategy": BRIEF}}
    return _service("api", image, spec)


def _tuning(mode: str) -> dict[str, Any]:
    return {"mode": mode, "maxNumSeqs": {"min": 2, "max": 32}, "strategy": BRIEF, "cooldown": "10m"}


def _service(name: str, image: str, spec: dict[str, Any], **settings: float) -> dict[str, Any]:
    """A VLLMService whose pod template sets the stand-in's own variables; the real engine would ignore them."""
    paces = {"step_base_ms": 15, "step_per_seq_ms": 0.5, "startup_seconds": 1} | settings
    container = {
        "name": "vllm",
        "env": [{"name": f"SIM_{key.upper()}", "value": str(value)} for key, value in paces.items()],
        "securityContext": RESTRICTED_CONTAINER,
    }
    template = {
        "securityContext": RESTRICTED_POD,
        "containers": [container],
        "terminationGracePeriodSeconds": 10,
    }
    return {
        "apiVersion": "vllm-autotuner.dev/v1alpha1",
        "kind": "VLLMService",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": MODEL},
            "engine": {"image": image, "maxNumSeqs": MAX_NUM_SEQS},
            "objectives": {"profile": "Latency", "ttft": {"target": "1s"}, "tpot": {"target": "50ms"}},
            "podTemplate": {"spec": template},
            # So that an act can begin anew on what a former run left.
            "deletionPolicy": "Delete",
            **spec,
        },
    }


def load(name: str, image: str, *, url: str, clients: int) -> dict[str, Any]:
    """Clients of a service, each with one request under way and a connection for each request."""
    container = {
        "name": "load",
        "image": image,
        "command": ["python", "-m", "vllm_autotuner.simulation.load"],
        "args": [url, "--model", MODEL, "--clients", str(clients)],
        "securityContext": RESTRICTED_CONTAINER,
    }
    pod = {"securityContext": RESTRICTED_POD, "containers": [container], "terminationGracePeriodSeconds": 5}
    return _deployment(name, pod)


def load_name(service: str) -> str:
    """Name of the Deployment with the load on a service."""
    return f"load-{service}"


def _deployment(name: str, pod: dict[str, Any]) -> dict[str, Any]:
    labels = {NAME: name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
