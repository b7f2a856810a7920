"""Who has written a field of our own child, by what the API server keeps of it."""

from typing import Any

import pytest

from vllm_autotuner.cluster.field_managers import scaled_by, taken_by, template_list
from vllm_autotuner.workload.labels import OPERATOR


def live(*managers: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "Deployment", "metadata": {"managedFields": list(managers)}}


def owned(manager: str, *paths: tuple[str, ...], time: str = "2026-11-21T12:00:00Z", via: str = "") -> dict[str, Any]:
    """An entry of managedFields, as the API server writes it."""
    nested: dict[str, Any] = {}
    for path in paths:
        level = nested
        for key in path:
            level = level.setdefault(key, {})
    entry = {"manager": manager, "operation": "Update", "fieldsV1": nested, "time": time}
    return entry | ({"subresource": via} if via else {})


ARGS, REPLICAS, LABELS = template_list("vllm", "args"), ("f:spec", "f:replicas"), ("f:metadata", "f:labels")


@pytest.mark.parametrize(
    ("managers", "who"),
    [
        pytest.param((), "", id="nobody says who owns what"),
        pytest.param((owned(OPERATOR, ARGS),), "", id="ours"),
        pytest.param((owned(OPERATOR, ARGS), owned("argocd", ARGS)), "", id="shared: both have written the same"),
        pytest.param((owned(OPERATOR, REPLICAS), owned("argocd", ARGS)), "argocd", id="taken"),
        pytest.param(
            (
                owned(OPERATOR, REPLICAS),
                owned("helm", LABELS, time="2026-11-20T09:00:00Z"),
                owned("kubectl-edit", LABELS, time="2026-11-21T12:00:00Z"),
                owned("kube-controller-manager", ("f:status", "f:replicas"), time="2026-11-21T13:00:00Z", via="status"),
            ),
            "kubectl-edit",
            id="removed: the last writer will have done it",
        ),
    ],
)
def test_who_has_taken_a_field(managers: tuple[dict[str, Any], ...], who: str) -> None:
    assert taken_by(live(*managers), path=ARGS) == who


@pytest.mark.parametrize(
    ("managers", "who"),
    [
        pytest.param((owned(OPERATOR, REPLICAS),), (), id="ours"),
        pytest.param(
            (owned("kube-controller-manager", REPLICAS, via="scale"),),
            ("an autoscaler (HorizontalPodAutoscaler)",),
            id="an HPA",
        ),
        pytest.param((owned("keda-operator", REPLICAS, via="scale"),), ("keda-operator",), id="KEDA"),
        pytest.param((owned("kubectl", REPLICAS, via="scale"),), (), id="kubectl scale is a person"),
        pytest.param((owned("argocd", REPLICAS),), (), id="a manifest is no autoscaler"),
        pytest.param((owned("kube-controller-manager", ("f:status", "f:replicas"), via="status"),), (), id="a status"),
    ],
)
def test_which_autoscaler_sets_the_replicas(managers: tuple[dict[str, Any], ...], who: tuple[str, ...]) -> None:
    assert scaled_by(live(*managers)) == who


@pytest.mark.parametrize("fields", [{}, {"fieldsV1": None}, {"fieldsV1": {"f:spec": None}}, {"manager": None}])
def test_odd_entries_own_nothing(fields: dict[str, Any]) -> None:
    found = live({"manager": "odd"} | fields, owned(OPERATOR, ARGS))
    assert (taken_by(found, path=ARGS), scaled_by(found)) == ("", ())
