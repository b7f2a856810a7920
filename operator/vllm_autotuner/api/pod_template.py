"""The model of `spec.podTemplate`: a partial Kubernetes pod template that is merged into the rendered pods.

Kubernetes validates it when the Deployment is created; this file only rejects fields that conflict with the rendering,
and templates whose size or depth no pod needs: a schema that passes fields through can bound neither.
"""

import json
from typing import Annotated, Any, ClassVar, Final

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vllm_autotuner.api.model import ApiModel, Rule
from vllm_autotuner.budgets import POD_TEMPLATE_BYTES, POD_TEMPLATE_DEPTH

PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"

MOST_FIELDS: Final = 64
"""Fields of one object of a template; a pod spec has 40. The one limit that the schema of the CRD can express."""

ENGINE_CONTAINER: Final = "vllm"
"""Name of the engine's container, to which a pod template adds env, volume mounts and resources."""

TOO_LARGE: Final = f"larger than {POD_TEMPLATE_BYTES.limit // 1024} KiB of JSON; shorten it, or use a ConfigMap"
TOO_DEEP: Final = f"nested deeper than {POD_TEMPLATE_DEPTH.limit} levels, which no pod template is"
NO_OBJECT: Final = "write an object with metadata and spec, as in a Deployment's template"


def refusal(template: object) -> str:
    """Return why a pod template is not read at all; empty when it is.

    A text in its place is such a reason already, of the reader that has cut it out.
    """
    if isinstance(template, str):
        return template if template in (TOO_LARGE, TOO_DEEP, NO_OBJECT) else NO_OBJECT
    if _is_deeper(template, than=POD_TEMPLATE_DEPTH.limit):
        POD_TEMPLATE_DEPTH.exceeded()
        return TOO_DEEP
    if len(json.dumps(template, separators=(",", ":"), ensure_ascii=False)) > POD_TEMPLATE_BYTES.limit:
        POD_TEMPLATE_BYTES.exceeded()
        return TOO_LARGE
    return ""


def _is_deeper(value: object, *, than: int) -> bool:
    level = [value]
    for _ in range(than):
        inside = [each for each in level if isinstance(each, dict | list)]
        level = [part for each in inside for part in (each.values() if isinstance(each, dict) else each)]
    return any(isinstance(each, dict | list) for each in level)


class _PassedThrough(ApiModel):
    """An object whose undeclared fields are passed through unchanged."""

    model_config = ConfigDict(extra="allow", json_schema_extra={PRESERVE: True, "maxProperties": MOST_FIELDS})

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keep explicit nulls, which remove rendered fields, but drop those of absent declared fields."""
        declared = type(self).model_fields
        return {name: value for name, value in handler(self).items() if value is not None or name not in declared}


class TemplateMetadata(_PassedThrough):
    """Labels and annotations of the pods."""

    labels: Annotated[dict[str, str], Field(max_length=64)] | None = None
    """Additional labels; the operator's selector labels take precedence."""

    annotations: Annotated[dict[str, str], Field(max_length=64)] | None = None
    """Additional annotations; the operator's own take precedence."""


class TemplateContainer(_PassedThrough):
    """A container: `vllm` is merged into the engine's container, any other name is a sidecar."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """The name, by which containers are merged."""

    image: Annotated[str, Field(max_length=512)] | None = None
    """Image of a sidecar; the engine's is spec.engine.image."""

    command: Annotated[tuple[Annotated[str, Field(max_length=65536)], ...], Field(max_length=256)] | None = None
    """Command of a sidecar; the engine's is spec.engine.command."""

    args: Annotated[tuple[Annotated[str, Field(max_length=65536)], ...], Field(max_length=256)] | None = None
    """Arguments of a sidecar; the engine's are spec.engine.args."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"self.name != '{ENGINE_CONTAINER}' || !(has(self.image) || has(self.command) || has(self.args))",
            message="use spec.engine.image and spec.engine.args (or spec.engine.command) for the container vllm, "
            "not image, command or args in the pod template",
            holds=lambda container: (
                container.name != ENGINE_CONTAINER
                or (container.image is None and container.command is None and container.args is None)
            ),
        ),
    )


class TemplateSpec(_PassedThrough):
    """A pod spec; named lists (containers, volumes, env) are merged by name."""

    containers: Annotated[tuple[TemplateContainer, ...], Field(max_length=16)] | None = None
    """Additions to the container `vllm`, and sidecars."""


class PodTemplate(_PassedThrough):
    """Metadata and spec that are merged into the rendered pods."""

    metadata: TemplateMetadata | None = None
    """Labels and annotations."""

    spec: TemplateSpec | None = None
    """Any field of a pod spec."""

    @model_validator(mode="before")
    @classmethod
    def _can_be_read(cls, value: Any) -> Any:
        if why := refusal(value):
            raise ValueError(why)
        return value

    def overlay(self) -> dict[str, Any]:
        """Return the template as written, including explicit nulls."""
        return self.model_dump(mode="json", by_alias=True)
