"""What the operator's own metrics say of the fleet: classes, statuses, desired replicas.

Apart from the fleet loop, which decides. Must not: let one service's status cost the figures of the others.
"""

import asyncio
import logging
from collections.abc import Iterable, Set
from typing import Final

from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.control.read.registry import Key
from vllm_autotuner.control.read.views import ServiceEntry
from vllm_autotuner.control.run.context import ControlContext
from vllm_autotuner.control.run.operator_metrics import StatusFigures, status_figures
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.objectives import targets_of
from vllm_autotuner.overview.gpu_hours import gpu_product

__all__ = ["FleetExport"]

READ_AT_ONCE: Final = 50
"""Statuses that are read for the metrics before others run: some milliseconds."""

logger = logging.getLogger(__name__)


class FleetExport:
    """Of one leader; a follower forgets."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._with_replicas: set[Key] = set()

    def forget(self) -> None:
        """Tell nothing any more: another process leads."""
        self._context.metrics.forget_fleet()
        self._with_replicas.clear()

    def keep_only(self, keys: Set[Key]) -> None:
        """Tell nothing of services that are gone."""
        for key in self._with_replicas - keys:
            self.replicas(key, None)

    def replicas(self, key: Key, desired: int | None) -> None:
        """Tell how many replicas a service is to have; None where the operator does not set them."""
        metrics = self._context.metrics
        if desired is not None:
            metrics.desired_replicas.labels(namespace=key.namespace, name=key.name).set(desired)
            self._with_replicas.add(key)
        elif key in self._with_replicas:
            metrics.forget_service(key.namespace, key.name)
            self._with_replicas.discard(key)

    async def fleet(self, classes: Iterable[str]) -> None:
        """Tell what the statuses of all services say. `classes`: the diagnosis of each. Raises nothing."""
        try:
            await self._fleet(classes)
        except Exception:
            self._context.metrics.ticks.labels(outcome="Failed").inc()
            logger.exception("failed to export the figures of the fleet")

    async def _fleet(self, classes: Iterable[str]) -> None:
        metrics, counted = self._context.metrics, dict[str, int]()
        for diagnosis in classes:
            counted[diagnosis] = counted.get(diagnosis, 0) + 1
        metrics.set_services(counted)
        metrics.blind_ticks.inc(counted.get(DiagnosisClass.METRICS_BLIND.value, 0))
        figures = []
        for count, entry in enumerate(self._context.registry.services.views().values()):
            if count % READ_AT_ONCE == 0:
                await asyncio.sleep(0)
            if (found := self._figures(entry)) is not None:
                figures.append(found)
        metrics.set_statuses(figures)

    def _figures(self, entry: ServiceEntry) -> StatusFigures | None:
        if not isinstance(entry.service, VLLMService):
            return None
        try:
            return status_figures(
                entry.service.status,
                now=self._context.wall(),
                namespace=entry.namespace,
                name=entry.name,
                gpu_price=self._context.settings.catalogue.price(gpu_product(entry.service)),
                targets=targets_of(entry.service.spec.objectives),
            )
        except Exception:
            # The figures of the others must be exported; what is wrong with this one is told when it is handled.
            self._context.metrics.ticks.labels(outcome="Failed").inc()
            logger.exception("failed to export the figures of a service", extra={"service": entry.service.key})
            return None
