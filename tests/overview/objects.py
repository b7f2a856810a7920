"""A VLLMService with something in every place that a page shows."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

FULL: Final[dict[str, Any]] = {
    "metadata": {"namespace": "prod", "name": "chat", "uid": "u-1"},
    "spec": {
        "model": {"name": "Qwen/Qwen3-32B"},
        "engine": {"image": "registry.example/secret-image:1", "args": ["--api-key=hidden-engine-key"]},
        "accelerator": {"product": "NVIDIA-H100-80GB-HBM3"},
        "podTemplate": {
            "spec": {"containers": [{"name": "vllm", "env": [{"name": "TOKEN", "value": "hidden-token"}]}]}
        },
        "scaling": {"minReplicas": 1, "maxReplicas": 4},
        "tuning": {"mode": "Approve"},
    },
    "status": {
        "effective": {"replicas": 2, "replicasReason": "the queue grew", "maxNumSeqs": 64},
        "readyReplicas": 2,
        "diagnosis": {
            "class": "KVCacheSaturated",
            "confidence": "High",
            "since": "2026-11-20T12:00:00Z",
            "message": "The KV cache is full.",
            "evidence": [
                {
                    "name": "KV usage",
                    "value": 0.998,
                    "unit": "share",
                    "threshold": 0.95,
                    "window": "30s",
                    "note": "mean",
                }
            ],
            "contributing": [{"class": "Overloaded", "message": "more requests than it serves"}],
        },
        "recommendation": {
            "id": "r1",
            "knob": "maxNumSeqs",
            "current": "64",
            "recommended": "48",
            "limitedBy": "KV pool",
            "reason": "48 sequences fit.",
            "heldBy": "Cooldown",
            "predicted": [{"name": "TTFT", "unit": "s", "current": 2.0, "predicted": 0.4}],
        },
        "summary": {"effective": "seqs=64", "ttft": "2.4s/1s", "tpot": "20ms/25ms", "kvUsage": "99%"},
        "conditions": [{"type": "CircuitOpen", "status": "True", "reason": "r", "message": "three rollbacks"}],
        "history": [
            {
                "id": "c1",
                "knob": "maxNumSeqs",
                "fromValue": "32",
                "toValue": "64",
                "outcome": "Succeeded",
                "reason": "TTFT is lower",
                "startedAt": "2026-11-19T11:00:00Z",
                "finishedAt": "2026-11-19T11:30:00Z",
                "extraGpus": 1,
                "grounds": {"diagnosis": "ConcurrencyCapped", "evidence": [{"name": "slots", "value": 1.0}]},
            }
        ],
        "gpuSteps": [
            {"at": "2026-11-20T00:00:00Z", "cause": "Start", "gpus": 3, "reference": 3, "replicas": 3},
            {"at": "2026-11-20T10:00:00Z", "cause": "Scaling", "gpus": 2, "reference": 3, "replicas": 2},
        ],
    },
}

KEPT: Final = frozenset(
    {
        "at", "cause", "confidence", "finishedAt", "mode", "namespace", "outcome", "since", "startedAt", "status",
        "type", "uid",
    }
)  # fmt: skip
"""Fields whose values the API server checks: nothing else can stand there."""


def full(**status: Any) -> dict[str, Any]:
    """The object, with other fields of the status where given."""
    body = deepcopy(FULL)
    body["status"] |= status
    return body


def with_texts(change: Callable[[str], str]) -> dict[str, Any]:
    """The object with every free text of its status changed."""
    body = deepcopy(FULL)
    body["status"] = _changed(body["status"], change)
    return body


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: child if key in KEPT else _changed(child, change) for key, child in value.items()}
    if isinstance(value, list):
        return [_changed(child, change) for child in value]
    return change(value) if isinstance(value, str) else value
