"""A healthy service with every part, but for what a test changes (dotted paths, as in the table of cases)."""

from typing import Any

from tests.api.cases import changed

from vllm_autotuner.api.service import VLLMService, parse_service

COMPLETE: dict[str, Any] = {
    "model": {"name": "Qwen/Qwen3-32B", "servedName": "qwen3-32b", "revision": "main"},
    "engine": {
        "image": "vllm/vllm-openai:v0.32.0",
        "args": ["--enable-prefix-caching"],
        "maxNumSeqs": 128,
        "maxModelLen": 16384,
        "kvCacheDtype": "auto",
        "tensorParallelSize": 2,
    },
    "accelerator": {"resourceName": "nvidia.com/gpu"},
    "replicas": 2,
}


def service(
    changes: dict[str, Any] | None = None,
    *,
    metadata: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
) -> VLLMService:
    raw = {
        "metadata": {"name": "chat", "namespace": "prod", "uid": "u-1", "generation": 1, **(metadata or {})},
        "spec": changed(COMPLETE, changes or {}),
        "status": status or {},
    }
    parsed = parse_service(raw)
    assert isinstance(parsed, VLLMService), parsed
    return parsed
