"""The fleet in parts that are looked at and decided one after the other, each with its own questions.

What a look holds grows with its engines: in parts, the memory that a tick takes is that of one part, however large the
fleet is. Must not: divide a namespace; a question names namespaces.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.control.read.metrics_sources import source_of
from vllm_autotuner.control.read.registry import Key, RegistrySnapshot
from vllm_autotuner.control.read.views import ServiceEntry

__all__ = ["ENGINES_AT_ONCE", "parts_of"]

ENGINES_AT_ONCE: Final = 250
"""Engines of a part, as far as namespaces allow: a third of the series that a look may read. Our choice."""


def parts_of(fleet: RegistrySnapshot) -> Iterator[Mapping[Key, ServiceEntry]]:
    """Yield every service once, those of a namespace together, namespaces with a running change first. One empty part
    where there is no service."""
    by_place: dict[tuple[str, str], dict[Key, ServiceEntry]] = {}
    for key, entry in fleet.services.items():
        source = source_of(entry.service) if isinstance(entry.service, VLLMService) else ""
        by_place.setdefault((source, key.namespace), {})[key] = entry
    part: dict[Key, ServiceEntry] = {}
    size = 0
    for services in sorted(by_place.values(), key=lambda found: not any(map(_has_a_change, found.values()))):
        engines = sum(len(fleet.pods_of(key)) for key in services)
        if part and size + engines > ENGINES_AT_ONCE:
            yield part
            part, size = {}, 0
        part |= services
        size += engines
    yield part


def _has_a_change(entry: ServiceEntry) -> bool:
    return entry.service.status is not None and entry.service.status.active_change is not None
