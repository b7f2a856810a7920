"""Keeps the track record of predictions (`change.prediction_check`): what recommendations predicted, what came of it.

Apart from `tick`, because no decision depends on it. Must not: count a window of other pods or values.
"""

from datetime import timedelta

from vllm_autotuner.api.status import Measurement, VLLMServiceStatus
from vllm_autotuner.change.effective import settled_knobs
from vllm_autotuner.change.prediction_check import Now, followed_up, noted
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.diagnosis.diagnose import History

__all__ = ["tracked"]


def tracked(status: VLLMServiceStatus, inputs: Inputs, *, history: History) -> VLLMServiceStatus:
    """Record a new recommendation, and the outcome of earlier ones where it is known now."""
    if not status.track_record and status.recommendation is None:
        return status
    now = Now(
        at=inputs.now,
        knobs=inputs.workload.runs or settled_knobs(inputs.service.spec, status),
        replicas=inputs.workload.rollout.replicas,
        windows=_of_this_setting(status, inputs, history=history),
        change=status.active_change,
    )
    record = noted(
        status.track_record,
        status.recommendation,
        now=now,
        in_system=_in_system(inputs),
        arrivals_per_second=inputs.observation.arrivals_per_second,
    )
    return status.updated(track_record=followed_up(record, now))


def _of_this_setting(status: VLLMServiceStatus, inputs: Inputs, *, history: History) -> tuple[Measurement, ...]:
    rollout, effective = inputs.workload.rollout, status.effective
    if effective is None or not rollout.settled or rollout.config_hash != effective.config_hash:
        return ()
    if rollout.newest_since is None:
        return ()
    warm = rollout.newest_since + inputs.service.spec.tuning.strategy.warm_up
    length = timedelta(seconds=inputs.observation.window)
    return tuple(each for each in history.measured if each.at - length >= warm)


def _in_system(inputs: Inputs) -> float | None:
    last = [engine.moments[-1] for engine in inputs.observation.engines]
    return sum(moment.running + moment.waiting for moment in last) if last else None
