"""Health check and actions for Argo CD, run by Lua 5.1 as its own interpreter does.

The folder has the layout of Argo CD's resource customizations, its tests included.
"""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from lupa import lua51

from docs import argocd_cm
from vllm_autotuner.api.annotations import APPROVE, PAUSE, REJECT, RETRY, ROLLBACK
from vllm_autotuner.api.service import API_VERSION, KIND

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "gitops" / "argocd" / API_VERSION.partition("/")[0] / KIND
CASES: Final = yaml.safe_load((FOLDER / "health_test.yaml").read_text(encoding="utf-8"))["tests"]
ACTIONS: Final = sorted(path.parent.name for path in FOLDER.glob("actions/*/action.lua"))


def run(script: str, body: dict[str, Any]) -> Any:
    """Run a script on an object, and return plain data."""
    runtime = lua51.LuaRuntime(unpack_returned_tuples=True)
    runtime.globals().obj = runtime.table_from(body, recursive=True)
    return plain(runtime.execute((FOLDER / script).read_text(encoding="utf-8")))


def plain(value: Any) -> Any:
    if lua51.lua_type(value) != "table":
        return value
    keys = list(value)
    if keys and keys == list(range(1, len(keys) + 1)):
        return [plain(value[key]) for key in keys]
    return {key: plain(value[key]) for key in keys}


def load(name: str) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load((FOLDER / "testdata" / f"{name}.yaml").read_text(encoding="utf-8"))
    return body


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["inputPath"])
def test_health(case: dict[str, Any]) -> None:
    body = yaml.safe_load((FOLDER / case["inputPath"]).read_text(encoding="utf-8"))
    assert run("health.lua", body) == case["healthStatus"]


def test_the_configmap_has_these_scripts() -> None:
    assert argocd_cm.PATCH.read_text(encoding="utf-8") == argocd_cm.patch()
    data = yaml.safe_load(argocd_cm.patch())["data"]
    kind = f"{API_VERSION.partition('/')[0]}_{KIND}"
    assert data[f"resource.customizations.health.{kind}"] == (FOLDER / "health.lua").read_text(encoding="utf-8")
    actions = yaml.safe_load(data[f"resource.customizations.actions.{kind}"])
    assert [each["name"] for each in actions["definitions"]] == ACTIONS


def test_every_object_has_its_case() -> None:
    assert {each["inputPath"] for each in CASES} == {f"testdata/{path.name}" for path in FOLDER.glob("testdata/*")}


def enabled(body: dict[str, Any]) -> set[str]:
    return {name for name, action in run("actions/discovery.lua", body).items() if not action["disabled"]}


def test_each_listed_action_is_there() -> None:
    assert sorted(run("actions/discovery.lua", load("recommending"))) == ACTIONS


def test_an_action_is_offered_where_it_has_an_effect() -> None:
    assert enabled(load("recommending")) == {"approve", "reject", "pause", "retry"}
    assert enabled(load("changing")) == {"rollback", "pause", "retry"}
    assert enabled(load("rollback-failed")) == {"rollback", "pause", "retry"}
    assert enabled(load("new")) == {"pause", "retry"}
    recommends = load("recommending")
    recommends["spec"]["tuning"]["mode"] = "Recommend"
    assert "approve" not in enabled(recommends)
    paused = load("recommending")
    paused["metadata"]["annotations"] = {PAUSE: "true"}
    assert {"pause", "resume"} & enabled(paused) == {"resume"}


@pytest.mark.parametrize(
    ("name", "key", "value"), [("approve", APPROVE, "r1"), ("reject", REJECT, "r1"), ("pause", PAUSE, "true")]
)
def test_an_action_sets_its_annotation_and_nothing_else(name: str, key: str, value: str) -> None:
    body = load("recommending")
    after = run(f"actions/{name}/action.lua", body)
    assert after["metadata"].pop("annotations") == {key: value}
    assert after == body


@pytest.mark.parametrize(("name", "key"), [("rollback", ROLLBACK), ("retry", RETRY)])
def test_a_request_is_a_new_value_beside_what_others_wrote(name: str, key: str) -> None:
    body = load("changing")
    body["metadata"]["annotations"] = {"a": "b", key: "before"}
    found = run(f"actions/{name}/action.lua", body)["metadata"]["annotations"]
    assert found["a"] == "b"
    assert found[key] != "before"


def test_resume_removes_the_pause() -> None:
    body = load("changing")
    body["metadata"]["annotations"] = {"a": "b", PAUSE: "true"}
    assert run("actions/resume/action.lua", body)["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.parametrize("name", ["approve", "reject"])
def test_what_is_gone_is_not_approved(name: str) -> None:
    with pytest.raises(lua51.LuaError, match="there is no recommendation"):
        run(f"actions/{name}/action.lua", load("changing"))
