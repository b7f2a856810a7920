"""Decides on scale-out: only for classes that replicas help, and by as many replicas as the demand needs.

Scales out if requests have waited for capacity for long enough and the queue is not about to drain, whether a class
about capacity is named or one about slow tokens hides the queue; and if a rising load will exceed the replicas.
Replicas that are starting count as supply, so that a slow start does not cascade.
"""

import math
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.spec import Scaling
from vllm_autotuner.diagnosis.case import Case, queues, reaches_behind
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.diagnosis.overloaded import first_tokens_wait
from vllm_autotuner.diagnosis.prefill_bound import prompts_contend
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.planning.capped_value import LARGEST_STEP
from vllm_autotuner.scaling.backlog import ENDS_WITHIN, ends_by_itself
from vllm_autotuner.scaling.lateness import late_for, missed_clearly, missed_lately
from vllm_autotuner.scaling.rise import too_much_soon
from vllm_autotuner.scaling.supply import Scale, Supply

__all__ = ["ABOUT_TOKENS", "SCALE_OUT_ON", "hides_queue", "more"]

SCALE_OUT_ON: Final = frozenset(
    {
        DiagnosisClass.OVERLOADED,
        DiagnosisClass.PREEMPTION_THRASH,
        DiagnosisClass.KV_CACHE_SATURATED,
        DiagnosisClass.CONCURRENCY_CAPPED,
        DiagnosisClass.PREFILL_BOUND,
    }
)
"""Classes in which requests wait for capacity. Wedged, DeferredQueue and MetricsBlind never scale out, nor does
RunawayOutputs, even if it only contributes."""

ABOUT_TOKENS: Final = frozenset(
    {
        DiagnosisClass.PAST_TPOT_KNEE,
        DiagnosisClass.DECODE_BANDWIDTH_BOUND,
        DiagnosisClass.COMMUNICATION_BOUND,
    }
)
"""Classes about slow tokens. They may hide a queue, because the classes about queues require TPOT in time or have lower
precedence. More replicas help against that queue, whatever makes the tokens slow."""


UNQUEUED: Final = frozenset({DiagnosisClass.PREFILL_BOUND, DiagnosisClass.PREEMPTION_THRASH})
"""The classes of `SCALE_OUT_ON` that can hold without a queue; then they scale out only if prompts wait for each
other."""


def hides_queue(primary: DiagnosisClass, *, case: Case) -> bool:
    """Whether the class is about slow tokens while TTFT is late because of a queue."""
    return primary in ABOUT_TOKENS and first_tokens_wait(case)


def more(
    supply: Supply, *, scaling: Scaling, diagnosis: Diagnosis, case: Case, held: timedelta, now: datetime
) -> Scale:
    """Return the desired replicas, `supply.current` or more, and why. `held`: the time since the class was named."""
    current, hidden = supply.current, hides_queue(diagnosis.primary, case=case)
    why_not = _why_not(supply, scaling=scaling, diagnosis=diagnosis, case=case, hidden=hidden, held=held, now=now)
    if why_not is not None:
        soon = _too_few_soon(supply, scaling=scaling, diagnosis=diagnosis, case=case)
        return Scale(replicas=current, reason=why_not) if soon is None else Scale(replicas=current + 1, reason=soon)
    if supply.ready < current:
        wanted = supply.needed or current
    else:
        wanted = max(current + 1, math.ceil(current * case.observation.pressure), supply.planned or 0)
    most = max(current + 1, current * LARGEST_STEP)
    bounded = min(wanted, most, scaling.max_replicas)
    why = "requests also wait for capacity: " if hidden else "demand exceeds capacity: "
    return Scale(replicas=bounded, reason=why + diagnosis.message)


def _why_not(
    supply: Supply, *, scaling: Scaling, diagnosis: Diagnosis, case: Case, hidden: bool, held: timedelta, now: datetime
) -> str | None:
    """Return why not to scale out; None to scale out. `hidden`: slow tokens hide a queue."""
    primary, observation, newest = diagnosis.primary, case.observation, supply.newest_since
    slow = primary is DiagnosisClass.PAST_TPOT_KNEE
    if primary not in SCALE_OUT_ON and not hidden and not (slow and supply.planned is not None):
        return f"{primary.value} does not call for scaling"
    if DiagnosisClass.RUNAWAY_OUTPUTS in (part.diagnosis for part in diagnosis.contributing):
        return "outputs run to their token limit: more GPUs do not help"
    queue = queues(observation)
    contend = primary is DiagnosisClass.PREFILL_BOUND and prompts_contend(case)
    if primary in UNQUEUED and not queue and not contend:
        return "no requests wait for capacity"
    # These classes require that requests waited for most of the window before the class was named.
    lasted = held.total_seconds() + observation.window
    waited = timedelta(seconds=late_for(observation, targets=case.targets) if hidden else lasted)
    if newest is not None:
        waited = min(waited, now - newest)
    if waited < scaling.scale_out.waiting_for:
        threshold = scaling.scale_out.waiting_for.total_seconds()
        return f"demand has exceeded capacity for {waited.total_seconds():.0f} s (threshold {threshold:.0f} s)"
    since = None if newest is None else newest.timestamp()
    piles_up = hidden or (contend and queue)
    # A burst exceeded the slots and is over: rare bursts need no replica.
    over = primary is DiagnosisClass.CONCURRENCY_CAPPED and not _waits_now(observation)
    if over or ((slow or contend) and not piles_up and not missed_clearly(case)):
        # Without a backlog another window costs little, while an unneeded replica stays for the stabilization time. The
        # class also persists through windows in time, so its age counts only where no windows are remembered.
        young = waited.total_seconds() < 2 * observation.window or observation.steps or observation.first_tokens
        if young and not missed_lately(case, over=scaling.scale_in.stabilization, since=since):
            if over:
                return "late requests are within the error budget"
            return "latency is over its objective by no more than noise"
    if supply.ready < supply.current and (supply.needed is None or supply.needed <= supply.current):
        return f"{supply.current - supply.ready} replica(s) are still starting"
    if (slow or contend) and since is not None and reaches_behind(observation, since):
        return "the measurements still cover the time before the newest replica"
    if (why := ends_by_itself(observation, since=since, within=max(ENDS_WITHIN, supply.serves_in))) is not None:
        return why
    if supply.current >= scaling.max_replicas:
        return f"at scaling.maxReplicas ({scaling.max_replicas})"
    return None


def _waits_now(observation: Observation) -> bool:
    return any(engine.moments[-1].waiting > 0 for engine in observation.engines)


def _too_few_soon(supply: Supply, *, scaling: Scaling, diagnosis: Diagnosis, case: Case) -> str | None:
    """Return why one more replica is needed although no latency is late yet; None if it is not."""
    if diagnosis.primary is not DiagnosisClass.HEALTHY or supply.current >= scaling.max_replicas:
        return None
    if not case.observation.everybody_reports:
        return None
    since = None if supply.fewer_since is None else supply.fewer_since.timestamp()
    return too_much_soon(
        case, replicas=supply.current, over=scaling.scale_in.stabilization, since=since, within=supply.serves_in
    )
