"""`spec.podTemplate`: a piece of a Kubernetes pod template that is passed through, and the few fields we must not lose.

Kubernetes validates it when the Deployment is made; here only what would fight with the rendering is refused.
"""

from typing import Annotated, Any, ClassVar, Final

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from vllm_autotuner.api.model import ApiModel, Rule

PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"

ENGINE_CONTAINER: Final = "vllm"
"""Name of the engine's container, and where a pod template adds env, volume mounts and resources."""


class _PassedThrough(ApiModel):
    """An object whose other fields are kept as they are."""

    model_config = ConfigDict(extra="allow", json_schema_extra={PRESERVE: True})

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keep explicit nulls, which remove what the operator renders, but not those of absent declared fields."""
        declared = type(self).model_fields
        return {name: value for name, value in handler(self).items() if value is not None or name not in declared}


class TemplateMetadata(_PassedThrough):
    """Labels and annotations of the pods."""

    labels: Annotated[dict[str, str], Field(max_length=64)] | None = None
    """More labels; those that the operator selects by win."""

    annotations: Annotated[dict[str, str], Field(max_length=64)] | None = None
    """More annotations; those that the operator sets win."""


class TemplateContainer(_PassedThrough):
    """A container: `vllm` is merged into the engine's, any other name is a sidecar."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """The key of the merge."""

    image: Annotated[str, Field(max_length=512)] | None = None
    """Of a sidecar; the engine's is spec.engine.image."""

    command: Annotated[tuple[Annotated[str, Field(max_length=65536)], ...], Field(max_length=256)] | None = None
    """Of a sidecar; the engine's comes from its image."""

    args: Annotated[tuple[Annotated[str, Field(max_length=65536)], ...], Field(max_length=256)] | None = None
    """Of a sidecar; the engine's are spec.engine.args."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"self.name != '{ENGINE_CONTAINER}' || !(has(self.image) || has(self.command) || has(self.args))",
            message="use spec.engine.image and spec.engine.args for the container vllm, "
            "not image, command or args in the pod template",
            holds=lambda container: (
                container.name != ENGINE_CONTAINER
                or (container.image is None and container.command is None and container.args is None)
            ),
        ),
    )


class TemplateSpec(_PassedThrough):
    """A pod spec; lists of named things (containers, volumes, env) are merged by name."""

    containers: Annotated[tuple[TemplateContainer, ...], Field(max_length=16)] | None = None
    """Additions to the container `vllm`, and sidecars."""


class PodTemplate(_PassedThrough):
    """Metadata and spec of the pods, merged into what the operator renders."""

    metadata: TemplateMetadata | None = None
    """Labels and annotations."""

    spec: TemplateSpec | None = None
    """Anything a pod spec may hold."""

    def overlay(self) -> dict[str, Any]:
        """Return the template as it was written, explicit nulls included."""
        return self.model_dump(mode="json", by_alias=True)
