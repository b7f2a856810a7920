"""The base class of all API models, and validation rules that run in Python and, as CEL, in the API server.

Both forms of a rule share one message, so that `kubectl apply` and the operator report the same. Checks that need more
than the object itself (GPU counts, model geometry) are not rules but conditions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, TypeAdapter, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from typing_extensions import override

VALIDATIONS: Final = "x-kubernetes-validations"

PUBLISHED_DEFAULT: Final = "x-published-default"
"""Marks a default that the API server writes into the user's object. Only for defaults that will never change; every
other default stays in Python, where an upgrade can change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule over the fields of one object; the message says what to write instead."""

    cel: str
    """The rule for the API server, over `self`. Every field it uses needs a maximum length (CEL cost)."""

    message: str
    holds: Callable[[Any], bool]
    """The same rule in Python, over the model."""


@lru_cache(maxsize=1_000)
def _shared(written: frozenset[str]) -> set[str]:
    """One set for all objects in which the same fields are written."""
    return set(written)


class ApiModel(BaseModel):
    """Frozen, camelCase on the wire, snake_case in Python; unknown fields of a newer CRD are ignored."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Self:
        broken = [rule.message for rule in self.rules if not rule.holds(self)]
        if broken:
            raise ValueError("; ".join(broken))
        # pydantic gives each object a set of its own, which takes more memory than the fields; `model_copy` copies it.
        object.__setattr__(self, "__pydantic_fields_set__", _shared(frozenset(self.model_fields_set)))
        return self

    def updated(self, **changes: Any) -> Self:
        """Return a copy with these fields replaced, each validated as on parsing: lists and texts are cut to size.

        Field names and types are checked by mypy (`tools/mypy_updated_fields.py`). Raises TypeError for an unknown
        field, ValueError for a value that the API server would reject.
        """
        fields = _field_validators(type(self))
        if unknown := changes.keys() - fields.keys():
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        return self.model_copy(update={name: fields[name].validate_python(value) for name, value in changes.items()})

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rules to the JSON schema, where `api.crd` finds them."""
        schema = handler(core_schema)
        if cls.rules:
            handler.resolve_ref_schema(schema)[VALIDATIONS] = [
                {"rule": rule.cel, "message": rule.message} for rule in cls.rules
            ]
        return schema


@cache
def _field_validators(model: type[ApiModel]) -> dict[str, TypeAdapter[Any]]:
    validators = dict[str, TypeAdapter[Any]]()
    for name, field in model.model_fields.items():
        kind: Any = Annotated[field.annotation, *field.metadata, None]
        validators[name] = TypeAdapter(kind)
    return validators


def to_wire(model: BaseModel) -> dict[str, Any]:
    """Return the object as the API server stores it: camelCase, plain JSON values, absent instead of null.

    For full replacements only: in a merge patch an absent key would keep the old value.
    """
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
