"""The effective configuration: which knob values the workload should run, from the spec and the operator's decisions.

The renderer, the status and the diagnosis all use these functions. Tuned values are valid for the spec values they were
found with: editing one of those in the spec discards the tuned values, so users get what they write. Bounds that
exclude a tuned value discard it as well.
"""

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import ChangeState, Source, VLLMServiceStatus
from vllm_autotuner.change.world import reaches_the_service
from vllm_autotuner.planning.bounds import void

__all__ = ["effective_knobs", "is_tuned", "serving_knobs", "settled_knobs", "spec_knobs"]


def spec_knobs(spec: VLLMServiceSpec) -> EngineKnobs:
    """The starting values that the user wrote."""
    return spec.engine.knobs if spec.engine is not None else EngineKnobs()


def is_tuned(spec: VLLMServiceSpec, status: VLLMServiceStatus) -> bool:
    """Whether tuned values are in force: the spec values they are based on and the bounds still allow them."""
    effective = status.effective
    if effective is None or effective.source is not Source.TUNED or effective.basis != spec_knobs(spec):
        return False
    # Removing the bounds stops further changes; values found within the earlier bounds stay.
    return not void(effective.knobs, tuning=spec.tuning)


def settled_knobs(spec: VLLMServiceSpec, status: VLLMServiceStatus) -> EngineKnobs:
    """The values apart from an active change: the tuned ones while they are in force, else the user's."""
    effective = status.effective
    if effective is not None and (spec.engine is None or is_tuned(spec, status)):
        # Without an engine in the spec (targetRef, as a command reads it) only the status says what runs.
        return effective.knobs
    return spec_knobs(spec)


def effective_knobs(spec: VLLMServiceSpec, status: VLLMServiceStatus) -> EngineKnobs:
    """The values that the service's own Deployment should run now: those under test, or those being restored.

    A canary has its own Deployment (`trial_deployments`); the service's Deployment stays unchanged until promotion.
    """
    change = status.active_change
    if change is None:
        return settled_knobs(spec, status)
    untried = change.state in (ChangeState.PROPOSED, ChangeState.ROLLING_BACK)
    return change.from_.knobs if untried or not reaches_the_service(change) else change.to.knobs


def serving_knobs(spec: VLLMServiceSpec, status: VLLMServiceStatus) -> EngineKnobs:
    """The values of the pods that serve now, needed to interpret metrics: the old ones until the new pods are up.

    With the new value, a full engine would seem to have free running-sequence slots while its successor starts
    (observed with a real engine, whose start takes minutes: ConcurrencyCapped turned into Overloaded).
    """
    change = status.active_change
    if change is not None and change.state in (ChangeState.PROVISIONING, ChangeState.PROMOTING):
        return change.from_.knobs
    return effective_knobs(spec, status)
