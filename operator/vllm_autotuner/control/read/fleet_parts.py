"""The fleet in parts that are looked at and decided one after the other, each with its own questions.

What a look holds grows with its engines: in parts, the memory that a tick takes is that of one part, however large the
fleet is. Must not: divide a namespace; a question names namespaces.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Final

from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.control.read.metrics_sources import source_of
from vllm_autotuner.control.read.registry import Key, RegistrySnapshot
from vllm_autotuner.control.read.views import ServiceEntry

__all__ = ["ENGINES_AT_ONCE", "changes_in", "has_a_change", "parts_of"]

ENGINES_AT_ONCE: Final = 250
"""Engines of a part, as far as namespaces allow: a third of the series that a look may read. Our choice."""
NOBODY: Final[Mapping[str, float]] = MappingProxyType({})


def parts_of(fleet: RegistrySnapshot, *, behind: Mapping[str, float] = NOBODY) -> Iterator[Mapping[Key, ServiceEntry]]:
    """Yield every service once, those of a namespace together. One empty part where there is no service.

    Namespaces with a running change come first, where there are several parts in parts of their own: what they measure
    must not wait for others. Then those with services that are `behind`: by uid, since when.
    """
    by_place: dict[tuple[str, str], dict[Key, ServiceEntry]] = {}
    for key, entry in fleet.services.items():
        source = source_of(entry.service) if isinstance(entry.service, VLLMService) else ""
        by_place.setdefault((source, key.namespace), {})[key] = entry
    part: dict[Key, ServiceEntry] = {}
    size, urgent = 0, False
    several = sum(len(fleet.pods_of(key)) for key in fleet.services) > ENGINES_AT_ONCE
    for services in sorted(by_place.values(), key=partial(_rank, behind=behind)):
        engines = sum(len(fleet.pods_of(key)) for key in services)
        was, urgent = urgent, changes_in(services)
        if part and (size + engines > ENGINES_AT_ONCE or (several and was != urgent)):
            yield part
            part, size = {}, 0
        part |= services
        size += engines
    yield part


def _rank(services: Mapping[Key, ServiceEntry], *, behind: Mapping[str, float]) -> tuple[bool, float]:
    return not changes_in(services), min(behind.get(entry.uid, inf) for entry in services.values())


def changes_in(services: Mapping[Key, ServiceEntry]) -> bool:
    """Whether one of them has a running change."""
    return any(map(has_a_change, services.values()))


def has_a_change(entry: ServiceEntry) -> bool:
    """Whether a change of this service is running."""
    return entry.service.status is not None and entry.service.status.active_change is not None
