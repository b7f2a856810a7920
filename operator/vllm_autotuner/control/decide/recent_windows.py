"""What was measured of a service lately, per pod and while nothing changed: what a change in place is compared with.

Apart from the tick, which decides; here windows are only kept. In memory, as losing them costs evidence and never a
decision: a change takes a copy into its status when it begins. Must not: keep a window of another configuration.
"""

from datetime import UTC, datetime, timedelta

from vllm_autotuner.api.status import MEASUREMENTS_LENGTH, Measurement
from vllm_autotuner.change.measured_window import collected
from vllm_autotuner.change.verdict import measure_per_pod
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.diagnosis.objectives import Targets

__all__ = ["lately", "until_now"]


def lately(inputs: Inputs, *, targets: Targets) -> tuple[Measurement, ...]:
    """The last windows, newest last; forgotten as soon as pods come or go."""
    if inputs.service.status.active_change is not None or not inputs.workload.rollout.settled:
        return ()
    found, length = measure_per_pod(inputs.observation, targets=targets), timedelta(seconds=inputs.observation.window)
    return collected(inputs.history.measured, found, length=length)


def until_now(inputs: Inputs, *, targets: Targets, since: float) -> tuple[Measurement, ...]:
    """The window that ends now, and before it those that do not overlap with it. Never empty.

    `since`: Unix seconds from which the service has had what the change is to cure; how it was before is another load.
    """
    found, length = measure_per_pod(inputs.observation, targets=targets), timedelta(seconds=inputs.observation.window)
    began = datetime.fromtimestamp(since, tz=UTC)
    windows = (one for one in inputs.history.measured if began <= one.at - length and one.at <= found.at - length)
    return (*windows, found)[-MEASUREMENTS_LENGTH:]
