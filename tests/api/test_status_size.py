"""A status is written with 64 KB at most, with every list at its end and every text at its longest."""

import copy
import json
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import pytest
from pydantic import AwareDatetime, BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from vllm_autotuner.api.change_records import MEASUREMENTS_LENGTH
from vllm_autotuner.api.crd import crd
from vllm_autotuner.api.model import to_wire
from vllm_autotuner.api.status import VLLMServiceStatus, parse_status
from vllm_autotuner.api.status_size import READ_BY_PEOPLE, fitted
from vllm_autotuner.budgets import STATUS_BYTES

NAME: Final = 40
"""Characters of a text without a limit of its own. Our choice: ids, hashes, constants and units are shorter."""
MOMENT: Final = datetime(2026, 11, 23, 13, 59, 59, 999_999, tzinfo=UTC)
NUMBER: Final = 12345.678901234567
OFFERED: Final = 100_000
"""Characters that are offered to every text."""
EVERY_LIST: Final = 40
"""Entries that are offered to every list, which keeps as many as it may."""


def longest(field: Any, metadata: tuple[Any, ...] = ()) -> Any:
    """The longest value of a type: a text that is cut to its limit, a list that is cut to its length."""
    origin = get_origin(field)
    if hasattr(field, "__metadata__"):
        return longest(field.__origin__, (*metadata, *field.__metadata__))
    if origin in (Union, UnionType):
        return longest(next(each for each in get_args(field) if each is not NoneType), metadata)
    if origin is tuple:
        return [longest(get_args(field)[0])] * EVERY_LIST
    if isinstance(field, type):
        if issubclass(field, BaseModel):
            return filled(field)
        if issubclass(field, bool):
            return False
        if issubclass(field, Enum):
            return max((each.value for each in field), key=lambda value: len(str(value)))
        if field is AwareDatetime or issubclass(field, datetime):
            return MOMENT
        if issubclass(field, int):
            return bounded(metadata, 1_000_000)
        if issubclass(field, float):
            return NUMBER
        if issubclass(field, str):
            return longest_text(metadata)
    raise AssertionError(f"no longest value is known of {field}")


def bounded(metadata: tuple[Any, ...], value: int) -> int:
    for each in metadata:
        for part in each.metadata if isinstance(each, FieldInfo) else [each]:
            value = min(value, getattr(part, "le", value))
    return value


def longest_text(metadata: tuple[Any, ...]) -> str:
    """As long as the type lets it be, or a name where that is without a limit."""
    if not metadata:
        return "x" * NAME
    adapter = TypeAdapter(Annotated[(str, *metadata)])
    for length in (OFFERED, 256, 64, 32, 16):
        with suppress(ValidationError):
            taken = str(adapter.validate_python("x" * length))
            return taken if len(taken) < OFFERED else "x" * NAME
    raise AssertionError(f"no text fits {metadata}")


def filled(model: type[BaseModel]) -> dict[str, Any]:
    """An object with every field of the model at its longest."""
    return {
        field.alias or name: longest(field.annotation, tuple(field.metadata))
        for name, field in model.model_fields.items()
    }


def lists_below_their_length(schema: dict[str, Any], value: Any, path: str = "status") -> list[str]:
    """The lists of a value that have fewer entries than the CRD allows."""
    found = []
    if schema.get("type") == "array":
        if len(value) != schema["maxItems"]:
            found.append(f"{path}: {len(value)} of {schema['maxItems']}")
        found += [each for one in value[-1:] for each in lists_below_their_length(schema["items"], one, f"{path}[]")]
    for name, child in schema.get("properties", {}).items():
        if name not in value:
            found.append(f"{path}.{name} is absent")
        else:
            found += lists_below_their_length(child, value[name], f"{path}.{name}")
    return found


@pytest.fixture(scope="module")
def largest() -> dict[str, Any]:
    status: dict[str, Any] = to_wire(VLLMServiceStatus.model_validate(filled(VLLMServiceStatus)))
    return status


def test_the_largest_status_is_the_largest(largest: dict[str, Any]) -> None:
    (version,) = crd()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert lists_below_their_length(schema, largest) == []


def test_the_largest_status_is_written_small(largest: dict[str, Any]) -> None:
    assert len(json.dumps(largest)) > STATUS_BYTES.limit, "there is nothing to fit"
    before = json.dumps(largest)
    written = fitted(largest)
    assert len(json.dumps(written, separators=(",", ":"))) <= STATUS_BYTES.limit
    assert json.dumps(largest) == before
    assert fitted(written) == written, "what was written would be written again and again"
    assert to_wire(parse_status(written)) == written


def test_the_trial_of_a_change_is_written_whole_until_it_bakes(largest: dict[str, Any]) -> None:
    analyzing = copy.deepcopy(largest)
    del analyzing["activeChange"]["bake"]
    written = fitted(analyzing)
    assert len(json.dumps(written, separators=(",", ":"))) <= STATUS_BYTES.limit
    assert written["activeChange"]["analysis"] == analyzing["activeChange"]["analysis"]


def test_what_decisions_depend_on_is_never_dropped(largest: dict[str, Any]) -> None:
    """Or an untried value would come back, a change would lose its way, or a limit its count."""
    largest = copy.deepcopy(largest)
    written = fitted(largest)

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: bare(child) for name, child in value.items() if name not in READ_BY_PEOPLE}
        return [bare(each) for each in value] if isinstance(value, list) else value

    # While a change bakes, what its trial measured is read no further back than this.
    for side in ("last", "reference"):
        kept = written["activeChange"]["analysis"].pop(side)
        assert kept == largest["activeChange"]["analysis"].pop(side)[-MEASUREMENTS_LENGTH:]
    for name in (
        *("activeChange", "failureMemory", "circuit", "budget", "cooldownUntil", "queuedSince", "contest", "effective"),
        *("lastKnownGood", "rollbackFailed", "scaleIns", "handledRequests", "untold", "conditions"),
    ):
        assert bare(written[name]) == bare(largest[name]), name
    assert bare(written["history"][-1])["id"] == bare(largest["history"][-1])["id"]


def test_a_status_of_a_usual_size_is_written_as_it_is(largest: dict[str, Any]) -> None:
    many = ("history", "conditions", "activeChange", "gpuSteps")
    usual = {name: value for name, value in largest.items() if name not in many}
    assert fitted(usual) is usual
