"""Who would put a field back, as the API server records it."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.control.adopting_bed import managed, theirs

from vllm_autotuner.cluster.field_managers import autoscaler_of, declarers, is_ours, template_list

ARGS = template_list("server", "args")
REPLICAS: Mapping[str, Any] = {"f:spec": {"f:replicas": {}}}


@pytest.mark.parametrize(
    ("entry", "owners"),
    [
        pytest.param(managed("kubectl-create"), (), id="created by hand"),
        pytest.param(managed("kubectl-edit"), (), id="edited by hand"),
        pytest.param(managed("vllm-autotuner", operation="Apply"), (), id="ours"),
        pytest.param(managed("kubectl-client-side-apply"), ("kubectl-client-side-apply",), id="a manifest"),
        pytest.param(managed("kubectl", operation="Apply"), ("kubectl",), id="a manifest, server-side"),
        pytest.param(managed("argocd-controller"), ("argocd-controller",), id="Argo CD, client-side"),
        pytest.param(managed("argocd-controller", operation="Apply"), ("argocd-controller",), id="Argo CD"),
        pytest.param(managed("kustomize-controller", operation="Apply"), ("kustomize-controller",), id="Flux"),
        pytest.param(managed("helm"), ("helm",), id="Helm"),
        pytest.param(managed("manager"), ("manager",), id="a controller that nobody knows"),
        pytest.param(managed("kubectl-edit", operation="Apply"), ("kubectl-edit",), id="a name is no proof"),
        pytest.param(managed("argocd-controller", fields=REPLICAS), (), id="of another field only"),
        pytest.param({**managed("x"), "subresource": "status"}, (), id="by way of the status"),
        pytest.param({"manager": "x", "operation": "Update", "fieldsV1": None}, (), id="an entry without fields"),
    ],
)
def test_who_declares_the_flags(entry: dict[str, object], owners: tuple[str, ...]) -> None:
    assert declarers(theirs(manager=entry), path=ARGS) == owners


def test_a_controller_of_the_whole_object_declares_everything() -> None:
    owner = {"kind": "InferenceService", "name": "chat", "controller": True}
    found = theirs(manager=managed("kubectl-create"), metadata__ownerReferences=[owner])
    assert declarers(found, path=ARGS) == ("InferenceService chat",)


def test_only_our_own_applies_make_a_field_ours() -> None:
    assert is_ours(theirs(manager=managed("vllm-autotuner", operation="Apply")), path=ARGS)
    assert not is_ours(theirs(manager=managed("vllm-autotuner")), path=ARGS)
    assert not is_ours(theirs(manager=managed("kubectl", operation="Apply")), path=ARGS)


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        pytest.param(managed("kubectl-create", fields=REPLICAS), (), id="created by hand"),
        pytest.param({**managed("kubectl", fields=REPLICAS), "subresource": "scale"}, (), id="scaled by hand"),
        pytest.param({**managed("vllm-autotuner", fields=REPLICAS), "subresource": "scale"}, (), id="scaled by us"),
        pytest.param(
            {**managed("kube-controller-manager", fields=REPLICAS), "subresource": "scale"},
            ("an autoscaler (HorizontalPodAutoscaler)",),
            id="an HPA",
        ),
        pytest.param({**managed("keda", fields=REPLICAS), "subresource": "scale"}, ("keda",), id="another scaler"),
        pytest.param(managed("argocd-controller", fields=REPLICAS), ("argocd-controller",), id="in the manifest"),
    ],
)
def test_who_sets_the_replicas(entry: dict[str, object], found: tuple[str, ...]) -> None:
    assert autoscaler_of(theirs(manager=entry)) == found
