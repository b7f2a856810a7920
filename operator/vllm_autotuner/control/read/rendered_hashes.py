"""Workload hashes across operator versions: a Deployment that another version rendered is kept until its spec changes.

An upgrade that renders the same spec differently would otherwise roll every pod of the fleet at once (G49, T41). Apart
from `workload.rendering`, which has its own version only: here the live hash is compared with the status.
Must not: guess. Only a configuration that the status records, under the same spec, counts as unchanged.
"""

from collections.abc import Callable

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.service import VLLMService
from vllm_autotuner.control.read.views import DeploymentView
from vllm_autotuner.workload.hashing import RENDERING_VERSION
from vllm_autotuner.workload.rendering import rendered_hash

__all__ = ["hashes_of", "is_of_another_version"]

Hashes = Callable[[EngineKnobs], str]


def hashes_of(service: VLLMService, live: DeploymentView | None) -> Hashes:
    """The hash of the workload rendered with some knobs; the live hash where another version rendered the same knobs.

    After an edit of the spec the own hash is used: the other version's rendering of it is unknown.
    """
    former = _former(service, live)

    def hash_for(knobs: EngineKnobs) -> str:
        if former is not None and live is not None and live.config_hash is not None and knobs == former:
            return live.config_hash
        return rendered_hash(service, knobs)

    return hash_for


def is_of_another_version(service: VLLMService, live: DeploymentView, *, knobs: EngineKnobs) -> bool:
    """Whether another operator version rendered the live Deployment with exactly these knobs."""
    return _former(service, live) == knobs


def _former(service: VLLMService, live: DeploymentView | None) -> EngineKnobs | None:
    """The knobs of a live Deployment that another operator version rendered from the same spec; else None."""
    status = service.status
    if live is None or live.hash_version == RENDERING_VERSION:
        return None
    if status.observed_generation != service.metadata.generation:
        return None
    change, effective = status.active_change, status.effective
    asked = (
        *((change.to, change.from_) if change is not None else ()),
        *((effective,) if effective is not None else ()),
    )
    return next((one.knobs for one in asked if one.config_hash == live.config_hash), None)
