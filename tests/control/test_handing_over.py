"""What people are told to paste: complete within a condition, and readable by the tool it is for."""

import re

import pytest
import yaml
from tests.control.adopting_bed import theirs

from vllm_autotuner.api.fields import MESSAGE_MAX_LENGTH
from vllm_autotuner.control.read.handover_instructions import flags_elsewhere, replicas_elsewhere
from vllm_autotuner.workload.adoption import Target, read_target

TOOLS = [
    "argocd-controller",
    "argocd-application-controller",
    "kustomize-controller",
    "helm",
    "helm-controller",
    "kubectl-client-side-apply",
    "kubectl",
    "InferenceService chat",
]


def target(name: str = "theirs", container: str = "server") -> Target:
    body = theirs(metadata__name=name)
    first = body["spec"]["template"]["spec"]["containers"][0]
    first["name"] = container
    body["spec"]["template"]["spec"]["containers"].insert(0, {"name": "proxy", "image": "envoy"})
    found = read_target(body)
    assert isinstance(found, Target)
    return found


@pytest.mark.parametrize("tool", TOOLS)
def test_a_message_names_the_owner_and_fits_into_a_condition(tool: str) -> None:
    text = flags_elsewhere(target(name="n" * 63, container="c" * 63), (tool, "another"))
    assert text.startswith(f"{tool}, another declares args of Deployment n")
    assert text.endswith("vllm-autotuner.dev/flags=tuned")
    assert len(text) <= MESSAGE_MAX_LENGTH


def test_the_snippet_for_argo_cd_is_yaml_that_names_the_list() -> None:
    text = flags_elsewhere(target(), ("argocd-controller",))
    found = re.search(r"(ignoreDifferences: .*?) and (syncPolicy: .*?}})?", text)
    assert found is not None
    [difference] = yaml.safe_load(found[1])["ignoreDifferences"]
    assert (difference["group"], difference["kind"], difference["name"]) == ("apps", "Deployment", "theirs")
    assert difference["jqPathExpressions"] == ['.spec.template.spec.containers[] | select(.name == "server") | .args']
    options = re.search(r"syncOptions: (\[.*?\])", text)
    assert options is not None
    assert yaml.safe_load(options[1]) == ["RespectIgnoreDifferences=true", "ServerSideApply=true"]


@pytest.mark.parametrize(("tool", "key"), [("kustomize-controller", "ignore"), ("helm-controller", "ignore")])
def test_the_snippets_for_flux_are_yaml_that_points_to_the_list(tool: str, key: str) -> None:
    found = re.search(rf"{key}: (\[{{.*?}}}}\])", flags_elsewhere(target(), (tool,)))
    assert found is not None
    assert yaml.safe_load(found[1]) == [
        {"paths": ["/spec/template/spec/containers/1/args"], "target": {"kind": "Deployment", "name": "theirs"}}
    ]


def test_whoever_sets_the_replicas_is_named() -> None:
    text = replicas_elsewhere(["HorizontalPodAutoscaler hpa"])
    assert text.startswith("the replicas of the Deployment are set by HorizontalPodAutoscaler hpa")
