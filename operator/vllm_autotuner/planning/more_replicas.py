"""A proposal for more replicas, as a recommendation: with `spec.scaling`, `scaling` decides how many and when."""

from dataclasses import replace
from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget
from vllm_autotuner.diagnosis.case import busy_batch, is_late, queues, ttft_reading
from vllm_autotuner.diagnosis.classes import SLOW_TOKENS, DiagnosisClass
from vllm_autotuner.diagnosis.overloaded import first_tokens_wait
from vllm_autotuner.diagnosis.prefill_bound import prompts_contend
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.planning.capped_value import LARGEST_STEP
from vllm_autotuner.planning.feasibility import Infeasible, placeable
from vllm_autotuner.planning.forecast import Outlook, current_setting, outlook, setting_with
from vllm_autotuner.planning.max_num_seqs import not_slow_now
from vllm_autotuner.planning.proposal import NothingToGain, Proposal
from vllm_autotuner.planning.situation import RUNS_AWAY, Situation

__all__ = ["FREE_GPUS", "add_replicas"]

FREE_GPUS: Final = "free GPUs"
"""The `limitedBy` text of a number of replicas that free GPUs limit."""


def add_replicas(situation: Situation) -> Proposal | NothingToGain:
    """As many replicas as the load needs, at most doubled; one more where that is not known.

    Not for outputs that run to their token limit: a user has to fix that, and GPUs would only hide it. Not for slow
    prompts that wait neither in a queue nor, by the forecast, for each other: another replica computes each of them
    just as slowly.
    """
    diagnosis, case, now = situation.diagnosis, situation.case, situation.replicas
    if situation.runs_away:
        return NothingToGain(RUNS_AWAY)
    forecast, target = outlook(current_setting(situation), situation=situation), ChangeTarget.TTFT
    alone = not queues(situation.observation) and not prompts_contend(case)
    if diagnosis.primary is DiagnosisClass.PREFILL_BOUND and alone and not _is_sooner_with_more(forecast, situation):
        return NothingToGain("no requests wait: one more replica does not compute a prompt faster")
    scaling = situation.scaling
    if scaling is not None and now >= scaling.max_replicas:
        return NothingToGain(f"already at scaling.maxReplicas ({scaling.max_replicas})")
    needed = max(now + 1, min(now * LARGEST_STEP, forecast.wanted or now + 1))
    if diagnosis.primary is DiagnosisClass.PREFILL_BOUND and not is_late(ttft_reading(case), case.targets.ttft):
        target = ChangeTarget.TPOT
    if diagnosis.primary in SLOW_TOKENS and not first_tokens_wait(case):
        if (why := not_slow_now(situation)) is not None:
            return why
        if max(map(busy_batch, case.engines)) <= 1:
            return NothingToGain("at most one sequence runs on each engine: replicas make no batch smaller")
        target = ChangeTarget.TPOT
        # Where tokens wait for prompts, no line by the batch holds: one more replica shows what fewer prompts do.
        if forecast.capacity == 0 and not prompts_contend(case):
            return NothingToGain("no batch size is known to meet the TPOT objective: replicas might not help")
    count = needed if scaling is None else min(needed, scaling.max_replicas)
    proposal = Proposal(
        knob=Knob.REPLICAS,
        current=now,
        value=count,
        target=target,
        reason=f"{diagnosis.message} No setting of a single engine removes this wait."
        if target is ChangeTarget.TTFT
        else f"{diagnosis.message} Fewer requests on each engine make tokens faster.",
        confidence=diagnosis.confidence,
        extra_replicas=count - now,
        recommend_only="" if scaling is not None else "spec.scaling is not set, so the operator does not scale",
    )
    return _within_room(proposal, situation)


def _is_sooner_with_more(forecast: Outlook, situation: Situation) -> bool:
    """Whether first tokens are foretold to come sooner than by `forecast` with a replica more, beyond noise."""
    now = current_setting(situation)
    more = setting_with(now, Knob.REPLICAS, now.replicas + 1, situation=situation)
    before, after = forecast.ttft, outlook(more, situation=situation).ttft
    return before is not None and after is not None and after < before * (1 - NOISE)


def _within_room(proposal: Proposal, situation: Situation) -> Proposal:
    """Limit the replicas to the free GPUs. Without a free GPU the proposal stays, as recommended only."""
    free_gpus, now = situation.platform.free_gpus, situation.replicas
    if free_gpus is None or situation.scaling is not None:
        # With spec.scaling the replicas are requested anyway: pending pods make a node autoscaler add nodes.
        return proposal
    if isinstance(lacking := placeable(free_gpus, devices=free_gpus.devices), Infeasible):
        return replace(proposal, limited_by=FREE_GPUS, recommend_only=proposal.recommend_only or lacking.why)
    most = now + free_gpus.pods(free_gpus.devices)
    if proposal.count <= most:
        return proposal
    return replace(proposal, value=most, extra_replicas=most - now, limited_by=FREE_GPUS)
