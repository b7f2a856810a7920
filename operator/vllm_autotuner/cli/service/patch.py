"""A recommendation as a patch for the VLLMService, or for the Deployment that it names.

Pure: status and Deployment in, text out. Must not: invent a value; it writes what is in `status.recommendation`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml
from pydantic import ValidationError

from vllm_autotuner.api.knobs import EngineKnobs, Knob, knob_value
from vllm_autotuner.api.service import API_VERSION, KIND, VLLMService
from vllm_autotuner.api.status import Recommendation
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.workload.adoption import Unadoptable, Unwritable, read_target

__all__ = ["PatchFormat", "export_text"]

_GROUP, _VERSION = API_VERSION.split("/")


class PatchFormat(StrEnum):
    """How the patch is written."""

    STRATEGIC = "strategic"
    KUSTOMIZE = "kustomize"
    HELM = "helm"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    """What the patch is for."""

    group: str
    version: str
    kind: str
    name: str
    namespace: str
    spec: dict[str, Any]
    """Of the patch."""
    values: Mapping[str, Any]
    """The same as values of a chart."""
    command: str
    """The beginning of the command that applies it."""
    hint: str = ""
    """Where the values go in a chart."""


def export_text(
    service: VLLMService, *, form: PatchFormat, values_key: str = "", deployment: Mapping[str, Any] | None = None
) -> str:
    """Return the patch of the current recommendation. Raises CommandError when there is none.

    `deployment`: the one that spec.targetRef names, as it is stored.
    """
    found = service.status.recommendation
    if found is None:
        named = f"{service.metadata.name} -n {service.metadata.namespace}"
        raise CommandError(f"{service.key} has no recommendation: see `vllm-autotuner explain {named}`")
    values = _recommended(found)
    about = _of_service(service, values) if deployment is None else _of_deployment(deployment, values)
    patch: dict[str, Any] = {
        "apiVersion": f"{about.group}/{about.version}",
        "kind": about.kind,
        "metadata": {"name": about.name, "namespace": about.namespace},
        "spec": about.spec,
    }
    body: Mapping[str, Any]
    match form:
        case PatchFormat.STRATEGIC:
            body, how = patch, f"{about.command} --patch-file FILE"
        case PatchFormat.KUSTOMIZE:
            target = {key: getattr(about, key) for key in ("group", "version", "kind", "name", "namespace")}
            body, how = {"patches": [{"target": target, "patch": _dump(patch)}]}, "merge into kustomization.yaml"
        case PatchFormat.HELM:
            body, how = (
                _nested(values_key, about.values),
                f"helm upgrade RELEASE CHART --reuse-values -f FILE{about.hint}",
            )
    return f"{_comment(found)}# {how}\n{_dump(body)}"


def _recommended(found: Recommendation) -> Mapping[Knob, int | str]:
    """Return the value, and those of the knobs that go with it."""
    try:
        knob = Knob(found.knob)
    except ValueError:
        raise CommandError(f"the recommendation is about {found.knob}, which this version does not support") from None
    text = found.recommended
    value = knob_value(text)
    if isinstance(value, str) and knob is not Knob.KV_CACHE_DTYPE:
        raise CommandError(f"the recommended {knob.value} {text!r} is not a number: status.recommendation was edited")
    others = {Knob.MAX_MODEL_LEN: found.max_model_len, Knob.MAX_NUM_SEQS: found.max_num_seqs}
    return {knob: value} | {other: number for other, number in others.items() if number is not None}


def _of_service(service: VLLMService, recommended: Mapping[Knob, int | str]) -> _Object:
    name, namespace = service.metadata.name, service.metadata.namespace
    if Knob.REPLICAS not in recommended:
        spec: dict[str, Any] = {"engine": {knob.value: value for knob, value in recommended.items()}}
    else:
        value = recommended[Knob.REPLICAS]
        spec = {"replicas": value} if service.spec.scaling is None else {"scaling": {"minReplicas": value}}
    return _Object(
        group=_GROUP,
        version=_VERSION,
        kind=KIND,
        name=name,
        namespace=namespace,
        spec=spec,
        values=spec,
        command=f"kubectl patch vllm {name} -n {namespace} --type merge",
    )


def _of_deployment(deployment: Mapping[str, Any], recommended: Mapping[Knob, int | str]) -> _Object:
    """The patch of a Deployment: the list of flags as a whole, because lists do not merge."""
    name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
    hint = ""
    if Knob.REPLICAS in recommended:
        spec: dict[str, Any] = {"replicas": recommended[Knob.REPLICAS]}
        values: Mapping[str, Any] = spec
    else:
        target = read_target(deployment)
        if isinstance(target, Unadoptable):
            raise CommandError(target.message)
        try:
            words = target.words(EngineKnobs.model_validate({knob.value: value for knob, value in recommended.items()}))
        except ValidationError:
            raise CommandError("no engine takes the recommended values: status.recommendation was edited") from None
        except Unwritable as error:
            raise CommandError(f"Deployment {name}: {error}") from None
        values = {target.line.field.value: list(words)}
        spec = {"template": {"spec": {"containers": [{"name": target.container_name, **values}]}}}
        hint = f"; --values-key sets where your chart keeps the container's {target.line.field.value}"
    return _Object(
        group="apps",
        version="v1",
        kind="Deployment",
        name=name,
        namespace=namespace,
        spec=spec,
        values=values,
        command=f"kubectl patch deployment {name} -n {namespace}",
        hint=hint,
    )


def _comment(found: Recommendation) -> str:
    limit = f", limited by {found.limited_by}" if found.limited_by else ""
    lines = [f"{found.told}{limit} (recommendation {found.id})"]
    lines += " ".join(found.reason.split()).split(". ")
    return "".join(f"# {line.rstrip('.')}.\n" for line in lines if line)


def _nested(key: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    names = key.split(".") if key else []
    if not all(names):
        raise CommandError(f"--values-key {key!r}: write keys separated by dots, such as chat.spec")
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
