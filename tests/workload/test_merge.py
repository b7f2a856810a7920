"""The documented merge of pod templates."""

from typing import Any

import pytest

from vllm_autotuner.workload.merge import merged


@pytest.mark.parametrize(
    ("base", "overlay", "expected"),
    [
        pytest.param({"a": 1}, {"b": 2}, {"a": 1, "b": 2}, id="new fields are added"),
        pytest.param({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}, id="maps merge"),
        pytest.param({"a": {"b": 1}}, {"a": None}, {}, id="an explicit null removes"),
        pytest.param({"a": [1]}, {"a": [2]}, {"a": [2]}, id="other lists are replaced"),
        pytest.param(
            {"env": [{"name": "A", "value": "1"}, {"name": "B"}]},
            {"env": [{"name": "C"}, {"name": "A", "value": "2"}]},
            {"env": [{"name": "A", "value": "2"}, {"name": "B"}, {"name": "C"}]},
            id="named things merge in place, others follow",
        ),
        pytest.param(
            {"volumeMounts": [{"mountPath": "/a", "name": "x"}]},
            {"volumeMounts": [{"mountPath": "/b", "name": "x"}]},
            {"volumeMounts": [{"mountPath": "/a", "name": "x"}, {"mountPath": "/b", "name": "x"}]},
            id="mounts are told apart by path",
        ),
        pytest.param({"env": [{"name": "A"}]}, {"env": ["A"]}, {"env": [{"name": "A"}, "A"]}, id="nonsense passes on"),
        pytest.param({"env": [{"name": "A"}]}, {"env": [{}]}, {"env": [{"name": "A"}, {}]}, id="a nameless item"),
        pytest.param({"a": {"b": 1}}, {"a": "text"}, {"a": "text"}, id="another type replaces"),
    ],
)
def test_merges(base: dict[str, Any], overlay: dict[str, Any], expected: dict[str, Any]) -> None:
    assert merged(base, overlay) == expected


def test_neither_side_is_changed() -> None:
    base = {"a": {"b": 1}, "env": [{"name": "A"}]}
    merged(base, {"a": {"c": 2}, "env": [{"name": "A", "value": "1"}]})
    assert base == {"a": {"b": 1}, "env": [{"name": "A"}]}
