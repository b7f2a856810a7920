"""Whether more replicas are needed: never on a class that they do not help, and as many as what waits asks for.

When capacity waiting has lasted and is not about to end, by a class of its own or hidden behind one about tokens; and
where a load that rises will be too much. Replicas that are starting count as supply, so that neither a slow start nor a
fresh replica cascades: beside them only what more are needed for is asked for.
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
"""Classes in which requests wait for capacity. Wedged, DeferredQueue and MetricsBlind never scale out; nor do
outputs that run to their limit, whatever else holds beside them."""

ABOUT_TOKENS: Final = frozenset(
    {
        DiagnosisClass.PAST_TPOT_KNEE,
        DiagnosisClass.DECODE_BANDWIDTH_BOUND,
        DiagnosisClass.COMMUNICATION_BOUND,
    }
)
"""Classes that name why tokens come slowly. Requests may wait beside them, which no class then tells: those that would
ask for tokens in time, or stand behind these. More replicas help that queue, whatever makes the tokens slow."""


UNQUEUED: Final = frozenset({DiagnosisClass.PREFILL_BOUND, DiagnosisClass.PREEMPTION_THRASH})
"""Of these the ones that may hold without a queue, and then ask for no replica, unless prompts wait for each other."""


def hides_queue(primary: DiagnosisClass, *, case: Case) -> bool:
    """Whether the class names slow tokens only, and first tokens are late by a queue beside them."""
    return primary in ABOUT_TOKENS and first_tokens_wait(case)


def more(
    supply: Supply, *, scaling: Scaling, diagnosis: Diagnosis, case: Case, held: timedelta, now: datetime
) -> Scale:
    """Return how many replicas are asked for, `supply.current` or more, and why. `held`: for so long, by its class."""
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
    why = "first tokens wait for capacity, too: " if hidden else "demand has been over capacity: "
    return Scale(replicas=bounded, reason=why + diagnosis.message)


def _why_not(
    supply: Supply, *, scaling: Scaling, diagnosis: Diagnosis, case: Case, hidden: bool, held: timedelta, now: datetime
) -> str | None:
    """Say why no more replicas are asked for; None where they are. `hidden`: a queue stands behind slow tokens."""
    primary, observation, newest = diagnosis.primary, case.observation, supply.newest_since
    slow = primary is DiagnosisClass.PAST_TPOT_KNEE
    if primary not in SCALE_OUT_ON and not hidden and not (slow and supply.planned is not None):
        return f"{primary.value} needs no other number of replicas"
    if DiagnosisClass.RUNAWAY_OUTPUTS in (part.diagnosis for part in diagnosis.contributing):
        return "outputs run to their token limit: no GPUs are spent on that"
    queue = queues(observation)
    contend = primary is DiagnosisClass.PREFILL_BOUND and prompts_contend(case)
    if primary in UNQUEUED and not queue and not contend:
        return "nothing waits for capacity"
    # A class that asks for replicas says that requests waited through most of the window before it was named.
    lasted = held.total_seconds() + observation.window
    waited = timedelta(seconds=late_for(observation, targets=case.targets) if hidden else lasted)
    if newest is not None:
        waited = min(waited, now - newest)
    if waited < scaling.scale_out.waiting_for:
        return f"waiting for {waited.total_seconds():.0f} s so far"
    since = None if newest is None else newest.timestamp()
    piles_up = hidden or (contend and queue)
    # More came at once than there are seats, and it is over: that takes no capacity while it is rare enough.
    over = primary is DiagnosisClass.CONCURRENCY_CAPPED and not _waits_now(observation)
    if over or ((slow or contend) and not piles_up and not missed_clearly(case)):
        # Nothing is lost by another window where nothing piles up; a replica bought on one stays as long as this. The
        # class outlasts windows in time between late ones: its age tells only where nobody remembers those.
        young = waited.total_seconds() < 2 * observation.window or observation.steps or observation.first_tokens
        if young and not missed_lately(case, over=scaling.scale_in.stabilization, since=since):
            few = "no more were late lately than may be" if over else "over the objective by no more than noise"
            return f"{few}, which chance explains so far"
    if supply.ready < supply.current and (supply.needed is None or supply.needed <= supply.current):
        return f"{supply.current - supply.ready} replica(s) are still starting"
    if (slow or contend) and since is not None and reaches_behind(observation, since):
        return "what is measured is of fewer replicas still"
    if (why := ends_by_itself(observation, since=since, within=max(ENDS_WITHIN, supply.serves_in))) is not None:
        return why
    if supply.current >= scaling.max_replicas:
        return f"at scaling.maxReplicas ({scaling.max_replicas})"
    return None


def _waits_now(observation: Observation) -> bool:
    return any(engine.moments[-1].waiting > 0 for engine in observation.engines)


def _too_few_soon(supply: Supply, *, scaling: Scaling, diagnosis: Diagnosis, case: Case) -> str | None:
    """Say why one more is asked for although nothing is late yet; None where none is."""
    if diagnosis.primary is not DiagnosisClass.HEALTHY or supply.current >= scaling.max_replicas:
        return None
    if not case.observation.everybody_reports:
        return None
    since = None if supply.fewer_since is None else supply.fewer_since.timestamp()
    return too_much_soon(
        case, replicas=supply.current, over=scaling.scale_in.stabilization, since=since, within=supply.serves_in
    )
