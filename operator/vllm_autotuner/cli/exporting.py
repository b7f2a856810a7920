"""A recommendation as a patch that can be committed: what a person would otherwise type into the VLLMService by hand.

Pure: a status in, a text out. Must not: invent a value; it writes what stands in `status.recommendation`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import yaml

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.service import API_VERSION, KIND, VLLMService
from vllm_autotuner.api.status import Recommendation
from vllm_autotuner.cli.errors import CommandError

__all__ = ["PatchFormat", "export_text"]

_GROUP, _VERSION = API_VERSION.split("/")
_OF_ENGINE: Final = frozenset(knob for knob in Knob if knob is not Knob.REPLICAS)


class PatchFormat(StrEnum):
    """How the patch is written."""

    STRATEGIC = "strategic"
    KUSTOMIZE = "kustomize"
    HELM = "helm"


def export_text(service: VLLMService, *, form: PatchFormat, values_key: str = "") -> str:
    """Return the patch of the recommendation that stands. Raises CommandError when there is none."""
    found = service.status.recommendation
    if found is None:
        raise CommandError(f"{service.key} has no recommendation: see `vllm-autotuner explain {service.metadata.name}`")
    spec = _spec(service, found)
    name, namespace = service.metadata.name, service.metadata.namespace
    patch: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
    body: Mapping[str, Any]
    match form:
        case PatchFormat.STRATEGIC:
            body, how = patch, f"kubectl patch vllm {name} -n {namespace} --type merge --patch-file FILE"
        case PatchFormat.KUSTOMIZE:
            target = {"group": _GROUP, "version": _VERSION, "kind": KIND, "name": name, "namespace": namespace}
            body, how = {"patches": [{"target": target, "patch": _dump(patch)}]}, "merge into kustomization.yaml"
        case PatchFormat.HELM:
            body, how = _nested(values_key, spec), "helm upgrade RELEASE CHART --reuse-values -f FILE"
    return f"{_comment(found)}# {how}\n{_dump(body)}"


def _spec(service: VLLMService, found: Recommendation) -> dict[str, Any]:
    try:
        knob = Knob(found.knob)
    except ValueError:
        raise CommandError(f"the recommendation is about {found.knob}, which this version does not know") from None
    text = found.recommended
    value: int | str = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text
    if isinstance(value, str) and knob is not Knob.KV_CACHE_DTYPE:
        raise CommandError(f"the recommended {knob.value} {text!r} is not a number: status was edited")
    if service.spec.target_ref is not None:
        raise CommandError(f"{service.key} names a Deployment of its own (targetRef): change that one by hand")
    if knob in _OF_ENGINE:
        return {"engine": {knob.value: value}}
    return {"replicas": value} if service.spec.scaling is None else {"scaling": {"minReplicas": value}}


def _comment(found: Recommendation) -> str:
    limit = f", limited by {found.limited_by}" if found.limited_by else ""
    lines = [f"{found.knob} {found.current or 'default'} -> {found.recommended}{limit} (recommendation {found.id})"]
    lines += " ".join(found.reason.split()).split(". ")
    return "".join(f"# {line.rstrip('.')}.\n" for line in lines if line)


def _nested(key: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    names = key.split(".") if key else []
    if not all(names):
        raise CommandError(f"--values-key {key!r}: write names with dots between, such as chat.spec")
    for name in reversed(names):
        spec = {name: spec}
    return spec


class _Block(yaml.SafeDumper):
    """Writes texts of several lines as blocks: a patch inside a kustomization is for people to read."""


def _as_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Block.add_representer(str, _as_block)


def _dump(body: Mapping[str, Any]) -> str:
    return yaml.dump(body, Dumper=_Block, sort_keys=False)
