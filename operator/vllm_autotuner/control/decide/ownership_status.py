"""The condition OwnershipConflict: which other field manager writes the workload, and how to resolve it.

Apart from `status_conditions`, because here the remedy lies in another tool. Must not: decide which writer is right.
"""

from vllm_autotuner.api.conditions import ConditionType, Reason
from vllm_autotuner.api.status import VLLMServiceStatus
from vllm_autotuner.control.decide.inputs import Inputs, Refusal
from vllm_autotuner.guardrails.contest import CONTEST_WINDOW, MOST_RESTORES, is_lost

__all__ = ["ownership"]

Said = tuple[ConditionType, bool, Reason, str]


def ownership(status: VLLMServiceStatus, inputs: Inputs) -> Said:
    """Return the condition OwnershipConflict. A single restored field is not a conflict yet."""
    if inputs.workload.adoption is not None:
        declared = inputs.workload.adoption.conflict or Refusal(Reason.FLAGS_DECLARED_ELSEWHERE, "")
        has_owner = inputs.workload.adoption.conflict is not None
        return ConditionType.OWNERSHIP_CONFLICT, has_owner, declared.reason, declared.message
    contest, spec = status.contest, inputs.service.spec
    name = inputs.service.metadata.name
    if contest is not None and is_lost(contest):
        who, minutes = contest.manager, CONTEST_WINDOW.total_seconds() / 60
        message = (
            f"{who} keeps overwriting {contest.fields} of Deployment {name}: gave up after {MOST_RESTORES} restores "
            f"within {minutes:.0f} minutes. Configure {who} to manage the VLLMService instead of its Deployment, or to "
            "ignore these fields; then edit the VLLMService or annotate it with vllm-autotuner.dev/retry to resume"
        )
        return ConditionType.OWNERSHIP_CONFLICT, True, Reason.FIELD_MANAGER_CONFLICT, message
    asked = spec.scaling is not None or spec.replicas is not None
    message = (
        f"{inputs.workload.scaled_by} sets the replicas of Deployment {name}, so the operator does not. Point it at "
        "the VLLMService (it has a scale subresource), or remove it and run: "
        f"kubectl scale deployment {name} --replicas=N"
    )
    elsewhere = bool(inputs.workload.scaled_by) and asked
    return ConditionType.OWNERSHIP_CONFLICT, elsewhere, Reason.REPLICAS_CONTROLLED_ELSEWHERE, message
