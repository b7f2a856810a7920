"""Refuses what the API server would refuse: every write of a VLLMService is held against the generated CRD.

Only the schema (types, sizes, enums, patterns, required fields, keys of list maps); CEL rules are put to the real API
server (`e2e/test_api_admission.py`). Unknown fields are pruned there and so are no refusal.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import fastjsonschema

from vllm_autotuner.api.crd import crd
from vllm_autotuner.cluster.errors import Refused

__all__ = ["require_valid", "violation"]

UNPROCESSABLE = 422


def require_valid(part: str, value: Mapping[str, Any], *, stored: Mapping[str, Any] | None = None) -> None:
    """Raise Refused as the API server would. `part`: spec or status.

    `stored`: what is there already. What was invalid before may stay as it is (CRD ratcheting, Kubernetes 1.33).
    """
    found = violation(part, value)
    if found and (stored is None or found != violation(part, stored)):
        raise Refused(f"VLLMService is invalid: {found}", reason="Invalid", status=UNPROCESSABLE)


def violation(part: str, value: Mapping[str, Any]) -> str:
    """Say where a spec or status breaks the schema of the CRD; empty where it does not."""
    schema, validate = _of(part)
    try:
        validate(value)
    except fastjsonschema.JsonSchemaValueException as error:
        return str(error.message)
    return "; ".join(_repeated_keys(schema, value, part))


@cache
def _of(part: str) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    (version,) = crd()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"][part]
    return schema, fastjsonschema.compile(schema, use_default=False)


def _repeated_keys(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[str]:
    """Entries of a list map with the same key."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            if name in schema.get("properties", {}):
                yield from _repeated_keys(schema["properties"][name], child, f"{path}.{name}")
    elif isinstance(value, list):
        if keys := schema.get("x-kubernetes-list-map-keys"):
            found = [tuple(each.get(key) for key in keys) for each in value]
            if len(set(found)) < len(found):
                yield f"{path}: duplicate {', '.join(keys)}"
        for index, child in enumerate(value):
            yield from _repeated_keys(schema.get("items", {}), child, f"{path}[{index}]")
