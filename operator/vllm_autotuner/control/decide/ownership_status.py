"""What a status says where somebody else writes the workload: who, and how a person ends it.

Apart from the other conditions, because here the remedy lies in another tool. Must not: decide who is right.
"""

from vllm_autotuner.api.conditions import ConditionType, Reason
from vllm_autotuner.api.status import VLLMServiceStatus
from vllm_autotuner.control.decide.inputs import Inputs, Refusal
from vllm_autotuner.guardrails.contest import CONTEST_WINDOW, MOST_RESTORES, is_lost

__all__ = ["ownership"]

Said = tuple[ConditionType, bool, Reason, str]


def ownership(status: VLLMServiceStatus, inputs: Inputs) -> Said:
    """Return the condition OwnershipConflict. What was written back once is no conflict yet."""
    if inputs.workload.adoption is not None:
        declared = inputs.workload.adoption.conflict or Refusal(Reason.FLAGS_DECLARED_ELSEWHERE, "")
        has_owner = inputs.workload.adoption.conflict is not None
        return ConditionType.OWNERSHIP_CONFLICT, has_owner, declared.reason, declared.message
    contest, spec = status.contest, inputs.service.spec
    name = inputs.service.metadata.name
    if contest is not None and is_lost(contest):
        who, minutes = contest.manager, CONTEST_WINDOW.total_seconds() / 60
        message = (
            f"{who} keeps writing {contest.fields} of Deployment {name}: written back {MOST_RESTORES} times within "
            f"{minutes:.0f} minutes, now left as it is. Have {who} manage the VLLMService instead of its Deployment, "
            "or ignore these fields; then go on: edit the VLLMService, or annotate it with vllm-autotuner.dev/retry"
        )
        return ConditionType.OWNERSHIP_CONFLICT, True, Reason.FIELD_MANAGER_CONFLICT, message
    asked = spec.scaling is not None or spec.replicas is not None
    message = (
        f"{inputs.workload.scaled_by} scales Deployment {name}, so its replicas are not written. Let it scale the "
        f"VLLMService (it has a scale subresource), or remove it and run: kubectl scale deployment {name} --replicas=N"
    )
    elsewhere = bool(inputs.workload.scaled_by) and asked
    return ConditionType.OWNERSHIP_CONFLICT, elsewhere, Reason.REPLICAS_CONTROLLED_ELSEWHERE, message
