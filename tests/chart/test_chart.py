"""The Helm chart: the rights it gives, and that the operator understands what the chart starts it with."""

import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_autotuner.api.spec import Mode
from vllm_autotuner.cli.command_tree import COMMANDS
from vllm_autotuner.cli.lazy_commands import loaded
from vllm_autotuner.cli.run.prometheus_sources import load_sources
from vllm_autotuner.control.shard import Shard
from vllm_autotuner.guardrails.mode_ceiling import Limits, parse_limits
from vllm_autotuner.observation.access import PrometheusAddress
from vllm_autotuner.workload.labels import MANAGED_BY, OPERATOR

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "vllm-autotuner"

Render = Callable[..., list[dict[str, Any]]]

RIGHTS = {
    ("vllm-autotuner.dev", "vllmservices"): {"get", "list", "watch"},
    ("vllm-autotuner.dev", "vllmservices/status"): {"update"},
    ("vllm-autotuner.dev", "vllmservices/finalizers"): {"update"},
    ("apps", "deployments"): {"get", "list", "watch", "create", "patch", "delete"},
    ("apps", "deployments/scale"): {"patch"},
    ("autoscaling", "horizontalpodautoscalers"): {"list"},
    ("", "services"): {"get", "create", "patch"},
    ("", "pods"): {"list", "watch"},
    ("", "pods/log"): {"get"},
    ("events.k8s.io", "events"): {"create"},
}
FOR_GPUS = {("", "nodes"): {"list"}, ("", "resourcequotas"): {"list"}}
LOOKS = {"get", "list", "watch"}
NOT_READ = {("", "services")}
"""Only whoever writes a Service looks for it."""
READ_ONLY = {
    resource: verbs & LOOKS for resource, verbs in RIGHTS.items() if verbs & LOOKS and resource not in NOT_READ
}


def helm_binary() -> str | None:
    """Helm as the test bed built it, or that of the machine; nothing is built here."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-autotuner" / "bin"
    named = Path(os.environ.get("AUTOTUNER_BIN_DIR", "")) / "helm"
    found = [path for path in (named, *sorted(cache.glob("helm-*/helm"))) if path.is_file()]
    return str(found[0]) if found else shutil.which("helm")


def run_helm(*arguments: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    binary = helm_binary()
    if binary is None:
        pytest.skip("no helm: `python -m e2e.binaries` builds it")
    return subprocess.run(
        [binary, *arguments, "--values", "-"],
        input=yaml.safe_dump({"prometheus": {"url": "http://prometheus:9090"}} | (values or {})),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def render() -> Render:
    def rendered(values: dict[str, Any] | None = None, *, release: str = "vllm-autotuner") -> list[dict[str, Any]]:
        result = run_helm("template", release, str(CHART), "--namespace", "tuner", values=values)
        assert result.returncode == 0, result.stderr
        return [document for document in yaml.safe_load_all(result.stdout) if document]

    return rendered


def only(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


def operator_role(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The operator's own; the others are for people."""
    return only(
        [each for each in documents if not each["metadata"]["name"].endswith(("-view", "-edit"))], "ClusterRole"
    )


def operator(documents: list[dict[str, Any]]) -> dict[str, Any]:
    container: dict[str, Any]
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    return container


def rights(role: dict[str, Any]) -> Iterator[tuple[tuple[str, str], set[str]]]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield (group, resource), set(rule["verbs"])


def test_the_crd_of_the_chart_is_the_generated_one() -> None:
    assert (CHART / "crds" / "vllmservices.yaml").read_text() == (ROOT / "crds" / "vllmservices.yaml").read_text()


def test_the_alerts_of_the_chart_are_the_documented_ones() -> None:
    assert (CHART / "files" / "alerts.yaml").read_text() == (ROOT / "docs" / "alerts.yaml").read_text()


def test_lint_finds_nothing() -> None:
    result = run_helm("lint", "--strict", str(CHART))
    assert result.returncode == 0, result.stdout + result.stderr


def test_lint_finds_nothing_in_the_defaults() -> None:
    result = run_helm("lint", str(CHART), values={"prometheus": {"url": ""}})
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_operator_has_exactly_the_rights_it_uses(render: Render) -> None:
    found = list(rights(operator_role(render())))
    assert dict(found) == RIGHTS | FOR_GPUS
    assert len(found) == len(RIGHTS | FOR_GPUS), "a resource stands in two rules"


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["prod"]}, {"nodesOnDemand": True}], ids=str)
def test_a_read_only_operator_has_exactly_the_rights_to_look(render: Render, values: dict[str, Any]) -> None:
    documents = render({**values, "rbac": {"readOnly": True}})
    found = list(rights(operator_role(documents)))
    assert dict(found) == READ_ONLY | ({} if values else FOR_GPUS)
    assert len(found) == len(dict(found)), "a resource stands in two rules"
    assert {verb for _, verbs in found for verb in verbs} <= LOOKS
    assert only(documents, "Role")["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["vllm-autotuner-limits"], "verbs": ["get"]}
    ]
    args = operator(documents)["args"]
    assert "--read-only" in args
    assert not [each for each in args if each.startswith("--lease-name=")], "it takes part in no election"
    assert {each.split("=")[0] for each in args[1:]} <= known_options()


def test_an_operator_writes_unless_it_is_told_to_look_only(render: Render) -> None:
    assert "--read-only" not in operator(render())["args"]


@pytest.mark.parametrize("values", [{"watchNamespaces": ["prod"]}, {"nodesOnDemand": True}], ids=str)
def test_who_does_not_count_gpus_has_no_right_to_look_at_nodes(render: Render, values: dict[str, Any]) -> None:
    documents = render(values)
    assert dict(rights(operator_role(documents))) == RIGHTS
    assert ("--nodes-on-demand" in operator(documents)["args"]) is ("nodesOnDemand" in values)


@pytest.mark.parametrize("aggregated", [{"view": True, "edit": True}, {"view": False, "edit": False}, None], ids=str)
def test_roles_for_people_join_the_built_in_ones_where_asked(
    render: Render, aggregated: dict[str, bool] | None
) -> None:
    roles = {
        each["metadata"]["name"]: each
        for each in render({"aggregateClusterRoles": aggregated or {}})
        if "rules" in each
    }
    view, edit = roles["tuner-vllm-autotuner-view"], roles["tuner-vllm-autotuner-edit"]
    expected = {"view": True, "edit": False} | (aggregated or {})
    joins = "rbac.authorization.k8s.io/aggregate-to-"
    assert (f"{joins}view" in view["metadata"]["labels"]) is expected["view"]
    assert (f"{joins}edit" in edit["metadata"]["labels"]) is expected["edit"]
    assert {verb for _, verbs in rights(view) for verb in verbs} == {"get", "list", "watch"}
    assert {resource for (_, resource), _ in rights(edit)} == {"vllmservices", "vllmservices/scale"}


def test_what_pods_may_ask_for_is_given_on(render: Render) -> None:
    allowed = ["HostPath", "ServiceAccount:models"]
    args = operator(render({"podPermissions": allowed}))["args"]
    assert [arg for arg in args if "allow-in-pods" in arg] == [f"--allow-in-pods={each}" for each in allowed]
    assert not [arg for arg in operator(render())["args"] if "allow-in-pods" in arg]


def test_no_right_reaches_secrets_or_everything(render: Render) -> None:
    for document in render({"watchNamespaces": ["a"]}):
        for (group, resource), verbs in rights(document) if "rules" in document else ():
            assert not {"*", "secrets"} & {group, resource, *verbs}
            assert resource != "configmaps" or document["kind"] == "Role"


def test_the_lease_and_the_limits_are_reachable_in_the_own_namespace_only(render: Render) -> None:
    role = only(render(), "Role")
    assert role["metadata"]["namespace"] == "tuner"
    assert role["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["vllm-autotuner"],
            "verbs": ["get", "update"],
        },
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["vllm-autotuner-limits"],
            "verbs": ["get"],
        },
    ]
    assert "--lease-name=vllm-autotuner" in operator(render())["args"]
    assert "--lease-namespace=tuner" in operator(render())["args"]


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ({}, Limits()),
        ({"modeCeiling": "Off"}, Limits(ceiling=Mode.OFF)),
        ({"killSwitch": True}, Limits(ceiling=Mode.RECOMMEND, kill=True)),
        ({"modeCeiling": "Approve", "killSwitch": False}, Limits(ceiling=Mode.APPROVE)),
    ],
)
def test_the_limits_are_a_configmap_that_the_operator_reads_and_understands(
    render: Render, values: dict[str, Any], limits: Limits
) -> None:
    documents = render({"limits": values}, release="tuner")
    found = only(documents, "ConfigMap")
    name = found["metadata"]["name"]
    assert found["metadata"]["namespace"] == "tuner"
    assert f"--limits-configmap={name}" in operator(documents)["args"]
    assert [name] in [rule.get("resourceNames") for rule in only(documents, "Role")["rules"]]
    assert all(isinstance(value, str) for value in found["data"].values())
    assert replace(parse_limits(found["data"], source="x"), why="") == limits


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ({}, ["--max-concurrent-changes=5%", "--max-extra-gpus=10%"]),
        ({"changes": 3, "extraGPUs": "50%"}, ["--max-concurrent-changes=3", "--max-extra-gpus=50%"]),
        ({"changes": 1_000_000, "extraGPUs": "7"}, ["--max-concurrent-changes=1000000", "--max-extra-gpus=7"]),
    ],
)
def test_how_much_changes_at_once_is_given_on(render: Render, values: dict[str, Any], flags: list[str]) -> None:
    assert [flag for flag in operator(render({"concurrency": values}))["args"] if flag.startswith("--max-")] == flags


EXTRAS = {"PodMonitor", "PrometheusRule", "PodDisruptionBudget", "NetworkPolicy"}


def test_nothing_that_a_cluster_may_lack_is_created_unasked(render: Render) -> None:
    assert EXTRAS & {document["kind"] for document in render()} == set()


def test_monitors_select_the_pods_that_there_are(render: Render) -> None:
    documents = render({"podMonitor": {"enabled": True, "labels": {"release": "kps"}}})
    monitor, deployment = only(documents, "PodMonitor"), only(documents, "Deployment")
    assert monitor["metadata"]["labels"]["release"] == "kps"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint == {"port": operator(documents)["ports"][0]["name"], "path": "/metrics"}


@pytest.mark.parametrize(
    ("values", "where"), [({}, {"any": True}), ({"watchNamespaces": ["prod"]}, {"matchNames": ["prod"]})], ids=str
)
def test_engines_are_scraped_where_they_are_served(
    render: Render, values: dict[str, Any], where: dict[str, Any]
) -> None:
    monitor = only(render(values | {"enginePodMonitor": {"enabled": True}}), "PodMonitor")
    assert monitor["spec"]["namespaceSelector"] == where
    assert monitor["spec"]["selector"]["matchLabels"] == {MANAGED_BY: OPERATOR}
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint == {"port": "http", "path": "/metrics", "interval": "15s", "honorLabels": False}


def test_rules_budgets_and_policies_are_about_this_release(render: Render) -> None:
    asked = ("prometheusRule", "podDisruptionBudget", "networkPolicy")
    documents = render({name: {"enabled": True} for name in asked})
    labels = only(documents, "Deployment")["spec"]["selector"]["matchLabels"]
    assert only(documents, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert only(documents, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    alerts = yaml.safe_load((ROOT / "docs" / "alerts.yaml").read_text())
    assert only(documents, "PrometheusRule")["spec"] == alerts


def test_who_may_reach_the_metrics_is_given_on(render: Render) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    policy = only(render({"networkPolicy": {"enabled": True, "from": [peer]}}), "NetworkPolicy")
    assert policy["spec"]["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}], "from": [peer]}]


def test_pod_settings_are_given_on(render: Render) -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    digest = "sha256:" + "0" * 64
    documents = render(
        {
            "image": {"digest": digest},
            "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
            "extraArgs": ["--mode-ceiling=Recommend"],
            "topologySpreadConstraints": [spread],
            # As OpenShift needs it: it assigns the IDs.
            "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
        }
    )
    pod, container = only(documents, "Deployment")["spec"]["template"]["spec"], operator(documents)
    assert container["image"].endswith(f"@{digest}")
    assert {"name": "HTTPS_PROXY", "value": "http://proxy"} in container["env"]
    assert container["args"][-1] == "--mode-ceiling=Recommend"
    assert pod["topologySpreadConstraints"] == [spread]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_named_namespaces_give_no_right_outside_them(render: Render) -> None:
    documents = render({"watchNamespaces": ["prod", "test"]})
    assert not [document for document in documents if document["kind"] == "ClusterRoleBinding"]
    bound = {
        document["metadata"]["namespace"]
        for document in documents
        if document["kind"] == "RoleBinding" and document["roleRef"]["kind"] == "ClusterRole"
    }
    assert bound == {"prod", "test"}
    assert {"--namespace=prod", "--namespace=test"} <= set(operator(documents)["args"])


def test_a_value_that_yaml_would_read_otherwise_arrives_as_it_is(render: Render) -> None:
    basic = {"secretName": "login", "username": 'me: "x" # y'}
    documents = render(
        {
            "prometheus": {"url": "http://p/?a=b#c:", "basic": basic},
            "watchNamespaces": ["123", "true"],
            "serviceAccount": {"name": "123"},
        }
    )
    arguments = operator(documents)["args"]
    assert f"--prometheus-username={basic['username']}" in arguments
    assert {"--prometheus-url=http://p/?a=b#c:", "--namespace=123", "--namespace=true"} <= set(arguments)
    assert only(documents, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "123"
    assert only(documents, "ServiceAccount")["metadata"]["name"] == "123"
    bindings = [document for document in documents if document["kind"] == "RoleBinding"]
    assert {"123", "true"} <= {document["metadata"]["namespace"] for document in bindings}
    assert {document["subjects"][0]["name"] for document in bindings} == {"123"}


def test_every_binding_leads_from_an_existing_role_to_the_account_of_the_pods(render: Render) -> None:
    documents = render({"watchNamespaces": ["prod"], "serviceAccount": {"name": "tuner"}})
    roles = {(document["kind"], document["metadata"]["name"]) for document in documents if "rules" in document}
    pod = only(documents, "Deployment")["spec"]["template"]["spec"]
    for document in documents:
        if document["kind"].endswith("Binding"):
            assert (document["roleRef"]["kind"], document["roleRef"]["name"]) in roles
            assert document["subjects"] == [
                {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "tuner"}
            ]
    assert only(documents, "ServiceAccount")["metadata"]["name"] == "tuner"


def test_an_account_that_exists_is_used_and_not_made(render: Render) -> None:
    documents = render({"serviceAccount": {"create": False, "name": "tuner"}})
    assert not [document for document in documents if document["kind"] == "ServiceAccount"]
    assert only(documents, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "tuner"


def test_a_key_of_the_values_stands_once_beside_the_charts_own(render: Render) -> None:
    """YAML with a key twice is refused by kustomize. The selector is made of the chart's labels: those stay."""
    given = {"app.kubernetes.io/instance": "mine", "team": "chat"}
    documents = render(
        {
            "podLabels": given,
            "podAnnotations": {"prometheus.io/scrape": "false"},
            "podMonitor": {"enabled": True, "labels": given},
        }
    )
    deployment = only(documents, "Deployment")["spec"]
    pod = deployment["template"]["metadata"]
    assert deployment["selector"]["matchLabels"].items() <= pod["labels"].items()
    assert pod["labels"]["team"] == "chat"
    assert pod["annotations"]["prometheus.io/scrape"] == "false"
    assert only(documents, "PodMonitor")["metadata"]["labels"].items() >= given.items()


@pytest.mark.parametrize("nothing", [None, {}])
def test_labels_and_annotations_may_be_left_out(render: Render, nothing: object) -> None:
    documents = render(
        {
            "podLabels": nothing,
            "podAnnotations": nothing,
            "podMonitor": {"enabled": True, "labels": nothing},
            "prometheusRule": {"enabled": True, "labels": nothing},
        }
    )
    assert only(documents, "Deployment")["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == "8080"


ALL_OPTIONS = {
    "prometheus": {
        "url": "https://mimir:443/prometheus",
        "ca": {"configMapName": "ca", "key": "root.pem"},
        "headers": {"X-Scope-OrgID": "team=a"},
    },
    "watchNamespaces": ["prod"],
    "nodesOnDemand": True,
}


def known_options() -> set[str]:
    return {option for parameter in loaded(COMMANDS, "run").params for option in parameter.opts}


def test_every_argument_is_one_that_the_operator_knows(render: Render) -> None:
    known = known_options()
    for auth in (
        {"bearerToken": {"secretName": "t", "key": "token"}},
        {"basic": {"secretName": "b", "username": "u", "key": "p"}},
    ):
        name, *args = operator(render({**ALL_OPTIONS, "prometheus": ALL_OPTIONS["prometheus"] | auth}))["args"]  # type: ignore[operator]
        assert name == "run"
        assert {argument.split("=")[0] for argument in args} <= known
        assert "--prometheus-header=X-Scope-OrgID=team=a" in args


@pytest.mark.parametrize(
    ("auth", "arguments"),
    [
        pytest.param(
            {"bearerToken": {"secretName": "s", "key": "jwt"}},
            {"--prometheus-bearer-token-file=/etc/vllm-autotuner/bearer-token/jwt"},
            id="bearer token",
        ),
        pytest.param(
            {"basic": {"secretName": "s", "username": "reader", "key": "password"}},
            {"--prometheus-username=reader", "--prometheus-password-file=/etc/vllm-autotuner/basic/password"},
            id="basic",
        ),
        pytest.param(
            {"ca": {"configMapName": "c", "key": "ca.crt"}},
            {"--prometheus-ca-file=/etc/vllm-autotuner/ca/ca.crt"},
            id="own CA",
        ),
        pytest.param(
            {"clientCertificate": {"secretName": "s"}},
            {
                "--prometheus-client-cert=/etc/vllm-autotuner/client-certificate/tls.crt",
                "--prometheus-client-key=/etc/vllm-autotuner/client-certificate/tls.key",
            },
            id="mTLS",
        ),
    ],
)
def test_credentials_are_files_that_are_mounted(render: Render, auth: dict[str, Any], arguments: set[str]) -> None:
    documents = render({"prometheus": {"url": "https://p", **auth}})
    container = operator(documents)
    assert arguments <= set(container["args"])
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    pod = only(documents, "Deployment")["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for argument in arguments:
        path = argument.partition("=")[2]
        if path.startswith("/"):
            source = volumes[mounts[os.path.dirname(path)]]
            assert source.get("secret", {}).get("secretName") == "s" or source["configMap"]["name"] == "c"
    assert "s" not in {entry.get("value") for entry in container["env"]}


SOURCES = {
    "eu": {
        "url": "https://mimir.eu/prometheus",
        "match": ["cluster=eu"],
        "headers": {"X-Scope-OrgID": "gpu"},
        "bearerToken": {"secretName": "s"},
        "ca": {"configMapName": "c"},
    },
    "us": {
        "url": "https://us",
        "basic": {"secretName": "s", "username": "reader", "key": "pw"},
        "clientCertificate": {"secretName": "s"},
    },
}


def test_further_servers_are_a_file_that_the_operator_reads_with_credentials_of_their_own(
    render: Render, tmp_path: Path
) -> None:
    documents = render({"prometheus": {"url": "http://p", "bearerToken": {"secretName": "own"}, "sources": SOURCES}})
    container, pod = operator(documents), only(documents, "Deployment")["spec"]["template"]["spec"]
    (given,) = [each for each in documents if each["metadata"]["name"] == "vllm-autotuner-sources"]
    file = tmp_path / "sources.yaml"
    file.write_text(given["data"]["sources.yaml"])
    at = Path("/etc/vllm-autotuner/sources")
    assert load_sources(file) == {
        "eu": PrometheusAddress(
            url="https://mimir.eu/prometheus",
            match=('cluster="eu"',),
            headers={"X-Scope-OrgID": "gpu"},
            bearer_token_file=at / "eu/bearer-token/token",
            ca_file=at / "eu/ca/ca.crt",
        ),
        "us": PrometheusAddress(
            url="https://us",
            username="reader",
            password_file=at / "us/basic/pw",
            client_cert=at / "us/client-certificate/tls.crt",
            client_key=at / "us/client-certificate/tls.key",
        ),
    }
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounted = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    assert len(mounted) == len(container["volumeMounts"])
    assert mounted["/etc/vllm-autotuner/bearer-token"]["secret"] == {"secretName": "own"}
    for folder in ("eu/bearer-token", "us/basic", "us/client-certificate"):
        assert mounted[f"{at}/{folder}"]["secret"] == {"secretName": "s"}
    assert mounted[f"{at}/eu/ca"]["configMap"] == {"name": "c"}
    assert mounted["/etc/vllm-autotuner/sources-file"]["configMap"] == {"name": "vllm-autotuner-sources"}
    assert "--prometheus-sources=/etc/vllm-autotuner/sources-file/sources.yaml" in container["args"]


def test_another_list_of_servers_restarts_the_operator(render: Render) -> None:
    def annotations(sources: dict[str, Any]) -> dict[str, str]:
        documents = render({"prometheus": {"url": "http://p", "sources": sources}})
        found: dict[str, str] = only(documents, "Deployment")["spec"]["template"]["metadata"]["annotations"]
        return found

    assert annotations({"eu": {"url": "http://eu"}}) != annotations({"eu": {"url": "http://eu:9090"}})
    assert "checksum/sources" not in annotations({})


def test_without_further_servers_there_is_no_file(render: Render) -> None:
    documents = render()
    assert not [each for each in operator(documents)["args"] if "sources" in each]
    assert only(documents, "ConfigMap")["metadata"]["name"] == "vllm-autotuner-limits"


def test_a_catalogue_is_a_file_that_is_mounted(render: Render) -> None:
    assert not any(argument.startswith("--catalogue") for argument in operator(render())["args"])
    documents = render({"catalogue": {"configMapName": "gpus", "key": "ours.yaml"}})
    container = operator(documents)
    assert "--catalogue=/etc/vllm-autotuner/catalogue/ours.yaml" in container["args"]
    assert {"name": "catalogue", "mountPath": "/etc/vllm-autotuner/catalogue", "readOnly": True} in container[
        "volumeMounts"
    ]
    volumes = only(documents, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "catalogue", "configMap": {"name": "gpus"}} in volumes


def test_the_pod_is_as_restricted_as_the_strictest_standard_asks(render: Render) -> None:
    documents = render()
    pod, container = only(documents, "Deployment")["spec"]["template"]["spec"], operator(documents)
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}\n" in (ROOT / "Dockerfile").read_text()
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"requests", "limits"} <= container["resources"].keys()
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


def servers(**sources: dict[str, Any]) -> dict[str, Any]:
    return {"prometheus": {"url": "http://p", "sources": sources}}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        pytest.param({"prometheus": {"url": ""}}, "url", id="no address"),
        pytest.param({"prometheus": {"url": "http://user:password@p"}}, "url", id="a password in the address"),
        pytest.param({"replica": 2}, "replica", id="a misspelt value"),
        pytest.param({"limits": {"modeCeiling": "automatic"}}, "modeCeiling", id="a mode that is none"),
        pytest.param({"concurrency": {"changes": None}}, "changes", id="no number of changes"),
        pytest.param({"concurrency": {"changes": 10**15}}, "changes", id="a number without a meaning"),
        pytest.param({"watchNamespaces": ["Prod"]}, "watchNamespaces", id="a namespace that cannot be"),
        pytest.param({"watchNamespaces": ["a\n--kill-switch"]}, "watchNamespaces", id="a flag in a namespace"),
        pytest.param({"concurrency": {"changes": "101%"}}, "changes", id="more than all"),
        pytest.param({"limits": {"killSwitch": "yes"}}, "killSwitch", id="a switch that is neither on nor off"),
        pytest.param({"rbac": {"readonly": True}}, "readonly", id="a switch that is spelt otherwise"),
        pytest.param({"rbac": {"readOnly": "yes"}}, "readOnly", id="one that is neither on nor off"),
        pytest.param({"interval": "15"}, "interval", id="an interval without a unit"),
        pytest.param(
            {
                "prometheus": {
                    "url": "http://p",
                    "bearerToken": {"secretName": "a"},
                    "basic": {"secretName": "b", "username": "u"},
                }
            },
            "not both",
            id="two ways to log in",
        ),
        pytest.param(
            {"prometheus": {"url": "http://p", "basic": {"secretName": "b"}}},
            "needs both",
            id="a password without a user",
        ),
        pytest.param(servers(eu={}), "url", id="a source without an address"),
        pytest.param(servers(eu={"url": "http://me:secret@p"}), "url", id="a source with a password in its address"),
        pytest.param(servers(EU={"url": "http://p"}), "EU", id="a name that no service can refer to"),
        pytest.param(servers(eu={"url": "http://p", "token": "x"}), "token", id="a misspelt value of a source"),
        pytest.param(
            servers(eu={"url": "http://p", "bearerToken": {"secretName": "a"}, "basic": {"secretName": "b"}}),
            "set prometheus.sources.eu.bearerToken.secretName or prometheus.sources.eu.basic.secretName, not both",
            id="two ways to log in to a source",
        ),
        pytest.param(
            servers(eu={"url": "http://p", "basic": {"username": "me"}}),
            "needs both prometheus.sources.eu.basic.username",
            id="a user without a password",
        ),
        pytest.param(
            {"prometheus": {"url": "http://p"}, "shards": 2, "web": {"enabled": True}},
            "web.enabled needs shards: 1",
            id="a page of a part of the fleet",
        ),
        pytest.param({"prometheus": {"url": "http://p"}, "shards": 0}, "shards", id="no shard at all"),
        pytest.param(
            {"prometheus": {"url": "http://p"}, "shards": 3, "concurrency": {"changes": 2}},
            "concurrency.changes: 2 is not one for each of 3 shards",
            id="fewer changes than shards",
        ),
        pytest.param(
            {"prometheus": {"url": "http://p"}, "shards": 3, "concurrency": {"extraGPUs": "2"}},
            "concurrency.extraGPUs: 2 is not one for each of 3 shards",
            id="fewer GPUs than shards",
        ),
        pytest.param(
            {"prometheus": {"url": "http://p"}, "interval": "1m"},
            "window (30s) must not be shorter than interval (1m)",
            id="a window shorter than the interval",
        ),
        pytest.param(
            {"prometheus": {"url": "http://p"}, "interval": "0s"}, "interval must be at least 1s", id="no interval"
        ),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], named: str) -> None:
    result = run_helm("template", "x", str(CHART), values=values)
    assert result.returncode != 0
    assert named in result.stderr


def test_every_value_is_in_the_schema_and_every_default_passes_it(render: Render) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert values.keys() | {"global"} == schema["properties"].keys()
    assert render(release="other")[0]["metadata"]["labels"]["app.kubernetes.io/instance"] == "other"


def test_the_versions_of_chart_and_package_are_the_same() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["appVersion"] == chart["version"] == package


@pytest.mark.parametrize("enabled", [True, False])
def test_the_web_page_is_off_until_it_is_asked_for(render: Render, enabled: bool) -> None:
    values = {"web": {"enabled": True}} if enabled else None
    assert ("--web" in operator(render(values))["args"]) is enabled


def test_each_shard_is_a_deployment_with_a_lease_of_its_own(render: Render) -> None:
    documents = render({"shards": 3})
    deployments = [each for each in documents if each["kind"] == "Deployment"]
    names = [each["metadata"]["name"] for each in deployments]
    assert names == ["vllm-autotuner-0", "vllm-autotuner-1", "vllm-autotuner-2"]
    for number, each in enumerate(deployments):
        template, selector = each["spec"]["template"], each["spec"]["selector"]["matchLabels"]
        assert f"--shard={number}/3" in template["spec"]["containers"][0]["args"]
        assert selector["vllm-autotuner.dev/shard"] == str(number)
        assert selector.items() <= template["metadata"]["labels"].items(), "it finds its own pods"
    leases = next(rule for rule in only(documents, "Role")["rules"] if "get" in rule["verbs"])
    assert leases["resourceNames"] == [Shard(number, 3).named("vllm-autotuner") for number in range(3)]


def test_one_shard_is_named_and_selected_as_before_there_were_any(render: Render) -> None:
    deployment = only(render(), "Deployment")
    assert deployment["metadata"]["name"] == "vllm-autotuner"
    assert deployment["spec"]["selector"]["matchLabels"].keys() == {
        "app.kubernetes.io/name",
        "app.kubernetes.io/instance",
    }
    assert not any(text.startswith("--shard") for text in operator(render())["args"])
