"""An adopted Deployment as a workload: which container is the engine, what it runs, and the smallest possible write.

Apart from `rendering`, because the Deployment belongs to its user: nothing is rendered, one list of one container is
replaced, and the owner's original list is stored on the Deployment itself, so that it can be restored whatever happens
to the operator.
Must not: look up other writers (`cluster.field_managers`), or decide whether a write is allowed.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from vllm_autotuner.api.conditions import Reason
from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.pod_template import ENGINE_CONTAINER
from vllm_autotuner.engine.command_line import (
    CommandLine,
    Field,
    Unreadable,
    changed,
    command_line,
    removed,
    serving_containers,
)
from vllm_autotuner.engine.flags import EngineFlags, FlagError, tuned_knob
from vllm_autotuner.planning.bounds import value_of
from vllm_autotuner.workload.labels import ADOPTION

__all__ = ["Marker", "Target", "Unadoptable", "Unwritable", "marker_of", "read_target"]

FLAG_OF: Final[Mapping[Knob, str]] = {
    Knob.MAX_NUM_SEQS: "max-num-seqs",
    Knob.MAX_MODEL_LEN: "max-model-len",
    Knob.KV_CACHE_DTYPE: "kv-cache-dtype",
    Knob.TENSOR_PARALLEL_SIZE: "tensor-parallel-size",
}
PRECONDITIONS: Final = ("uid", "resourceVersion")
"""Of a write, in the metadata."""
_HEX_DIGITS: Final = 16
"""As many as a rendered configuration's hash has."""


class Unwritable(ValueError):
    """These values cannot be written into this command line; the message says why."""


@dataclass(frozen=True, slots=True)
class Unadoptable:
    """Why a Deployment cannot be adopted; the message says what to do."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The annotation written with each change: which VLLMService wrote, and the owner's original list."""

    service_uid: str
    original: tuple[str, ...]
    """The list as its owner wrote it."""
    field: Field
    written: str
    """Digest of the list that the operator wrote: with another digest, another field manager wrote the list."""

    def text(self) -> str:
        """The annotation's value."""
        return json.dumps(
            {
                "service": self.service_uid,
                "field": self.field.value,
                "original": list(self.original),
                "written": self.written,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A Deployment with one engine in it."""

    deployment: Mapping[str, Any]
    """The whole object, as it was read, or what `for_writing` leaves of it."""
    container: Mapping[str, Any]
    line: CommandLine
    """The command line as the owner of the Deployment wrote it; changes are based on it."""
    template: bytes
    """The live pod template as JSON, a fraction of what it takes as a value."""

    @property
    def container_name(self) -> str:
        """The engine's container."""
        return str(self.container["name"])

    @property
    def live(self) -> tuple[str, ...]:
        """The list of words in the Deployment now."""
        return tuple(str(word) for word in self.container.get(self.line.field.value) or ())

    @property
    def flags(self) -> EngineFlags:
        """The flags in the owner's command line; empty when it cannot be parsed (see `unreadable`)."""
        try:
            return self.line.flags
        except FlagError:
            return EngineFlags()

    @property
    def unreadable(self) -> str:
        """Why the flags cannot be parsed; empty when they can."""
        try:
            _ = self.line.flags
        except FlagError as error:
            return str(error)
        return ""

    @property
    def knobs(self) -> EngineKnobs:
        """The owner's values; a value that the API does not allow is left out like one that was not given."""
        return _knobs(self.flags)

    @property
    def other_arguments(self) -> tuple[str, ...]:
        """The owner's arguments without the flags that may be tuned; empty where they cannot be read."""
        if self.unreadable:
            return ()
        words, kept = list(self.line.arguments), []
        while words:
            word = words.pop(0)
            if tuned_knob(word) is None:
                kept.append(word)
            elif "=" not in word and words:
                words.pop(0)
        return tuple(kept)

    def from_line(self, words: tuple[str, ...]) -> "Target":
        """The same Deployment with these words as its owner's."""
        return replace(self, line=replace(self.line, words=words))

    def for_writing(self) -> "Target":
        """The same with no more of the Deployment than `words`, `hash` and `patch` need: a tick keeps many of them."""
        metadata, lists = self.deployment["metadata"], [field.value for field in Field]
        return replace(
            self,
            deployment={"metadata": {name: metadata.get(name) for name in ("namespace", "name", *PRECONDITIONS)}},
            container={name: self.container[name] for name in ("name", *lists) if name in self.container},
        )

    def words(self, knobs: EngineKnobs) -> tuple[str, ...]:
        """Return the owner's words with these values; unchanged where nothing differs. Raises Unwritable."""
        line, own = self.line, self.knobs
        for knob, flag in FLAG_OF.items():
            value = value_of(knob, knobs)
            if value is None or value == value_of(knob, own):
                continue
            after = changed(line, knob=flag, value=value)
            if isinstance(after, Unreadable):
                raise Unwritable(after.why)
            line = after
        return line.words

    def without(self, knob: Knob, value: int | str) -> "Target":
        """The same Deployment whose owner did not give this knob, where the operator appended it. Raises Unwritable."""
        after = removed(self.line, knob=FLAG_OF[knob], value=value)
        if isinstance(after, Unreadable):
            raise Unwritable(after.why)
        return self.from_line(after.words)

    def hash(self, words: tuple[str, ...]) -> str:
        """The hash of the live pod template with these words: equal hashes start equal pods."""
        template = json.loads(self.template)
        spec = template["spec"]
        containers = [
            {**each, self.line.field.value: list(words)} if each["name"] == self.container_name else each
            for each in spec["containers"]
        ]
        return _digest({**template, "spec": {**spec, "containers": containers}})

    def obstacle(self, knob: Knob) -> str:
        """Say why this knob cannot be written here; empty when it can."""
        if knob not in FLAG_OF:
            return ""
        if self.unreadable:
            return f"the engine flags cannot be parsed: {self.unreadable}"
        own = value_of(knob, self.knobs)
        other: int | str = ("auto" if own != "auto" else "fp8") if knob is Knob.KV_CACHE_DTYPE else 1 + int(own or 1)
        after = changed(self.line, knob=FLAG_OF[knob], value=other)
        return after.why if isinstance(after, Unreadable) else ""

    def marker(self, words: tuple[str, ...], *, service_uid: str) -> Marker:
        """The marker to write together with these words."""
        return Marker(
            service_uid=service_uid, original=self.line.words, field=self.line.field, written=digest_of(words)
        )

    def patch(self, words: tuple[str, ...], *, service_uid: str, ours: frozenset[Field]) -> dict[str, Any]:
        """Return the server-side apply that writes these words and nothing else.

        `ours`: lists of the container that the operator owns already. An apply without them would remove them.
        """
        metadata = self.deployment["metadata"]
        lists = {field.value: list(self.container.get(field.value) or []) for field in sorted(ours)}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                # No edit between the read and the write is lost, and a deleted Deployment is not created again.
                **{name: metadata[name] for name in PRECONDITIONS},
                "annotations": {ADOPTION: self.marker(words, service_uid=service_uid).text()},
            },
            "spec": {
                "template": {
                    "spec": {"containers": [{"name": self.container_name, **lists, self.line.field.value: list(words)}]}
                }
            },
        }


def read_target(deployment: Mapping[str, Any]) -> Target | Unadoptable:
    """Find the one engine of a Deployment."""
    name = deployment["metadata"]["name"]
    if isinstance(why := deployment["spec"], str):
        # The reader of the object has cut it out, and says why.
        return Unadoptable(Reason.INVALID_SPEC, f"Deployment {name} is not read: {why}")
    containers = deployment["spec"]["template"]["spec"].get("containers") or []
    found = serving_containers(containers)
    if len(found) > 1:
        found = [each for each in found if each["name"] == ENGINE_CONTAINER] or found
    if not found:
        images = ", ".join(str(each.get("image")) for each in containers)
        message = f"no container of Deployment {name} runs vLLM ({images}): set spec.targetRef to another Deployment"
        return Unadoptable(Reason.NO_ENGINE_CONTAINER, message)
    if len(found) > 1:
        names = " and ".join(str(each["name"]) for each in found)
        message = f"containers {names} of Deployment {name} run vLLM: rename the one to tune to {ENGINE_CONTAINER!r}"
        return Unadoptable(Reason.SEVERAL_ENGINE_CONTAINERS, message)
    return Target(
        deployment=deployment,
        container=found[0],
        line=command_line(found[0]),
        template=json.dumps(deployment["spec"]["template"], separators=(",", ":")).encode(),
    )


def marker_of(deployment: Mapping[str, Any]) -> Marker | None:
    """Read the marker of a Deployment; None when it has none that can be parsed."""
    text = (deployment["metadata"].get("annotations") or {}).get(ADOPTION, "")
    try:
        found = json.loads(text)
        return Marker(
            service_uid=str(found["service"]),
            original=tuple(str(word) for word in found["original"]),
            field=Field(found["field"]),
            written=str(found["written"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def digest_of(words: tuple[str, ...]) -> str:
    """The digest by which a list that the operator wrote is recognised."""
    return _digest(list(words))


def _digest(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_HEX_DIGITS]


def _knobs(flags: EngineFlags) -> EngineKnobs:
    found: dict[str, Any] = {}
    for flag in FLAG_OF.values():
        name = flag.replace("-", "_")
        with suppress(ValidationError):
            found |= EngineKnobs.model_validate({name: getattr(flags, name)}).model_dump(exclude_none=True)
    return EngineKnobs(**found)
