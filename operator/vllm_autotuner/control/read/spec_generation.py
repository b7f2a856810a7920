"""The generation of a status after `spec.replicas` was changed alone. Pure.

An autoscaler of the VLLMService writes `spec.replicas` (its scale subresource), and the API server raises the
generation as after an edit. To follow it as an edit would clear a failed rollback and a conflict that nobody resolved,
and roll every pod that an earlier operator version rendered.
Must not: ignore an edit of anything else.
"""

from typing import TypeVar

from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.api.status import ActiveChange, Contest, RollbackFailure, VLLMServiceStatus

__all__ = ["with_current_generation"]

Record = TypeVar("Record", ActiveChange, Contest, RollbackFailure)


def with_current_generation(service: VLLMService) -> VLLMServiceStatus:
    """The status of a service; if only replicas were changed since it was written, about the current generation."""
    status, now, before = service.status, service.metadata.generation, service.status.observed_generation
    if before == now or not service.spec_hash or status.observed_spec_hash != service.spec_hash:
        return status

    def moved(record: Record | None) -> Record | None:
        return record.updated(generation=now) if record is not None and record.generation == before else record

    return status.updated(
        observed_generation=now,
        active_change=moved(status.active_change),
        rollback_failed=moved(status.rollback_failed),
        contest=moved(status.contest),
    )
