"""What the workload should run right now, given what the user wrote and what the operator has decided.

One answer for everybody: the renderer, the status and the diagnosis ask here. Tuned values stand on the spec values
they were found with; editing one of those in the spec makes the tuned values void: users get what they write.
"""

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.api.status import ChangeState, Source, VLLMServiceStatus

__all__ = ["effective_knobs", "settled_knobs", "spec_knobs"]


def spec_knobs(spec: VLLMServiceSpec) -> EngineKnobs:
    """The starting values that the user wrote."""
    return spec.engine.knobs if spec.engine is not None else EngineKnobs()


def settled_knobs(spec: VLLMServiceSpec, status: VLLMServiceStatus) -> EngineKnobs:
    """The values without any change under way: the tuned ones while their basis still stands, else the user's."""
    written, effective = spec_knobs(spec), status.effective
    if effective is not None and effective.source is Source.TUNED and effective.basis == written:
        return effective.knobs
    return written


def effective_knobs(spec: VLLMServiceSpec, status: VLLMServiceStatus) -> EngineKnobs:
    """The values that the workload should run now: those under test, or those being restored."""
    change = status.active_change
    if change is None:
        return settled_knobs(spec, status)
    return change.from_.knobs if change.state is ChangeState.ROLLING_BACK else change.to.knobs
