"""Computes the desired number of replicas: the entry point of scaling. Pure.

Scale-out follows `scale_out`. Scale-in goes directly to the minimum when idle, and otherwise by one replica where
`scale_in` predicts that fewer are enough.
"""

from datetime import datetime, timedelta

from vllm_autotuner.api.spec import Scaling
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Diagnosis
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.scaling.failed_scale_ins import too_few
from vllm_autotuner.scaling.scale_in import fewer_do, peak_tokens_per_second
from vllm_autotuner.scaling.scale_out import more
from vllm_autotuner.scaling.supply import Scale, Supply

__all__ = ["desired_replicas"]


def desired_replicas(supply: Supply, *, scaling: Scaling, diagnosis: Diagnosis, case: Case, now: datetime) -> Scale:
    """Return the desired number of replicas; equal to `supply.current` if nothing is to be done.

    Free room on nodes is not checked: a pending replica does no harm, makes a node autoscaler add nodes, and may
    preempt pods of lower priority.
    """
    current = supply.current
    inside = max(scaling.min_replicas, min(scaling.max_replicas, current))
    if inside != current:
        return Scale(replicas=inside, reason=f"spec.scaling allows {scaling.min_replicas} to {scaling.max_replicas}")
    held = now - datetime.fromtimestamp(diagnosis.since, tz=now.tzinfo)
    if diagnosis.primary is DiagnosisClass.IDLE and held >= scaling.scale_in.stabilization:
        return _from_idle(current, held=held, scaling=scaling, observation=case.observation)
    if current > scaling.min_replicas and _may_be_spare(diagnosis, held=held, stable=scaling.scale_in.stabilization):
        fewer = _fewer(supply, scaling=scaling, case=case, now=now)
        if fewer is not None:
            return fewer
    return more(supply, scaling=scaling, diagnosis=diagnosis, case=case, held=held, now=now)


def _from_idle(current: int, *, held: timedelta, scaling: Scaling, observation: Observation) -> Scale:
    """Scale in directly to the minimum."""
    if current <= scaling.min_replicas:
        return Scale(replicas=current, reason="idle, at scaling.minReplicas")
    if not observation.everybody_reports:
        return Scale(replicas=current, reason="not all replicas report metrics; a silent one may be busy")
    return Scale(replicas=scaling.min_replicas, reason=f"idle for {held.total_seconds():.0f} s")


def _may_be_spare(diagnosis: Diagnosis, *, held: timedelta, stable: timedelta) -> bool:
    """Whether to check if fewer replicas are enough.

    Always for `Underutilized`, which uses the steepest slope that the windows allow. A constant load allows any slope
    and so stays `Healthy` with any number of replicas; `Healthy` must last, because it also holds between two bursts.
    """
    match diagnosis.primary:
        case DiagnosisClass.UNDERUTILIZED:
            return True
        case DiagnosisClass.HEALTHY:
            return held >= stable
        case _:
            return False


def _fewer(supply: Supply, *, scaling: Scaling, case: Case, now: datetime) -> Scale | None:
    """One replica fewer if the rest carry the load, unless that number failed at such a load before; else None.

    Evaluated every 15 s, a prediction will be wrong by chance at some time: failures are remembered, so that this
    happens once. A replica that was added stays for the stabilization time. The class may be recent: the figures of the
    whole time decide, and those come from the metrics.
    """
    current, observation, stable = supply.current, case.observation, scaling.scale_in.stabilization
    moments = [moment for moment in (supply.newest_since, supply.asked_since) if moment is not None]
    whole = supply.ready == current and observation.everybody_reports
    if not whole or any(now - moment < stable for moment in moments):
        return None
    since = max((moment.timestamp() for moment in moments), default=None)
    why = fewer_do(case, replicas=current, over=stable, since=since)
    if why is None:
        return None
    load = peak_tokens_per_second(observation, over=stable)
    against = None if load is None else too_few(supply.failed, replicas=current - 1, load=load)
    if against is None:
        return Scale(replicas=current - 1, reason=why)
    return Scale(replicas=current, reason=f"{against.replicas} replica(s) were too few at this load before")
