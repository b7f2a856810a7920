"""What the workload should run right now, given what the user wrote and what the operator has decided.

One answer for everybody: the renderer, the status and the diagnosis ask here. Tuned values stand on the spec values
they were found with; editing one of those in the spec makes the tuned values void: users get what they write. So do
bounds that no longer hold them.
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
    """Whether tuned values are in force: their basis still stands, and the user's bounds still hold them."""
    effective = status.effective
    if effective is None or effective.source is not Source.TUNED or effective.basis != spec_knobs(spec):
        return False
    # Without bounds nothing more is changed; what was found inside the earlier ones stays.
    return not void(effective.knobs, tuning=spec.tuning)


def settled_knobs(spec: VLLMServiceSpec, status: VLLMServiceStatus) -> EngineKnobs:
    """The values without any change under way: the tuned ones while they are in force, else the user's."""
    effective = status.effective
    if effective is not None and (spec.engine is None or is_tuned(spec, status)):
        # Without an engine in the spec (targetRef, as a command reads it) nobody but the status tells what runs.
        return effective.knobs
    return spec_knobs(spec)


def effective_knobs(spec: VLLMServiceSpec, status: VLLMServiceStatus) -> EngineKnobs:
    """The values that the service's own Deployment should run now: those under test, or those being restored.

    A canary has a Deployment of its own (`trial`), and this one stays as it is until the canary is promoted.
    """
    change = status.active_change
    if change is None:
        return settled_knobs(spec, status)
    untried = change.state in (ChangeState.PROPOSED, ChangeState.ROLLING_BACK)
    return change.from_.knobs if untried or not reaches_the_service(change) else change.to.knobs


def serving_knobs(spec: VLLMServiceSpec, status: VLLMServiceStatus) -> EngineKnobs:
    """The values of the pods that serve, by which metrics are read: the old ones until new pods have come up.

    Read with the value that is still starting, a full engine would seem to have free seats (seen with a real engine,
    whose start takes minutes: ConcurrencyCapped turned into Overloaded).
    """
    change = status.active_change
    if change is not None and change.state in (ChangeState.PROVISIONING, ChangeState.PROMOTING):
        return change.from_.knobs
    return effective_knobs(spec, status)
