"""The hash of a rendered pod template: two Deployments with the same hash start the same pods.

The hash is versioned. A change of the rendering that gives another template for the same spec must raise
`RENDERING_VERSION`: an operator that finds an older version on a Deployment keeps it until the spec or a tuned value
changes, so that an upgrade of the operator never rolls a fleet.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from vllm_autotuner.api.annotations import whole_number
from vllm_autotuner.workload.labels import CONFIG_HASH, HASH_VERSION, LEASE_EPOCH

RENDERING_VERSION: Final = 1
"""Version of the rendering, written as `HASH_VERSION` beside each hash."""

_NOT_HASHED: Final = frozenset({CONFIG_HASH, HASH_VERSION, LEASE_EPOCH})
"""Annotations that describe the configuration and are not part of it."""

_HEX_DIGITS: Final = 16
"""64 bits: no accident among the configurations of one service, and short enough to read aloud."""


def config_hash(deployment: Mapping[str, Any]) -> str:
    """Return the hash of a *rendered* Deployment's pod template.

    The API server adds defaults to a live one: compare the recorded annotation instead (`recorded_hash`).
    """
    return template_hash(deployment["spec"]["template"])


def template_hash(template: Mapping[str, Any]) -> str:
    """Return the hash of a rendered pod template."""
    metadata = template.get("metadata", {})
    kept = {name: value for name, value in metadata.get("annotations", {}).items() if name not in _NOT_HASHED}
    return _hash({**template, "metadata": {**metadata, "annotations": kept}})


def metadata_hash(metadata: Mapping[str, Any]) -> str:
    """Return the hash of a user's labels and annotations of Deployment and Service."""
    return _hash(metadata)


def recorded_hash(deployment: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the hash and version annotated on a Deployment (or pod); None when missing or malformed."""
    annotations = deployment.get("metadata", {}).get("annotations") or {}
    recorded, version = annotations.get(CONFIG_HASH), whole_number(annotations.get(HASH_VERSION))
    return (recorded, version) if recorded and version is not None else None


def _hash(value: Mapping[str, Any]) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_HEX_DIGITS]
