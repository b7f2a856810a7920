"""The control plane is a real one, says in one line what stops it, and leaves nothing."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.bed import Bed, current_mode
from e2e.control_plane import API_SERVER, ControlPlane, ControlPlaneSettings, Ports
from e2e.errors import CommandError, StartError
from e2e.ports import free_ports, is_free
from e2e.processes import Processes, StateFile
from e2e.prometheus import run

GROUP = "bed.vllm-autotuner.dev"
WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"widgets.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
                                "x-kubernetes-validations": [
                                    {"rule": "self.low <= self.high", "message": "low must not exceed high"}
                                ],
                            },
                            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
                        },
                    }
                },
            }
        ],
    },
}


def widget(namespace: str, *, low: int, high: int, **rest: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Widget",
        "metadata": {"name": "w", "namespace": namespace},
        "spec": {"low": low, "high": high},
        **rest,
    }


@pytest.fixture
def widgets(bed: Bed) -> None:
    bed.apply([WIDGETS])
    bed.kubectl("wait", "--for=condition=Established", f"crd/widgets.{GROUP}", "--timeout=30s")


@pytest.mark.usefixtures("widgets")
def test_a_custom_resource_is_stored_and_its_rules_are_enforced(bed: Bed, namespace: str) -> None:
    # The status of a plain write is ignored: it has an endpoint of its own.
    bed.apply([widget(namespace, low=1, high=2, status={"phase": "Forged"})])

    stored = yaml.safe_load(bed.kubectl("get", "widget", "w", f"--namespace={namespace}", "--output=yaml"))
    assert (stored["spec"], stored.get("status")) == ({"low": 1, "high": 2}, None)
    with pytest.raises(CommandError, match="low must not exceed high"):
        bed.apply([widget(namespace, low=3, high=2)])


def test_a_service_account_has_its_own_rights_and_no_more(bed: Bed, namespace: str) -> None:
    role = {"namespace": namespace, "name": "reader"}
    bed.apply(
        [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": role},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "Role",
                "metadata": role,
                "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}],
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": role,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
                "subjects": [{"kind": "ServiceAccount", **role}],
            },
        ]
    )
    kubeconfig = bed.service_account_kubeconfig(namespace, "reader")
    as_reader: list[str | Path] = [bed.bin["kubectl"], f"--kubeconfig={kubeconfig}"]

    # The configuration's own namespace is the default one.
    assert "kube-root-ca.crt" in run([*as_reader, "get", "configmaps", "--output=name"])
    assert f"system:serviceaccount:{namespace}:reader" in run([*as_reader, "auth", "whoami", "--output=yaml"])
    with pytest.raises(CommandError, match="Forbidden"):
        run([*as_reader, "get", "secrets"])
    with pytest.raises(CommandError, match="Forbidden"):
        run([*as_reader, "get", "configmaps", "--namespace=kube-system"])


def test_a_token_for_an_unknown_account_is_refused_in_the_servers_words(bed: Bed, namespace: str) -> None:
    with pytest.raises(CommandError, match='serviceaccounts "nobody" not found'):
        bed.service_account_kubeconfig(namespace, "nobody")


@contextmanager
def plane_in(
    folder: Path, *, binaries: Mapping[str, Path], ports: Ports, settings: ControlPlaneSettings | None = None
) -> Iterator[tuple[ControlPlane, Processes]]:
    """A control plane of the test's own, not started; whatever is started is stopped."""
    processes = Processes(logs=folder / "logs", state=StateFile(folder / "bed.json"))
    plane = ControlPlane(
        binaries=binaries,
        processes=processes,
        data=folder / "data",
        mode=current_mode(),
        ports=ports,
        settings=settings,
    )
    try:
        yield plane, processes
    finally:
        plane.stop()


@pytest.fixture
def ports() -> Ports:
    return Ports.free()


async def test_stop_leaves_no_process_and_no_port(binaries: Mapping[str, Path], tmp_path: Path, ports: Ports) -> None:
    with plane_in(tmp_path, binaries=binaries, ports=ports) as (plane, processes):
        await plane.start()
        started = [processes.identity(name) for name in processes.names()]
        assert len(started) == 4
        assert all(process.alive() for process in started)
        assert not is_free(ports.api)

        plane.stop()

        assert [process for process in started if process.alive()] == []
        assert [port for port in (ports.etcd, ports.etcd_peer, ports.api) if not is_free(port)] == []
        assert processes.names() == []


async def test_objects_survive_a_crash_of_the_api_server_and_of_etcd(
    binaries: Mapping[str, Path], tmp_path: Path, ports: Ports
) -> None:
    with plane_in(tmp_path, binaries=binaries, ports=ports) as (plane, processes):
        await plane.start()
        kubectl: list[str | Path] = [binaries["kubectl"], f"--kubeconfig={plane.admin_kubeconfig}"]
        run([*kubectl, "create", "configmap", "kept", "--from-literal=answer=42"])

        for name in ("etcd", API_SERVER):
            processes.restart(name)
        await plane.wait_api_ready()

        assert run([*kubectl, "get", "configmap", "kept", "--output=jsonpath={.data.answer}"]) == "42"


@pytest.mark.parametrize("component", ["etcd", "kube-apiserver"])
async def test_a_port_in_use_is_one_clear_line(binaries: Mapping[str, Path], tmp_path: Path, component: str) -> None:
    etcd, peer, api = free_ports(3)
    taken = etcd if component == "etcd" else api
    address = "127.0.0.1" if current_mode() == "loopback" else "0.0.0.0"
    with (
        socket.create_server((address, taken)),
        plane_in(tmp_path, binaries=binaries, ports=Ports(etcd=etcd, etcd_peer=peer, api=api)) as (plane, _),
        pytest.raises(StartError) as failure,
    ):
        await plane.start()

    said = str(failure.value)
    assert said.startswith(f"{component} ended with code 1: ")
    assert f":{taken}: bind: address already in use" in said
    assert said.endswith(f"(log: {tmp_path / 'logs' / component}.log)")
    assert "\n" not in said


@pytest.mark.parametrize("component", ["etcd", "kube-scheduler"])
async def test_a_component_that_cannot_start_is_one_clear_line(
    binaries: Mapping[str, Path], tmp_path: Path, ports: Ports, component: str
) -> None:
    settings = ControlPlaneSettings(extra_flags={component: ["--no-such-flag"]})
    with (
        plane_in(tmp_path, binaries=binaries, ports=ports, settings=settings) as (plane, _),
        pytest.raises(StartError, match=rf"^{component} ended with code \d: .*no-such-flag"),
    ):
        await plane.start()
