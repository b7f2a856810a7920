"""Refuses what the API server would refuse: every write of a VLLMService is held against the generated CRD.

Types, sizes, enums, formats, required fields, keys of list maps, in the server's words. CEL rules are asked of the
models, which carry the same rules in Python with the same messages; what only the models refuse is accepted, as the
server accepts it. What stands there already and is not touched may stay (CRD ratcheting, Kubernetes 1.33).
`test_api_contract.py` and `e2e/test_api_contract.py` put the same requests to this and to the real API server.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from vllm_autotuner.api.crd import crd
from vllm_autotuner.api.model import VALIDATIONS
from vllm_autotuner.api.service import NAME_RULE
from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import VLLMServiceStatus
from vllm_autotuner.cluster.errors import Refused

__all__ = ["cel_messages", "pruned", "require_valid", "require_valid_name", "violation"]

UNPROCESSABLE: Final = 422
_MODELS: Final[Mapping[str, type[BaseModel]]] = {"spec": VLLMServiceSpec, "status": VLLMServiceStatus}
_ABSENT: Final = object()
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}
_PRESERVES: Final = "x-kubernetes-preserve-unknown-fields"


def require_valid(part: str, value: Any, *, stored: Mapping[str, Any] | None = None) -> None:
    """Raise Refused as the API server would. `part`: spec or status; `stored`: what is there already."""
    if found := violation(part, value, stored=stored):
        raise Refused(f"VLLMService is invalid: {found}", reason="Invalid", status=UNPROCESSABLE)


def require_valid_name(name: str) -> None:
    """Raise Refused for a name that the rule of the CRD does not allow."""
    if not NAME_RULE.holds(name):
        raise Refused(f"VLLMService is invalid: {NAME_RULE.message}", reason="Invalid", status=UNPROCESSABLE)


def violation(part: str, value: Any, *, stored: Any = None) -> str:
    """Say where a spec or status breaks the CRD; empty where it does not."""
    before = _ABSENT if stored is None else stored
    found = list(_violations(_schema(part), value, before, part))
    return "; ".join(found or _broken_rules(part, value, before))


def pruned(part: str, value: Any) -> Any:
    """The value without fields that the CRD does not know."""
    return _pruned(_schema(part), value)


@cache
def cel_messages(part: str) -> frozenset[str]:
    """The messages of every CEL rule below spec or status."""
    return frozenset(_messages(_schema(part)))


@cache
def _schema(part: str) -> dict[str, Any]:
    (version,) = crd()["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"][part]
    return found


def _violations(schema: Mapping[str, Any], value: Any, stored: Any, path: str) -> Iterator[str]:
    if _same(value, stored):
        return
    kind, is_of_type = schema["type"], isinstance(value, _TYPES[schema["type"]])
    if not is_of_type or (kind in ("integer", "number") and isinstance(value, bool)):
        yield f'{path}: Invalid value: in body must be of type {kind}: "{_kind_of(value)}"'
    elif "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(f'"{each}"' for each in schema["enum"])
        yield f"{path}: Unsupported value: {value!r}: supported values: {supported}"
    elif kind == "string":
        yield from _of_text(schema, value, path)
    elif kind in ("integer", "number"):
        yield from _of_number(schema, value, path)
    elif kind == "array":
        yield from _of_list(schema, value, stored, path)
    elif kind == "object":
        yield from _of_object(schema, value, stored, path)


def _of_text(schema: Mapping[str, Any], value: str, path: str) -> Iterator[str]:
    if len(value) > schema.get("maxLength", len(value)):
        yield f"{path}: Too long: may not be more than {schema['maxLength']} bytes"
    if len(value) < schema.get("minLength", 0):
        yield f"{path}: Invalid value: should be at least {schema['minLength']} chars long"
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        yield f"{path}: Invalid value: should match '{schema['pattern']}'"
    if schema.get("format") == "date-time" and not _is_time(value):
        yield f"{path}: Invalid value: must be of type date-time"


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None and "T" in text.upper()
    except ValueError:
        return False


def _of_number(schema: Mapping[str, Any], value: float, path: str) -> Iterator[str]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and (value < low or (value == low and schema.get("exclusiveMinimum"))):
        yield f"{path}: Invalid value: should be greater than or equal to {low}"
    if high is not None and (value > high or (value == high and schema.get("exclusiveMaximum"))):
        yield f"{path}: Invalid value: should be less than or equal to {high}"


def _of_list(schema: Mapping[str, Any], value: list[Any], stored: Any, path: str) -> Iterator[str]:
    if len(value) > schema.get("maxItems", len(value)):
        yield f"{path}: Too many: {len(value)}: must have at most {schema['maxItems']} items"
    if len(value) < schema.get("minItems", 0):
        yield f"{path}: Invalid value: should have at least {schema['minItems']} items"
    keys = schema.get("x-kubernetes-list-map-keys")
    known: dict[tuple[Any, ...], Any] = {}
    if keys:
        found = [_key(each, keys) for each in value]
        yield from (
            f"{path}: Duplicate value: {each}" for each in sorted({str(e) for e in found if found.count(e) > 1})
        )
        known = {_key(each, keys): each for each in stored} if isinstance(stored, list) else {}
    for index, child in enumerate(value):
        # Entries of an atomic list have no identity: one that changes is validated with all that stand beside it.
        before = known.get(_key(child, keys), _ABSENT) if keys else _ABSENT
        yield from _violations(schema["items"], child, before, f"{path}[{index}]")


def _key(entry: Any, keys: list[str]) -> tuple[Any, ...]:
    return tuple(str(entry.get(key)) for key in keys) if isinstance(entry, dict) else ()


def _of_object(schema: Mapping[str, Any], value: dict[str, Any], stored: Any, path: str) -> Iterator[str]:
    if len(value) > schema.get("maxProperties", len(value)):
        yield f"{path}: Too many: {len(value)}: must have at most {schema['maxProperties']} items"
    yield from (f"{path}.{name}: Required value" for name in schema.get("required", ()) if name not in value)
    before = stored if isinstance(stored, dict) else {}
    for name, child in value.items():
        below = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
        if isinstance(below, dict):
            yield from _violations(below, child, before.get(name, _ABSENT), f"{path}.{name}")


def _broken_rules(part: str, value: Any, stored: Any) -> list[str]:
    try:
        _MODELS[part].model_validate(value)
    except ValidationError as error:
        return [
            message
            for each in error.errors()
            for message in cel_messages(part)
            if message in each["msg"] and not _same(_at(value, each["loc"]), _at(stored, each["loc"]))
        ]
    return []


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return value


def _same(one: Any, other: Any) -> bool:
    return other is not _ABSENT and type(one) is type(other) and bool(one == other)


def _kind_of(value: Any) -> str:
    return next((name for name, types in _TYPES.items() if type(value) in (types, float, int)), "null")


def _messages(schema: Mapping[str, Any]) -> Iterator[str]:
    yield from (rule["message"] for rule in schema.get(VALIDATIONS, ()))
    below = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for each in below:
        if isinstance(each, dict):
            yield from _messages(each)


def _pruned(schema: Mapping[str, Any], value: Any) -> Any:
    if isinstance(value, dict):
        named, more = schema.get("properties", {}), schema.get("additionalProperties")
        return {
            name: _pruned(named.get(name) or (more if isinstance(more, dict) else {_PRESERVES: True}), child)
            for name, child in value.items()
            if name in named or isinstance(more, dict) or schema.get(_PRESERVES)
        }
    if isinstance(value, list):
        return [_pruned(schema.get("items", {_PRESERVES: True}), each) for each in value]
    return value
