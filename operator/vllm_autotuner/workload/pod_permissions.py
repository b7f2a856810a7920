"""What a pod template may ask for: nothing that reaches beyond its own pod, unless the installation allows it.

The operator creates the pods with its own rights. Without this, a right to create VLLMServices would be a right to
privileged pods, to the files and network of a node, and to every ServiceAccount of the namespace.
Apart from `rendering`, which merges what was let through. Must not: replace an admission policy. Pod Security Admission
and quotas still hold for the pods; Secrets and volumes of the namespace can be mounted, as with any Deployment.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

__all__ = ["SERVICE_ACCOUNT", "PodPermission", "parse_permissions", "refused_fields"]

SERVICE_ACCOUNT: Final = "ServiceAccount:"
"""Prefix of a permission to use a ServiceAccount by name, `ServiceAccount:*` for all."""
DEFAULT_ACCOUNT: Final = "default"
LONGEST_SHOWN: Final = 100
"""Characters: longer than the names that Kubernetes allows, of 63, and a prefix."""


class PodPermission(StrEnum):
    """What an installation can allow. The values are written in flags and the chart's values."""

    HOST_NETWORK = "HostNetwork"
    HOST_PID = "HostPID"
    HOST_IPC = "HostIPC"
    HOST_PATH = "HostPath"
    HOST_PORT = "HostPort"
    PRIVILEGED = "Privileged"
    CAPABILITIES = "Capabilities"
    """Linux capabilities beyond the default ones."""


_OF_THE_POD: Final[Mapping[str, PodPermission]] = {
    "hostNetwork": PodPermission.HOST_NETWORK,
    "hostPID": PodPermission.HOST_PID,
    "hostIPC": PodPermission.HOST_IPC,
}
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")


def parse_permissions(texts: Iterable[str]) -> frozenset[str]:
    """Read what an administrator wrote. Raises ValueError for what is no permission."""
    found = frozenset(text.strip() for text in texts)
    for each in found:
        named = each.removeprefix(SERVICE_ACCOUNT)
        if each not in set(PodPermission) and (named == each or not named):
            known = ", ".join([*PodPermission, f"{SERVICE_ACCOUNT}NAME"])
            raise ValueError(f"{each!r} is not a pod permission: write one of {known}")
    return found


def refused_fields(template: Mapping[str, Any], *, allowed: frozenset[str]) -> str:
    """Say which fields of a pod template the installation does not allow, and how to allow them; empty when none."""
    wanted = dict(_wanted(_mapping(template.get("spec"))))
    every_account = f"{SERVICE_ACCOUNT}*" in allowed
    refused = {
        permission: path
        for permission, path in wanted.items()
        if permission not in allowed and not (every_account and permission.startswith(SERVICE_ACCOUNT))
    }
    if not refused:
        return ""
    fields, names = ", ".join(refused.values()), ", ".join(map(_shown, refused))
    return f"this installation does not allow {fields} (--allow-in-pods {names}; chart value podPermissions)"


def _wanted(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each permission that a pod spec needs, with the path of the field that needs it."""
    for field, permission in _OF_THE_POD.items():
        if spec.get(field):
            yield permission, f"podTemplate.spec.{field}"
    for field in ("serviceAccountName", "serviceAccount"):
        if spec.get(field) not in (None, "", DEFAULT_ACCOUNT):
            yield f"{SERVICE_ACCOUNT}{spec[field]}", f"podTemplate.spec.{field}"
    for volume in _mappings(spec.get("volumes")):
        if volume.get("hostPath") is not None:
            yield PodPermission.HOST_PATH, f"hostPath of volume {_shown(volume.get('name'))}"
    for kind in _CONTAINERS:
        for container in _mappings(spec.get(kind)):
            name, security = _shown(container.get("name")), _mapping(container.get("securityContext"))
            if security.get("privileged"):
                yield PodPermission.PRIVILEGED, f"privileged of container {name}"
            if _mapping(security.get("capabilities")).get("add"):
                yield PodPermission.CAPABILITIES, f"capabilities of container {name}"
            if any(port.get("hostPort") for port in _mappings(container.get("ports"))):
                yield PodPermission.HOST_PORT, f"hostPort of container {name}"


def _shown(name: object) -> str:
    """A name for a message, cut: nothing has checked its length, nor that it is one."""
    return str(name)[:LONGEST_SHOWN]


def _mapping(value: object) -> Mapping[str, Any]:
    # Fields pass through as they were written: one of a wrong type is for the API server to refuse.
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list | tuple) else []
