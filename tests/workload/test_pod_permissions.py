"""A right to create VLLMServices is no right to hosts, privileges or other ServiceAccounts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.control.objects import service_object

from vllm_autotuner.api.service import InvalidReason, InvalidService, VLLMService
from vllm_autotuner.control.read.registry import Key, Registry
from vllm_autotuner.workload.pod_permissions import parse_permissions, refused_fields

HOST_PATH = {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}


def container(**security: Any) -> dict[str, Any]:
    return {"name": "vllm", "securityContext": security}


@pytest.mark.parametrize(
    ("spec", "permission", "says"),
    [
        ({"hostNetwork": True}, "HostNetwork", "podTemplate.spec.hostNetwork"),
        ({"hostPID": True}, "HostPID", "podTemplate.spec.hostPID"),
        ({"hostIPC": True}, "HostIPC", "podTemplate.spec.hostIPC"),
        (HOST_PATH, "HostPath", "hostPath of volume v"),
        ({"containers": [container(privileged=True)]}, "Privileged", "privileged of container vllm"),
        ({"initContainers": [container(privileged=True)]}, "Privileged", "privileged of container vllm"),
        (
            {"containers": [container(capabilities={"add": ["SYS_ADMIN"]})]},
            "Capabilities",
            "capabilities of container vllm",
        ),
        ({"containers": [{"name": "a", "ports": [{"hostPort": 80}]}]}, "HostPort", "hostPort of container a"),
        ({"serviceAccountName": "robot"}, "ServiceAccount:robot", "podTemplate.spec.serviceAccountName"),
        ({"serviceAccount": "robot"}, "ServiceAccount:robot", "podTemplate.spec.serviceAccount"),
    ],
)
def test_is_refused_by_name_and_allowed_by_the_installation(spec: dict[str, Any], permission: str, says: str) -> None:
    why = refused_fields({"spec": spec}, allowed=frozenset())
    assert says in why
    assert f"--allow-in-pods {permission}" in why
    assert refused_fields({"spec": spec}, allowed=parse_permissions([permission])) == ""
    if permission.startswith("ServiceAccount:"):
        assert refused_fields({"spec": spec}, allowed=parse_permissions(["ServiceAccount:*"])) == ""
        assert refused_fields({"spec": spec}, allowed=parse_permissions(["ServiceAccount:other"]))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"hostNetwork": False, "serviceAccountName": "default"},
        {"containers": [container(privileged=False, capabilities={"drop": ["ALL"]})]},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "s", "secret": {}}]},
        {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]},
    ],
)
def test_what_stays_in_its_pod_is_allowed(spec: dict[str, Any]) -> None:
    assert refused_fields({"spec": spec}, allowed=frozenset()) == ""


@pytest.mark.parametrize("text", ["", "hostPath", "Everything", "ServiceAccount:", "serviceaccount:a"])
def test_what_is_no_permission_is_refused_with_the_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"write one of HostNetwork, .*ServiceAccount:NAME"):
        parse_permissions([text])


@pytest.mark.parametrize(("allowed", "readable"), [(frozenset(), False), (frozenset({"HostPath"}), True)])
def test_a_service_that_asks_for_more_is_unreadable_wherever_it_is_seen(
    allowed: frozenset[str], readable: bool
) -> None:
    registry = Registry(pod_permissions=allowed)
    registry.services.see(service_object(podTemplate={"spec": HOST_PATH}))
    entry = registry.services.get(Key("prod", "chat"))
    assert entry is not None
    assert isinstance(entry.service, VLLMService) is readable
    if isinstance(entry.service, InvalidService):
        assert entry.service.reason is InvalidReason.SPEC
        assert entry.service.message.startswith("spec.podTemplate: this installation does not allow hostPath of volume")


FIELDS = st.sampled_from(
    ["spec", "containers", "volumes", "hostPath", "securityContext", "capabilities", "add", "ports", "serviceAccount"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.text(max_size=3),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(FIELDS, inside, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(FIELDS, JSON))
def test_any_template_is_judged(template: dict[str, Any]) -> None:
    assert isinstance(refused_fields(template, allowed=frozenset()), str)
