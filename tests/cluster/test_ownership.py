"""Force is only for what is ours: every way in which a live object can be somebody else's."""

from typing import Any

import pytest

from vllm_autotuner.cluster.errors import Conflict, Refused
from vllm_autotuner.cluster.ownership import objection
from vllm_autotuner.workload.labels import LEASE_EPOCH, MANAGED_BY, OPERATOR, SERVICE

OURS = {MANAGED_BY: OPERATOR, SERVICE: "chat"}


def live(
    *,
    labels: dict[str, str] | None = None,
    owner: dict[str, Any] | None = None,
    epoch: str | None = None,
    deleting: bool = False,
    managers: tuple[dict[str, str], ...] = (),
) -> dict[str, Any]:
    """Ours in every respect but for what is named."""
    return {
        "kind": "Deployment",
        "metadata": {
            "name": "chat",
            "namespace": "prod",
            "labels": OURS if labels is None else labels,
            "annotations": {LEASE_EPOCH: epoch} if epoch is not None else {},
            "ownerReferences": [
                {"kind": "VLLMService", "name": "chat", "uid": "u1", "controller": True} | (owner or {})
            ]
            if owner != {}
            else [],
            "managedFields": list(managers),
        }
        | ({"deletionTimestamp": "2026-11-20T00:00:00Z"} if deleting else {}),
    }


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(live(), id="labels and controller reference are ours"),
        pytest.param(live(labels={}), id="the controller reference alone is proof, labels may have been edited"),
        pytest.param(live(owner={}), id="labels alone are proof while no controller is named"),
        pytest.param(live(epoch="7"), id="written in this epoch"),
        pytest.param(live(epoch="6"), id="written in an earlier epoch"),
        pytest.param(live(epoch="soon"), id="an unreadable epoch fences nobody"),
    ],
)
def test_our_own_object_may_be_written(found: dict[str, Any]) -> None:
    assert objection(live=found, service_name="chat", service_uid="u1", epoch=7) is None


@pytest.mark.parametrize(
    ("found", "expected", "reason", "says"),
    [
        pytest.param(
            live(labels={MANAGED_BY: "Helm"}, owner={}),
            Refused,
            "NotOwned",
            "managed by Helm",
            id="a Helm release of the same name",
        ),
        pytest.param(
            live(labels={}, owner={}, managers=({"manager": "kubectl"}, {"manager": "kcm", "subresource": "status"})),
            Refused,
            "NotOwned",
            "managed by kubectl;",
            id="an unlabelled object names its field managers, not who reports its status",
        ),
        pytest.param(
            live(labels={}, owner={}), Refused, "NotOwned", "an unknown manager", id="an object of unknown origin"
        ),
        pytest.param(
            live(labels=OURS | {SERVICE: "other"}, owner={}),
            Refused,
            "NotOwned",
            "vllm-autotuner",
            id="a child of another VLLMService",
        ),
        pytest.param(
            live(owner={"kind": "Rollout", "name": "chat", "uid": "u9"}),
            Refused,
            "NotOwned",
            "belongs to Rollout chat",
            id="another controller took it although labels are ours",
        ),
        pytest.param(
            live(owner={"uid": "u0"}), Conflict, "Terminating", "deleted VLLMService", id="left over from a predecessor"
        ),
        pytest.param(
            live(owner={"name": "other", "uid": "u2"}),
            Refused,
            "NotOwned",
            "belongs to VLLMService other",
            id="another VLLMService controls it",
        ),
        pytest.param(live(deleting=True), Conflict, "Terminating", "being deleted", id="ours, but on its way out"),
        pytest.param(live(epoch="8"), Conflict, "NewerEpoch", "epoch 8", id="a later leader wrote it"),
    ],
)
def test_what_is_not_ours_is_named(found: dict[str, Any], expected: type[Exception], reason: str, says: str) -> None:
    error = objection(live=found, service_name="chat", service_uid="u1", epoch=7)
    assert type(error) is expected
    assert error is not None
    assert error.reason == reason
    assert says in str(error)


@pytest.mark.parametrize(
    ("found", "allowed"),
    [
        pytest.param(live(owner={}), True, id="children that outlive their service are known by label"),
        pytest.param(live(owner={"uid": "any"}), True, id="a reference by name from before the policy changed"),
        pytest.param(live(owner={"name": "other"}), False, id="a reference of another service"),
        pytest.param(live(owner={}, labels={}), False, id="neither label nor reference"),
    ],
)
def test_without_controller_references_name_and_label_decide(found: dict[str, Any], allowed: bool) -> None:
    assert (objection(live=found, service_name="chat", service_uid=None, epoch=7) is None) is allowed
