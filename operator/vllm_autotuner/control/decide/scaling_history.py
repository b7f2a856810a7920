"""The scaling history in a status: when pods last came or went by decision, and which scale-ins failed.

Apart from `proposing`, which decides; here the status is read and written for `scaling`. Must not: choose a number.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from vllm_autotuner.api.scale_ins import ScaleInTried
from vllm_autotuner.api.spec import Scaling
from vllm_autotuner.api.status import VLLMServiceStatus
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.diagnosis.case import makes_no_token
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.performance.step_time import NEWEST_STRETCHES
from vllm_autotuner.scaling.failed_scale_ins import after_scaling, failed_at, most_too_few
from vllm_autotuner.scaling.request_rate import peak_tokens_per_second, tokens_per_second_lately
from vllm_autotuner.scaling.supply import Scale

__all__ = ["failed_scale_ins", "pods_changed_at", "replicas_too_few", "scale_ins_after"]


def pods_changed_at(status: VLLMServiceStatus) -> datetime | None:
    """When the number of replicas was last set or a change, with the pods of its trial, ended; None when unknown."""
    moments = [entry.finished_at for entry in status.history]
    if status.effective is not None:
        moments.append(status.effective.since)
    return max((moment for moment in moments if moment is not None), default=None)


def failed_scale_ins(status: VLLMServiceStatus, *, now: datetime) -> Sequence[ScaleInTried]:
    """Recent scale-ins of the running configuration that left too few replicas."""
    running = None if status.effective is None else status.effective.config_hash
    return failed_at(status.scale_ins, config_hash=running, now=now)


def replicas_too_few(status: VLLMServiceStatus, seen: Observation, *, scaling: Scaling | None, now: datetime) -> int:
    """The most replicas of the running configuration that were too few at a load like that of now; 0 if none were.

    Where the load of then is not known, nothing is told by it: a change is no way to be careful. Nor in a change, as
    what runs then is another configuration.
    """
    effective = status.effective
    if scaling is None or status.active_change is not None or effective is None or effective.replicas is None:
        return 0
    failed = [one for one in failed_scale_ins(status, now=now) if one.tokens_per_second is not None]
    # The time that the load of now is told from (`Situation.planned_rate`), which is compared with.
    load = peak_tokens_per_second(seen, over=timedelta(seconds=NEWEST_STRETCHES[1])) if failed else None
    return 0 if load is None else most_too_few(failed, load=load)


def _stuck_pods(seen: Observation) -> int:
    """How many pods have an engine with requests that made no token for a window: they carry nothing."""
    return len(
        {
            engine.key.pod
            for engine in seen.engines
            if makes_no_token(engine, window=seen.window)
            and engine.moments[-1].running + engine.moments[-1].waiting > 0
        }
    )


def scale_ins_after(status: VLLMServiceStatus, scale: Scale, *, inputs: Inputs) -> tuple[ScaleInTried, ...]:
    """The record of scale-ins after the replicas are set to this number.

    What is added during a change says nothing: what runs then is not the configuration of `effective` alone.
    """
    before, scaling, seen = status.effective, inputs.service.spec.scaling, inputs.observation
    trying = status.active_change is not None and scale.lacking
    if before is None or before.replicas is None or scaling is None or trying:
        return status.scale_ins
    return after_scaling(
        status.scale_ins,
        before=before.replicas,
        ready=inputs.workload.rollout.ready - _stuck_pods(seen),
        newest_since=inputs.workload.rollout.newest_since,
        scale=scale,
        config_hash=before.config_hash,
        load=tokens_per_second_lately(seen),
        now=inputs.now,
    )
