"""Instructions for handing the engine flags of a Deployment over to the operator, per deployment tool.

Apart from `adopted`, because this is text for people about the objects of other projects. Condition messages are cut at
1,024 characters, so each snippet is one line.
Must not: decide which field manager owns a field.
"""

from collections.abc import Iterable
from typing import Final

from vllm_autotuner.cluster.field_managers import maker
from vllm_autotuner.workload.adoption import Target
from vllm_autotuner.workload.labels import CONSENT, CONSENT_GIVEN

__all__ = ["flags_elsewhere", "replicas_elsewhere"]

_FLUX: Final = ("kustomize-controller", "flux")
_HELM: Final = ("helm", "helm-controller")


def flags_elsewhere(target: Target, owners: Iterable[str]) -> str:
    """The message that names the owners of the flags, how to make them ignore the flags, and how to hand over."""
    named = tuple(owners)
    name, field = target.deployment["metadata"]["name"], target.line.field.value
    who = ", ".join(named)
    if made_by := maker(target.deployment):
        return (
            f"{made_by[0]} makes Deployment {name} and would write its flags again, so the operator writes none; "
            "recommendations continue (`vllm-autotuner export`): put the recommended value into that object"
        )
    remedy = _remedy(named[0], name=name, container=target.container_name, field=field, index=_index(target))
    simple = (
        "Simplest: declare all flags in command and none in args; the operator then sets args. Otherwise: "
        if field == "args"
        else ""
    )
    return (
        f"{who} declares {field} of Deployment {name} and would revert tuned values, so the operator writes none; "
        f"recommendations continue (`vllm-autotuner export`). {simple}1. {remedy} 2. Hand over the flags: annotate the "
        f"Deployment in its manifest with {CONSENT}={CONSENT_GIVEN}"
    )


def replicas_elsewhere(owners: Iterable[str]) -> str:
    """The message that names the other writer of the replicas while spec.scaling is set."""
    return (
        f"the replicas of the Deployment are set by {', '.join(owners)}, so spec.scaling has no effect: remove "
        "spec.scaling or the other writer (an autoscaler, or replicas in the manifest)"
    )


def _remedy(manager: str, *, name: str, container: str, field: str, index: int) -> str:
    lower = manager.lower()
    if lower.startswith("argocd"):
        return (
            "Argo CD: add to the Application's spec "
            f"ignoreDifferences: [{{group: apps, kind: Deployment, name: {name}, jqPathExpressions: "
            f"['.spec.template.spec.containers[] | select(.name == \"{container}\") | .{field}']}}] and "
            "syncPolicy: {syncOptions: [RespectIgnoreDifferences=true, ServerSideApply=true]}."
        )
    pointer = f"/spec/template/spec/containers/{index}/{field}"
    if lower.startswith(_FLUX):
        return (
            f"Flux: add to the Kustomization's spec ignore: [{{paths: [{pointer}], "
            f"target: {{kind: Deployment, name: {name}}}}}], or remove {field} from the manifest."
        )
    if lower.startswith(_HELM):
        return (
            "Helm: an upgrade restores the chart's flags, so copy the tuned values into the chart values "
            "(`vllm-autotuner export --format helm`); with Flux drift detection, add to the HelmRelease's spec "
            f"driftDetection: {{ignore: [{{paths: [{pointer}], target: {{kind: Deployment, name: {name}}}}}]}}."
        )
    if lower.startswith("kubectl"):
        return (
            f"kubectl: applying the manifest again restores its {field}, so copy the tuned values into it "
            "(`vllm-autotuner export`)."
        )
    return f"{manager}: configure it to ignore {field} of container {container}, or tune the values there."


def _index(target: Target) -> int:
    containers = target.deployment["spec"]["template"]["spec"]["containers"]
    return next(place for place, each in enumerate(containers) if each["name"] == target.container_name)
