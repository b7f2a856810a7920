"""Parses a VLLMService object into metadata, spec and status, or into the reason why it is invalid.

An invalid object is a value, not an exception: it is reported on that object and must not stop the other services.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from vllm_autotuner.api.errors import first_errors
from vllm_autotuner.api.model import Rule
from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import StatusUnreadable, VLLMServiceStatus, parse_status

GROUP: Final = "vllm-autotuner.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "VLLMService"
PLURAL: Final = "vllmservices"


_NAME: Final = "^[a-z]([-a-z0-9]{0,43}[a-z0-9])?$"

NAME_RULE: Final = Rule(
    cel=f"self.metadata.name.matches('{_NAME}')",
    message="metadata.name is also a Service name: use at most 45 lower-case letters, digits and '-', a letter first",
    holds=lambda name: re.fullmatch(_NAME, name) is not None,
)
"""A DNS label (RFC 1035), short enough for the suffix of a canary within 63 characters."""


class InvalidReason(StrEnum):
    """The invalid part of an object; the values are reasons of the condition Stalled."""

    SPEC = "InvalidSpec"
    """Remedy: edit the named field."""

    STATUS = "InvalidStatus"
    """The status was edited by hand. Remedy: repair or remove the named field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """The metadata that the operator uses."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    """The object is being deleted (finalizers pending): nothing may be created any more."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMService:
    """A valid object."""

    metadata: ObjectMeta
    spec: VLLMServiceSpec
    status: VLLMServiceStatus = field(default_factory=VLLMServiceStatus)
    spec_hash: str = ""
    """Hash of the spec as its user wrote it, without `replicas`: a scaler of the VLLMService raises the generation like
    an edit does."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.metadata.key


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidService:
    """An object with an invalid spec or status. No new change begins; an active change is finished or rolled back."""

    metadata: ObjectMeta
    reason: InvalidReason
    message: str
    """Field paths and what to write instead."""

    status: VLLMServiceStatus | None
    """The status if it is valid: the report must keep its conditions."""

    spec: VLLMServiceSpec = field(default_factory=VLLMServiceSpec.model_construct)
    """The valid fields of the spec; invalid ones are treated as absent, and rules between fields are not checked. Use
    it for durations and names, never for rendering."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.metadata.key


def parse_service(raw: Mapping[str, Any]) -> VLLMService | InvalidService:
    """Parse an object as returned by the API server. Raises KeyError without name and namespace."""
    metadata = _metadata(raw["metadata"])
    try:
        status = parse_status(raw.get("status"))
    except StatusUnreadable as error:
        return InvalidService(metadata=metadata, reason=InvalidReason.STATUS, message=str(error), status=None)
    if isinstance(why := raw.get("spec"), str):
        # The reader of the object has cut it out, and says why.
        return InvalidService(metadata=metadata, reason=InvalidReason.SPEC, message=f"spec: {why}", status=status)
    if not NAME_RULE.holds(metadata.name):
        return _invalid_spec(raw, metadata=metadata, message=NAME_RULE.message, status=status)
    try:
        spec = VLLMServiceSpec.model_validate(raw.get("spec") or {})
    except ValidationError as error:
        return _invalid_spec(raw, metadata=metadata, message=first_errors(error, "spec"), status=status)
    return VLLMService(metadata=metadata, spec=spec, status=status, spec_hash=_hash_without_replicas(raw))


def _hash_without_replicas(raw: Mapping[str, Any]) -> str:
    written = {name: value for name, value in (raw.get("spec") or {}).items() if name != "replicas"}
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:16]


def _invalid_spec(
    raw: Mapping[str, Any], *, metadata: ObjectMeta, message: str, status: VLLMServiceStatus
) -> InvalidService:
    spec = _readable_part(raw.get("spec") or {})
    return InvalidService(metadata=metadata, reason=InvalidReason.SPEC, message=message, status=status, spec=spec)


def _readable_part(raw: Mapping[str, Any]) -> VLLMServiceSpec:
    found: dict[str, Any] = {}
    for name, about in VLLMServiceSpec.model_fields.items():
        alias = about.alias or name
        with suppress(ValidationError):
            if alias in raw:
                found[name] = TypeAdapter(about.rebuild_annotation()).validate_python(raw[alias])
    return VLLMServiceSpec.model_construct(**found)


def _metadata(raw: Mapping[str, Any]) -> ObjectMeta:
    """Parse the metadata; fields that only a stored object has (uid, generation) are empty for one from a file."""
    return ObjectMeta(
        namespace=raw["namespace"],
        name=raw["name"],
        uid=raw.get("uid", ""),
        generation=raw.get("generation", 0),
        resource_version=raw.get("resourceVersion", ""),
        annotations=raw.get("annotations") or {},
        labels=raw.get("labels") or {},
        deleting="deletionTimestamp" in raw,
    )
