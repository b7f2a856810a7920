"""A Kubernetes API for command tests: objects in memory, and what was written to them."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.kubernetes import ClusterOptions
from vllm_autotuner.cluster.adapter import Page

Object = dict[str, Any]


@dataclass
class ApiStub:
    """Its methods are those of `cluster.adapter.Cluster` that commands use."""

    services: dict[tuple[str, str], Object] = field(default_factory=dict)
    config_maps: dict[tuple[str, str], Object] = field(default_factory=dict)
    current: str = "prod"
    """Namespace of the context."""
    on_annotated: Callable[[Object], None] = lambda body: None
    """What the operator does about it."""

    @asynccontextmanager
    async def connected(self, where: ClusterOptions, *, missing: str) -> "AsyncIterator[tuple[ApiStub, str]]":
        namespace = where.namespace or self.current
        try:
            yield self, namespace
        except KeyError:
            raise CommandError(missing.format(namespace=namespace)) from None

    def add(self, namespace: str, name: str, *, spec: Object | None = None, status: Object | None = None) -> Object:
        body = {"metadata": {"namespace": namespace, "name": name}, "spec": spec or {}, "status": status or {}}
        self.services[namespace, name] = body
        return body

    async def read_service(self, namespace: str, name: str) -> Object:
        return deepcopy(self.services[namespace, name])

    async def annotate_service(self, namespace: str, name: str, annotations: Mapping[str, str | None]) -> Object:
        body = self.services[namespace, name]
        known = body["metadata"].setdefault("annotations", {})
        for key, value in annotations.items():
            known.pop(key, None)
            if value is not None:
                known[key] = value
        self.on_annotated(body)
        return deepcopy(body)

    async def set_data(self, namespace: str, name: str, data: Mapping[str, str]) -> Object:
        found = self.config_maps[namespace, name]
        found["data"] = found.get("data", {}) | dict(data)
        return found

    async def pages(self, kind: object, *, namespace: str | None = None) -> AsyncIterator[Page]:
        found = [body for (place, _), body in self.services.items() if namespace in (None, place)]
        yield Page(objects=tuple(found), resource_version="1")
