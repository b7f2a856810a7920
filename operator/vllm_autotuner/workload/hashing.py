"""The hash of a rendered pod template: two Deployments with the same hash start the same pods.

The hash is versioned. Whoever changes the rendering so that the same spec gives another template raises
`RENDERING_VERSION`: an operator that finds an older version on a Deployment leaves it alone until the spec or a tuned
value changes, so that an upgrade of the operator never rolls a fleet.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from vllm_autotuner.workload.labels import CONFIG_HASH, HASH_VERSION, LEASE_EPOCH

RENDERING_VERSION: Final = 1
"""Version of the rendering, written as `HASH_VERSION` beside each hash."""

_NOT_HASHED: Final = frozenset({CONFIG_HASH, HASH_VERSION, LEASE_EPOCH})
"""Annotations that tell about the configuration and are no part of it."""

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
    hashed = {**template, "metadata": {**metadata, "annotations": kept}}
    canonical = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_HEX_DIGITS]


def recorded_hash(deployment: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the hash and version that a Deployment (or pod) carries; None when it carries none that can be read."""
    annotations = deployment.get("metadata", {}).get("annotations") or {}
    recorded, version = annotations.get(CONFIG_HASH), str(annotations.get(HASH_VERSION, ""))
    return (recorded, int(version)) if recorded and version.isdecimal() else None
