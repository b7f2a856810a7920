"""A recommendation as a patch: what it says is what status says, and the result is what the API takes."""

from typing import Any

import pytest
import yaml
from tests.control.adopting_bed import theirs
from tests.workload.services import service
from typer.testing import CliRunner

from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.service.patch import PatchFormat, export_text

ADVICE = {
    "id": "abcd1234", "knob": "maxNumSeqs", "current": "64", "recommended": "128",
    "limitedBy": "TPOT knee", "reason": "All 64 seats are taken. Really.",
}  # fmt: skip
SCALED: dict[str, Any] = {"replicas": ..., "scaling": {"minReplicas": 1, "maxReplicas": 8}}


def given(spec: dict[str, Any] | None = None, /, **advice: Any) -> VLLMService:
    return service(spec or {}, status={"recommendation": {**ADVICE, **advice}})


@pytest.mark.parametrize(
    ("advice", "spec", "patch"),
    [
        ({}, {}, {"engine": {"maxNumSeqs": 128}}),
        ({"knob": "kvCacheDtype", "recommended": "fp8"}, {}, {"engine": {"kvCacheDtype": "fp8"}}),
        ({"knob": "tensorParallelSize", "recommended": "4"}, {}, {"engine": {"tensorParallelSize": 4}}),
        (
            {"knob": "tensorParallelSize", "recommended": "1", "maxModelLen": 8192, "maxNumSeqs": 174},
            {},
            {"engine": {"tensorParallelSize": 1, "maxModelLen": 8192, "maxNumSeqs": 174}},
        ),
        ({"knob": "maxModelLen", "recommended": "8192"}, {}, {"engine": {"maxModelLen": 8192}}),
        ({"knob": "replicas", "recommended": "3"}, {}, {"replicas": 3}),
        ({"knob": "replicas", "recommended": "3"}, SCALED, {"scaling": {"minReplicas": 3}}),
    ],
)
def test_each_knob_goes_where_it_is_written(
    advice: dict[str, Any], spec: dict[str, Any], patch: dict[str, Any]
) -> None:
    found = yaml.safe_load(export_text(given(spec, **advice), form=PatchFormat.STRATEGIC))
    assert (found["kind"], found["spec"]) == ("VLLMService", patch)
    assert set(patch) <= {each.alias or name for name, each in VLLMServiceSpec.model_fields.items()}


def test_the_reason_stands_above_it() -> None:
    text = export_text(given(), form=PatchFormat.STRATEGIC)
    assert text.startswith("# maxNumSeqs 64 -> 128, limited by TPOT knee (recommendation abcd1234).\n# All 64 seats")
    assert "# kubectl patch vllm" in text


def test_a_kustomization_holds_the_same_patch() -> None:
    found = yaml.safe_load(export_text(given(), form=PatchFormat.KUSTOMIZE))
    [patch] = found["patches"]
    assert patch["target"]["kind"] == "VLLMService"
    assert yaml.safe_load(patch["patch"]) == yaml.safe_load(export_text(given(), form=PatchFormat.STRATEGIC))


def test_helm_values_under_the_keys_of_the_users_chart() -> None:
    found = yaml.safe_load(export_text(given(), form=PatchFormat.HELM, values_key="services.chat"))
    assert found == {"services": {"chat": {"engine": {"maxNumSeqs": 128}}}}
    assert yaml.safe_load(export_text(given(), form=PatchFormat.HELM)) == {"engine": {"maxNumSeqs": 128}}


def adopted(**container: Any) -> dict[str, Any]:
    found = theirs()
    found["spec"]["template"]["spec"]["containers"][0].update(container)
    return found


def test_an_adopted_deployment_gets_the_whole_list_of_its_flags() -> None:
    text = export_text(given(), form=PatchFormat.STRATEGIC, deployment=adopted())
    found = yaml.safe_load(text)
    assert (found["apiVersion"], found["kind"], found["metadata"]["name"]) == ("apps/v1", "Deployment", "theirs")
    [container] = found["spec"]["template"]["spec"]["containers"]
    wanted = ["Qwen/Qwen3-0.6B", "--seed", "1", "--max-num-seqs", "128", "--enable-prefix-caching"]
    assert container == {"name": "server", "args": wanted}
    assert "# kubectl patch deployment theirs -n prod --patch-file FILE" in text


def test_an_adopted_deployment_gets_the_shorter_length_that_goes_with_a_smaller_size() -> None:
    advice = given(knob="tensorParallelSize", recommended="1", maxModelLen=8192)
    found = yaml.safe_load(export_text(advice, form=PatchFormat.STRATEGIC, deployment=adopted()))
    [container] = found["spec"]["template"]["spec"]["containers"]
    flags = " ".join(container["args"]).replace("=", " ")
    assert "--max-model-len 8192" in flags
    assert "--tensor-parallel-size 1" in flags


def test_an_adopted_deployment_in_a_kustomization_and_in_helm_values() -> None:
    [patch] = yaml.safe_load(export_text(given(), form=PatchFormat.KUSTOMIZE, deployment=adopted()))["patches"]
    assert (patch["target"]["group"], patch["target"]["kind"]) == ("apps", "Deployment")
    command = {"command": ["vllm", "serve", "m"], "args": []}
    text = export_text(given(), form=PatchFormat.HELM, values_key="engine", deployment=adopted(**command))
    assert yaml.safe_load(text) == {"engine": {"args": ["--max-num-seqs=128"]}}
    assert "where your chart keeps the container's args" in text


def test_the_replicas_of_an_adopted_deployment() -> None:
    found = export_text(given(None, knob="replicas", recommended="3"), form=PatchFormat.STRATEGIC, deployment=adopted())
    assert yaml.safe_load(found)["spec"] == {"replicas": 3}


def test_a_hostile_length_is_no_patch() -> None:
    advice = given(knob="tensorParallelSize", recommended="1", maxModelLen=-1)
    with pytest.raises(CommandError, match="was edited"):
        export_text(advice, form=PatchFormat.STRATEGIC, deployment=adopted())


@pytest.mark.parametrize(
    ("container", "says"),
    [
        ({"image": "nginx", "args": []}, "no container of Deployment theirs runs vLLM"),
        ({"command": ["sh", "-c", "a; vllm serve m"], "args": []}, "does more than start the engine"),
    ],
)
def test_a_deployment_that_cannot_be_patched_is_no_patch(container: dict[str, Any], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        export_text(given(), form=PatchFormat.STRATEGIC, deployment=adopted(**container))


@pytest.mark.parametrize(
    ("advice", "key", "says"),
    [
        ({"knob": "speed"}, "", "about speed, which this version does not support"),
        ({"recommended": "many"}, "", "'many' is not a number"),
        ({"recommended": "9" * 5000}, "", "is not a number"),
        ({}, "a..b", "write keys separated by dots"),
    ],
)
def test_an_edited_status_is_no_patch(advice: dict[str, str], key: str, says: str) -> None:
    with pytest.raises(CommandError, match=says.replace(".", "[.]")):
        export_text(given(None, **advice), form=PatchFormat.HELM, values_key=key)


def test_without_a_recommendation_there_is_nothing_to_commit() -> None:
    with pytest.raises(CommandError, match="no recommendation: see `vllm-autotuner explain chat -n prod`"):
        export_text(service({}), form=PatchFormat.STRATEGIC)


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["chat", "--format", "toml"], 1, "toml"),
        (["chat", "--values-key", "a"], 1, "--values-key needs --format helm"),
        ([], 1, "Missing argument"),
        (
            ["chat", "--kubeconfig", "/no/such"],
            1,
            "no kubeconfig: /no/such does not exist or is empty; use --kubeconfig FILE",
        ),
    ],
)
def test_wrong_questions(args: list[str], code: int, says: str) -> None:
    found = CliRunner().invoke(app, ["export", *args])
    assert (found.exit_code, says in found.stderr) == (code, True), found.stderr
