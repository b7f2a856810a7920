"""What to paste where, so that the flags of a Deployment may be tuned although a tool declares it.

Apart from `adopted`, because it is text for people and about other projects' objects. Conditions cut messages at 1,024
characters, so each snippet is one line.
Must not: decide who owns what.
"""

from collections.abc import Iterable
from typing import Final

from vllm_autotuner.workload.adoption import Target
from vllm_autotuner.workload.labels import CONSENT, CONSENT_GIVEN

__all__ = ["flags_elsewhere", "replicas_elsewhere"]

_FLUX: Final = ("kustomize-controller", "flux")
_HELM: Final = ("helm", "helm-controller")


def flags_elsewhere(target: Target, owners: Iterable[str]) -> str:
    """Say who would put the flags back, how to make him leave them alone, and how to hand them over."""
    named = tuple(owners)
    name, field = target.deployment["metadata"]["name"], target.line.field.value
    who = ", ".join(named)
    remedy = _remedy(named[0], name=name, container=target.container_name, field=field, index=_index(target))
    simple = (
        "Simplest: declare all flags in command and no args, which are then tuned. Else: " if field == "args" else ""
    )
    return (
        f"{who} declares {field} of Deployment {name} and would put back what is tuned, so nothing is written; "
        f"recommendations go on (`vllm-autotuner export`). {simple}1. {remedy} 2. Hand the flags over: annotate the "
        f"Deployment, where it is declared, with {CONSENT}={CONSENT_GIVEN}"
    )


def replicas_elsewhere(owners: Iterable[str]) -> str:
    """Say who sets the replicas that spec.scaling asks us to set."""
    return (
        f"{', '.join(owners)} sets the replicas of the Deployment, so spec.scaling is not followed: remove the one or "
        "the other (an autoscaler, or replicas in the manifest)"
    )


def _remedy(manager: str, *, name: str, container: str, field: str, index: int) -> str:
    lower = manager.lower()
    if lower.startswith("argocd"):
        return (
            "Argo CD: into the Application's spec put "
            f"ignoreDifferences: [{{group: apps, kind: Deployment, name: {name}, jqPathExpressions: "
            f"['.spec.template.spec.containers[] | select(.name == \"{container}\") | .{field}']}}] and "
            "syncPolicy: {syncOptions: [RespectIgnoreDifferences=true, ServerSideApply=true]}."
        )
    pointer = f"/spec/template/spec/containers/{index}/{field}"
    if lower.startswith(_FLUX):
        return (
            f"Flux: into the Kustomization's spec put ignore: [{{paths: [{pointer}], "
            f"target: {{kind: Deployment, name: {name}}}}}], or take {field} out of the manifest."
        )
    if lower.startswith(_HELM):
        return (
            "Helm: an upgrade writes the chart's flags again, so put what was kept into the values (`vllm-autotuner "
            "export --format helm`); where Flux corrects drift, put driftDetection: {ignore: "
            f"[{{paths: [{pointer}], target: {{kind: Deployment, name: {name}}}}}]}} into the HelmRelease's spec."
        )
    if lower.startswith("kubectl"):
        return (
            f"kubectl: applying the manifest again writes its {field} again, so put what was kept into it "
            "(`vllm-autotuner export`)."
        )
    return f"{manager}: make it leave {field} of container {container} alone, or tune it there."


def _index(target: Target) -> int:
    containers = target.deployment["spec"]["template"]["spec"]["containers"]
    return next(place for place, each in enumerate(containers) if each["name"] == target.container_name)
