"""Generates the CustomResourceDefinition from the models; `crds/vllmservices.yaml` is its checked-in copy.

pydantic writes JSON Schema 2020-12, Kubernetes needs a structural schema of OpenAPI 3.0: this file translates one into
the other and checks the result. Defaults stay in Python unless marked as published, because the API server would freeze
them into every stored object.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml
from typing_extensions import override

from vllm_autotuner.api.model import PUBLISHED_DEFAULT, VALIDATIONS
from vllm_autotuner.api.service import GROUP, KIND, NAME_RULE, PLURAL, VERSION
from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import VLLMServiceStatus

_Schema = dict[str, Any]

_KEPT: Final = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
    VALIDATIONS,
    "required",
)
"""Keywords that mean the same in both dialects, in the order in which the file shows them.

`title`, unpublished `default` and `additionalProperties: false` are left out.
"""

_TRANSLATED: Final = frozenset(
    {"$defs", "$ref", "additionalProperties", "anyOf", "const", "default", "items", "properties", "title"}
)

_COLUMNS: Final[tuple[tuple[str, str, str, int], ...]] = (
    ("Mode", "string", ".spec.tuning.mode", 0),
    ("Diagnosis", "string", ".status.diagnosis.class", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
    ("Replicas", "integer", ".status.replicas", 0),
    ("Effective", "string", ".status.summary.effective", 0),
    ("Change", "string", ".status.summary.change", 0),
    ("TTFT", "string", ".status.summary.ttft", 1),
    ("TPOT", "string", ".status.summary.tpot", 1),
    ("KV", "string", ".status.summary.kvUsage", 1),
    ("Measured", "date", ".status.measured.at", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)
"""Columns of `kubectl get`: name, type, path, priority (1 is shown by `-o wide` only)."""


class _Plain(yaml.SafeDumper):
    """A YAML dumper without anchors: repeated values are written out."""

    @override
    def ignore_aliases(self, data: Any) -> bool:
        return True


class NotStructural(Exception):
    """A model cannot be expressed as a structural schema; the message names the place."""


def crd() -> _Schema:
    """Return the CustomResourceDefinition. Raises NotStructural when a model cannot be expressed."""
    schema: _Schema = {
        "type": "object",
        "description": "A model served by vLLM: its workload, objectives, and the limits of its tuning.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _structural(VLLMServiceSpec.model_json_schema(by_alias=True)),
            "status": _structural(VLLMServiceStatus.model_json_schema(by_alias=True)),
        },
        VALIDATIONS: [{"rule": NAME_RULE.cel, "message": NAME_RULE.message}],
    }
    if violations := list(structural_violations(schema, "")):
        raise NotStructural("; ".join(violations))
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["vllm"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}
                        for name, kind, path, priority in _COLUMNS
                    ],
                }
            ],
        },
    }


def crd_yaml() -> str:
    """Return the CustomResourceDefinition as the text of `crds/vllmservices.yaml`."""
    text = yaml.dump(crd(), Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)
    return f"# Generated from the models by `vllm-autotuner crd`.\n{text}"


def _structural(schema: _Schema) -> _Schema:
    """Translate a whole JSON schema."""
    return _node(schema, schema.get("$defs", {}), "")


def _node(node: _Schema, definitions: Mapping[str, _Schema], path: str) -> _Schema:
    """Translate one node. Raises NotStructural for a keyword without a translation."""
    node = _merged(node, definitions, path)
    if unknown := node.keys() - set(_KEPT) - _TRANSLATED - {PUBLISHED_DEFAULT}:
        raise NotStructural(f"{path or '.'}: no translation for {sorted(unknown)}")
    result: _Schema = {key: node[key] for key in _KEPT if key in node}
    if PUBLISHED_DEFAULT in node:
        result["default"] = node[PUBLISHED_DEFAULT]
    if "const" in node:
        result["enum"] = [node["const"]]
    for bound in ("Minimum", "Maximum"):
        # 2020-12 has the number here, OpenAPI 3.0 a flag beside the inclusive keyword.
        if f"exclusive{bound}" in node:
            result |= {bound.lower(): node[f"exclusive{bound}"], f"exclusive{bound}": True}
    if "items" in node:
        result["items"] = _node(node["items"], definitions, f"{path}[]")
    if "properties" in node:
        result["properties"] = {
            name: _node(child, definitions, f"{path}.{name}") for name, child in node["properties"].items()
        }
    if isinstance(extra := node.get("additionalProperties"), dict) and "properties" not in node:
        result["additionalProperties"] = _node(extra, definitions, f"{path}.*")
    return result


def _merged(node: _Schema, definitions: Mapping[str, _Schema], path: str) -> _Schema:
    """Resolve references and `X | None`; keywords beside a reference take precedence."""
    while "$ref" in node or "anyOf" in node:
        beside = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
        if "$ref" in node:
            node = {**definitions[node["$ref"].removeprefix("#/$defs/")], **beside}
            continue
        choices = [choice for choice in node["anyOf"] if choice != {"type": "null"}]
        if len(choices) != 1:
            raise NotStructural(f"{path}: a choice between types; use optional fields and a rule")
        node = {**choices[0], **beside}
    return node


def structural_violations(node: _Schema, path: str) -> Iterator[str]:
    """Yield the reasons why the API server would not accept this schema; nothing if it would."""
    place = path or "."
    if "type" not in node:
        yield f"{place}: no type"
    if {"$ref", "anyOf", "oneOf", "allOf", "not", "title", "const", "uniqueItems"} & node.keys():
        yield f"{place}: a keyword outside the structural subset"
    if "properties" in node and "additionalProperties" in node:
        yield f"{place}: properties beside additionalProperties"
    if node.get("type") == "array" and "items" not in node:
        yield f"{place}: an array without items"
    if (
        node.get("type") == "object"
        and not {"properties", "additionalProperties"} & node.keys()
        and path not in (".metadata",)
    ):
        yield f"{place}: an object that would lose every field"
    if missing := set(node.get("required", ())) - node.get("properties", {}).keys():
        yield f"{place}: requires unknown fields {sorted(missing)}"
    for name, child in node.get("properties", {}).items():
        yield from structural_violations(child, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in node:
            yield from structural_violations(node[name], f"{path}.{name}")
