"""The generated CRD: structural, without drift, and every field explained."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import Field
from typer.testing import CliRunner

from vllm_autotuner.api import crd as generator
from vllm_autotuner.api.crd import NotStructural, crd, crd_yaml, structural_violations
from vllm_autotuner.api.model import ApiModel
from vllm_autotuner.cli.command_tree import app

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in node:
            yield from nodes(node[name], f"{path}.{name}")


def test_the_checked_in_file_is_what_the_models_say() -> None:
    assert (ROOT / "crds" / "vllmservices.yaml").read_text() == crd_yaml(), "run `vllm-autotuner crd`"


def test_the_command_prints_it() -> None:
    result = CliRunner().invoke(app, ["crd"])
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout) == crd()


def test_every_field_is_explained() -> None:
    unexplained = [
        path
        for path, node in nodes(SCHEMA)
        if path.startswith((".spec", ".status"))
        and not path.endswith((".items", ".additionalProperties"))
        and "description" not in node
    ]
    assert unexplained == []


def test_every_optional_field_of_the_spec_documents_its_default() -> None:
    undocumented = []
    for path, node in nodes(SCHEMA["properties"]["spec"]):
        if "podTemplate" in path or "items" in path.split("."):
            continue
        for name, child in node.get("properties", {}).items():
            optional = name not in node.get("required", ())
            one_of = "xactly one of" in child["description"] or "required with" in child["description"]
            is_group = "properties" in child and "Default" not in child["description"]
            if optional and not one_of and not is_group and "Default:" not in child["description"]:
                undocumented.append(f"{path}.{name}")
    assert undocumented == []


def test_the_api_server_writes_only_constants_of_the_api_into_objects() -> None:
    assert {path: node["default"] for path, node in nodes(SCHEMA) if "default" in node} == {
        ".spec.tuning": {},
        ".spec.tuning.mode": "Recommend",
        ".spec.deletionPolicy": "Retain",
    }


def test_conditions_merge_by_type() -> None:
    conditions = SCHEMA["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_the_pod_template_is_not_pruned() -> None:
    template = SCHEMA["properties"]["spec"]["properties"]["podTemplate"]
    spec = template["properties"]["spec"]
    for node in (template, spec, spec["properties"]["containers"]["items"], template["properties"]["metadata"]):
        assert node["x-kubernetes-preserve-unknown-fields"] is True


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        pytest.param({"description": "x"}, "no type", id="no type"),
        pytest.param({"type": "string", "title": "X"}, "outside the structural subset", id="a title"),
        pytest.param({"type": "array"}, "without items", id="an array of anything"),
        pytest.param({"type": "object"}, "lose every field", id="an object that is pruned to nothing"),
        pytest.param({"type": "object", "properties": {}, "required": ["a"]}, "unknown fields", id="a ghost"),
    ],
)
def test_the_self_check_notices(schema: dict[str, Any], named: str) -> None:
    assert any(named in violation for violation in structural_violations(schema, ".spec"))


def test_a_model_without_a_structural_schema_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Either(ApiModel):
        port: int | str = Field(description="A choice between types.")

    monkeypatch.setattr(generator, "VLLMServiceSpec", Either)
    with pytest.raises(NotStructural, match="port"):
        crd()
