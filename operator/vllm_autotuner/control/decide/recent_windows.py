"""The recent measurement windows of a service, per pod and in steady state: the baseline of a change in place.

Apart from `tick`, which decides; here windows are only collected. They are kept in memory, because losing them costs
evidence and no decision: a change copies them into its status when it starts.
Must not: keep a window of another configuration.
"""

from datetime import UTC, datetime, timedelta

from vllm_autotuner.api.status import MEASUREMENTS_LENGTH, Measurement
from vllm_autotuner.change.measured_window import collected
from vllm_autotuner.change.verdict import measure_per_pod
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.control.decide.scaling_history import pods_changed_at
from vllm_autotuner.diagnosis.objectives import Targets

__all__ = ["steady_windows", "windows_until_now"]


def steady_windows(inputs: Inputs, *, targets: Targets) -> tuple[Measurement, ...]:
    """The last windows, newest last; dropped when a change starts or pods are added or removed.

    A Deployment that lost a pod may look settled before and after: what was decided tells as well.
    """
    status = inputs.service.status
    if status.active_change is not None or not inputs.workload.rollout.settled:
        return ()
    found, length = measure_per_pod(inputs.observation, targets=targets), timedelta(seconds=inputs.observation.window)
    changed = pods_changed_at(status)
    known = collected(inputs.history.measured, found, length=length)
    return tuple(one for one in known if changed is None or one.at - length >= changed)


def windows_until_now(inputs: Inputs, *, targets: Targets, since: float) -> tuple[Measurement, ...]:
    """The window that ends now, preceded by those that do not overlap with it. Never empty.

    `since`: Unix seconds since when the diagnosis holds; windows before it are of another load and left out.
    """
    found, length = measure_per_pod(inputs.observation, targets=targets), timedelta(seconds=inputs.observation.window)
    began = datetime.fromtimestamp(since, tz=UTC)
    windows = (one for one in inputs.history.measured if began <= one.at - length and one.at <= found.at - length)
    return (*windows, found)[-MEASUREMENTS_LENGTH:]
