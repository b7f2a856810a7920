"""The scaling history in a status: when the replicas were set last, and which scale-ins failed.

Apart from `proposing`, which decides; here the status is read and written for `scaling`. Must not: choose a number.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from vllm_autotuner.api.scale_ins import ScaleInTried
from vllm_autotuner.api.status import VLLMServiceStatus
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.planning.current_replica import STRETCH
from vllm_autotuner.scaling.failed_scale_ins import after_scaling, failed_at
from vllm_autotuner.scaling.request_rate import peak_tokens_per_second

__all__ = ["failed_scale_ins", "replicas_asked_since", "scale_ins_after"]


def replicas_asked_since(status: VLLMServiceStatus) -> datetime | None:
    """When the number of replicas was last changed; None when unknown.

    The end of a successful change updates `effective.since` too, without changing the number: it does not count.
    """
    since = None if status.effective is None else status.effective.since
    return None if since in {entry.finished_at for entry in status.history} else since


def failed_scale_ins(status: VLLMServiceStatus, *, now: datetime) -> Sequence[ScaleInTried]:
    """Recent scale-ins of the running configuration that left too few replicas."""
    running = None if status.effective is None else status.effective.config_hash
    return failed_at(status.scale_ins, config_hash=running, now=now)


def scale_ins_after(status: VLLMServiceStatus, replicas: int, *, inputs: Inputs) -> tuple[ScaleInTried, ...]:
    """The record of scale-ins after the replicas are set to this number."""
    before, scaling, seen = status.effective, inputs.service.spec.scaling, inputs.observation
    if before is None or before.replicas is None or scaling is None:
        return status.scale_ins
    lately = peak_tokens_per_second(seen, over=timedelta(seconds=STRETCH))
    return after_scaling(
        status.scale_ins,
        before=before.replicas,
        replicas=replicas,
        config_hash=before.config_hash,
        load=seen.generated_per_second if lately is None else lately,
        now=inputs.now,
    )
