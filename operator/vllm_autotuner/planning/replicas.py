"""More replicas: what helps when no setting of one engine does."""

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.planning.proposal import Proposal
from vllm_autotuner.planning.seats import NothingToGain
from vllm_autotuner.planning.situation import Situation

__all__ = ["add_replicas"]


def add_replicas(situation: Situation) -> Proposal | NothingToGain:
    """One replica more, as a recommendation; `scaling` decides how many and when."""
    scaling, now = situation.scaling, situation.replicas
    if scaling is not None and now >= scaling.max_replicas:
        return NothingToGain(f"already at scaling.maxReplicas ({scaling.max_replicas})")
    return Proposal(
        knob=Knob.REPLICAS,
        current=now,
        value=now + 1,
        target=ChangeTarget.TTFT,
        reason=f"{situation.diagnosis.message} No setting of one engine removes this wait.",
        confidence=situation.diagnosis.confidence,
        extra_replicas=1,
        recommend_only="" if scaling is not None else "spec.scaling is not set: replicas are yours to change",
    )
