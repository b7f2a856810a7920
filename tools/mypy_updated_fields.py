"""A mypy plugin: `ApiModel.updated` takes the fields of its model, so that a misspelt or mistyped one is a type error.

Apart from `pydantic.mypy`, which types constructors only and tells which fields a model has.
"""

from collections.abc import Callable

from mypy.nodes import ARG_NAMED_OPT
from mypy.plugin import MethodSigContext, Plugin
from mypy.types import FunctionLike, Instance, get_proper_type

UPDATED = ".updated"


class _UpdatedFields(Plugin):
    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        return _fields_of_the_model if fullname.endswith(UPDATED) else None


def _fields_of_the_model(context: MethodSigContext) -> FunctionLike:
    signature, model = context.default_signature, get_proper_type(context.type)
    is_ours = isinstance(model, Instance) and model.type.has_base("vllm_autotuner.api.model.ApiModel")
    if not isinstance(model, Instance) or not is_ours:
        return signature
    names = model.type.metadata.get("pydantic-mypy-metadata", {}).get("fields", {})
    fields = [(name, found.type) for name in names if (found := model.type.get(name)) is not None and found.type]
    return signature.copy_modified(
        arg_names=[name for name, _ in fields],
        arg_types=[kind for _, kind in fields],
        arg_kinds=[ARG_NAMED_OPT] * len(fields),
    )


def plugin(version: str) -> type[Plugin]:
    """Return the plugin for this mypy."""
    return _UpdatedFields
