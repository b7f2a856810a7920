"""A container's environment and command line: values, references, the downward API, `$(VAR)`.

Apart from `container`, because it is pure: whoever calls it has read the ConfigMaps and Secrets named by `references`.
Must not: do I/O, or guess: what is missing and not optional raises Unstartable, as a kubelet would refuse.
"""

import base64
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from e2e.agent.objects import Object, Unstartable

_REFERENCE: Final = re.compile(r"\$\$|\$\(([^)]*)\)")
_SUBSCRIPT: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_SUFFIXES: Final = {
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1)},
    **{
        suffix: Decimal(1000) ** power
        for power, suffix in enumerate(("m", "", "k", "M", "G", "T", "P"), start=-1)
        if suffix
    },
}
_CONFIG_ERROR: Final = "CreateContainerConfigError"

Source = tuple[str, str]
"""What holds values: ("configmaps" or "secrets", name)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """What the downward API may say: the object, and the addresses that its status may not show yet."""

    pod: Object
    pod_ip: str
    host_ip: str

    def field(self, path: str) -> str:
        """Return the value of a `fieldRef`. Raises Unstartable for a field that Kubernetes does not offer either."""
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        if subscript := _SUBSCRIPT.fullmatch(path):
            return str((metadata.get(subscript[1]) or {}).get(subscript[2], ""))
        simple = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata["uid"],
            "metadata.labels": _pairs(metadata.get("labels") or {}),
            "metadata.annotations": _pairs(metadata.get("annotations") or {}),
            "spec.nodeName": spec.get("nodeName", ""),
            "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
            "status.podIP": self.pod_ip,
            "status.podIPs": self.pod_ip,
            "status.hostIP": self.host_ip,
            "status.hostIPs": self.host_ip,
        }
        if path not in simple:
            raise Unstartable(_CONFIG_ERROR, f"fieldPath {path} is not known")
        return str(simple[path])

    def resource(self, reference: Object, *, container: str) -> str:
        """Return the value of a `resourceFieldRef`, rounded up to whole multiples of the divisor."""
        name = reference.get("containerName", container)
        spec = next(each for each in containers_of(self.pod) if each["name"] == name)
        kind, _, resource = reference["resource"].partition(".")
        quantity = ((spec.get("resources") or {}).get(kind) or {}).get(resource, "0")
        divisor = quantity_of(reference.get("divisor") or "1") or 1
        return str(math.ceil(quantity_of(quantity) / divisor))


def quantity_of(text: str) -> Decimal:
    """Return a Kubernetes quantity such as `500m`, `2Gi` or `1e3` as a number."""
    for suffix, factor in _SUFFIXES.items():
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * factor
    return Decimal(text)


def containers_of(pod: Object) -> list[Object]:
    """Return the specs of all containers, init containers first."""
    return [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]


def references(container: Object) -> Iterator[Source]:
    """Name the ConfigMaps and Secrets that the environment is read from."""
    for entry in container.get("envFrom") or []:
        for kind, reference in (("configmaps", entry.get("configMapRef")), ("secrets", entry.get("secretRef"))):
            if reference:
                yield kind, reference["name"]
    for entry in container.get("env") or []:
        value_from = entry.get("valueFrom") or {}
        for kind, reference in (
            ("configmaps", value_from.get("configMapKeyRef")),
            ("secrets", value_from.get("secretKeyRef")),
        ):
            if reference:
                yield kind, reference["name"]


def values_of(source: Object) -> dict[str, bytes]:
    """Return all values of a ConfigMap or Secret as they would be in a file."""
    if source.get("kind") == "Secret":
        return {name: base64.b64decode(value) for name, value in (source.get("data") or {}).items()}
    plain = {name: value.encode() for name, value in (source.get("data") or {}).items()}
    return plain | {name: base64.b64decode(value) for name, value in (source.get("binaryData") or {}).items()}


def environment(
    container: Object, *, facts: PodFacts, sources: Mapping[Source, Object | None], base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment: `base`, then envFrom, then env in order. Raises Unstartable when a source is missing."""
    result = dict(base)
    for entry in container.get("envFrom") or []:
        for kind, reference in (("configmaps", entry.get("configMapRef")), ("secrets", entry.get("secretRef"))):
            if reference and (values := _values(kind, reference, sources)) is not None:
                result |= {entry.get("prefix", "") + name: value.decode() for name, value in values.items()}
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            value = _referred(entry["valueFrom"], facts=facts, sources=sources, container=container["name"])
            if value is not None:
                result[entry["name"]] = value
        else:
            result[entry["name"]] = expand(entry.get("value", ""), result)
    return result


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; an unknown name stays as it is, `$$` is a dollar sign."""

    def replacement(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replacement, text)


def expand_all(words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Expand each word of a command line."""
    return [expand(word, variables) for word in words]


def _referred(
    value_from: Object, *, facts: PodFacts, sources: Mapping[Source, Object | None], container: str
) -> str | None:
    if reference := value_from.get("fieldRef"):
        return facts.field(reference["fieldPath"])
    if reference := value_from.get("resourceFieldRef"):
        return facts.resource(reference, container=container)
    for kind, name in (("configmaps", "configMapKeyRef"), ("secrets", "secretKeyRef")):
        if reference := value_from.get(name):
            values = _values(kind, reference, sources)
            if values is None:
                return None
            if reference["key"] in values:
                return values[reference["key"]].decode()
            if reference.get("optional"):
                return None
            raise Unstartable(_CONFIG_ERROR, f"couldn't find key {reference['key']} in {kind[:-1]} {reference['name']}")
    raise Unstartable(_CONFIG_ERROR, f"valueFrom {sorted(value_from)} is not supported by the process node")


def _values(kind: str, reference: Object, sources: Mapping[Source, Object | None]) -> dict[str, bytes] | None:
    source = sources.get((kind, reference["name"]))
    if source is not None:
        return values_of(source)
    if reference.get("optional"):
        return None
    raise Unstartable(_CONFIG_ERROR, f'{kind[:-1]} "{reference["name"]}" not found')


def _pairs(values: Mapping[str, str]) -> str:
    return "\n".join(f'{name}="{value}"' for name, value in sorted(values.items()))
