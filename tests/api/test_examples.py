"""Every example is valid, and has the mode that its name says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.api.spec import Mode

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> VLLMService:
    raw: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    raw["metadata"]["namespace"] = "default"
    parsed = parse_service(raw)
    assert isinstance(parsed, VLLMService), parsed
    return parsed


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("recommend.yaml", Mode.RECOMMEND),
        ("automatic.yaml", Mode.AUTOMATIC),
        ("autoscale.yaml", Mode.AUTOMATIC),
        ("adopt.yaml", Mode.RECOMMEND),
    ],
)
def test_is_valid(name: str, mode: Mode) -> None:
    assert example(name).spec.tuning.mode is mode


def test_none_is_left_out() -> None:
    for path in EXAMPLES.glob("*.yaml"):
        example(path.name)


def test_the_automatic_one_may_change_something_and_the_autoscaled_one_scales() -> None:
    assert example("automatic.yaml").spec.tuning.max_num_seqs is not None
    assert example("autoscale.yaml").spec.scaling is not None
    assert example("adopt.yaml").spec.target_ref is not None


def test_no_two_share_a_name() -> None:
    names = [example(path.name).key for path in EXAMPLES.glob("*.yaml")]
    assert len(names) == len(set(names))
