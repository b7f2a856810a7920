"""The table of valid and invalid objects, against the models."""

from datetime import timedelta

import pytest
from tests.api.cases import CASES, SMALLEST, Case, changed

from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.service import InvalidReason, InvalidService, VLLMService, parse_service
from vllm_autotuner.api.spec import DeletionPolicy, Mode, VLLMServiceSpec


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_models_give_the_same_answer_as_the_api_server(case: Case) -> None:
    parsed = parse_service(case.manifest("prod"))
    if case.refused is None:
        assert isinstance(parsed, VLLMService), parsed
    else:
        assert isinstance(parsed, InvalidService)
        assert parsed.reason is InvalidReason.SPEC
        assert case.refused.lower() in parsed.message.lower()


def test_the_table_is_as_wide_as_promised_and_names_each_case_once() -> None:
    assert len(CASES) >= 40
    assert len({case.id for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", [case for case in CASES if case.refused is None], ids=lambda case: case.id)
def test_an_accepted_spec_survives_the_wire(case: Case) -> None:
    spec = VLLMServiceSpec.model_validate(case.manifest("prod")["spec"])
    assert VLLMServiceSpec.model_validate(to_wire(spec)) == spec


def test_no_field_of_the_complete_object_is_ignored() -> None:
    complete = next(case for case in CASES if case.id == "every field").manifest("prod")["spec"]
    read = VLLMServiceSpec.model_validate(complete)
    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True) == complete


def test_what_is_left_out_has_its_documented_default() -> None:
    spec = VLLMServiceSpec.model_validate(dict(SMALLEST))
    assert spec.tuning.mode is Mode.RECOMMEND
    assert spec.tuning.cooldown == timedelta(hours=6)
    assert spec.tuning.strategy.warm_up == timedelta(seconds=60)
    assert spec.deletion_policy is DeletionPolicy.RETAIN
    assert spec.engine is not None
    assert spec.engine.max_num_seqs is None
    assert not spec.paused


def test_a_refusal_names_the_field_and_every_fault() -> None:
    spec = changed(SMALLEST, {"engine.args": ["--seed=1", "-tp=2"], "tuning.cooldown": "soon"})
    refused = parse_service({"metadata": {"name": "chat", "namespace": "prod"}, "spec": spec})
    assert isinstance(refused, InvalidService)
    assert "spec.engine.args[1]: use spec.engine.tensorParallelSize" in refused.message
    assert "spec.tuning.cooldown: write a positive duration" in refused.message


def test_the_spec_cannot_be_written() -> None:
    spec = VLLMServiceSpec.model_validate(dict(SMALLEST))
    with pytest.raises(ValueError, match="frozen"):
        spec.replicas = 2  # type: ignore[misc]
