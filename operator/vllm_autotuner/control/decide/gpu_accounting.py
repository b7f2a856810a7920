"""Records in a status how many GPUs a service asks for, whenever that number changes, and which.

Apart from `tick`, because nothing is decided by it; `overview.gpu_hours` sums it up. Written only together with
something else: a number that stands needs no write.
Must not: count pods. What is asked for is recorded; pods that start or wait for a node are not told apart.
"""

from datetime import datetime
from typing import Final

from vllm_autotuner.api.gpu_steps import GpuCause, GpuStep, merged
from vllm_autotuner.api.spec import Accelerator
from vllm_autotuner.api.status import ActiveChange, Effective, Outcome, VLLMServiceStatus
from vllm_autotuner.change.world import Ending
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.workload.engine_container import ranks

__all__ = ["accounted", "gpus_asked_for"]

Ended = tuple[ActiveChange, Ending] | None

_UNKNOWN_BEFORE: Final = (GpuCause.START, None)


def gpus_asked_for(effective: Effective | None, accelerator: Accelerator | None) -> int | None:
    """GPUs of all replicas. None without an accelerator (no GPU, or one that only the pod template names), and where
    another controller sets the replicas.
    """
    if effective is None or accelerator is None or effective.replicas is None:
        return None
    return effective.replicas * ranks(effective)


def accounted(status: VLLMServiceStatus, *, inputs: Inputs, ended: Ended) -> VLLMServiceStatus:
    """The status with the GPU's product as far as it is known, and with a new step where it asks for another number of
    GPUs than the last step says.
    """
    status = status.updated(gpu_product=_product(inputs, before=status.gpu_product))
    accelerator, before = inputs.service.spec.accelerator, inputs.service.status.effective
    now = gpus_asked_for(status.effective, accelerator)
    steps = status.gpu_steps
    if not steps:
        started = _started(before, accelerator, now=inputs.now) or _started(
            status.effective, accelerator, now=inputs.now
        )
        if started is None:
            return status
        steps = (started,)
    last = steps[-1]
    if last.gpus != now:
        steps = (*steps, _step(status, last, now, inputs=inputs, ended=ended))
    return status.updated(gpu_steps=merged(steps))


def _product(inputs: Inputs, *, before: str | None) -> str | None:
    """What the spec or the adopted Deployment says, else what the nodes of its pods say when they are looked at."""
    accelerator = inputs.service.spec.accelerator
    if accelerator is not None and accelerator.product:
        return accelerator.product
    return before if inputs.free_gpus is None else inputs.free_gpus.product or None


def _started(effective: Effective | None, accelerator: Accelerator | None, *, now: datetime) -> GpuStep | None:
    """The first step: what is asked for, since it is; None where the number is not known."""
    gpus = gpus_asked_for(effective, accelerator)
    if effective is None or gpus is None:
        return None
    return GpuStep(
        at=min(effective.since or now, now),
        cause=GpuCause.START,
        gpus=gpus,
        reference=gpus,
        replicas=effective.replicas,
    )


def _step(status: VLLMServiceStatus, last: GpuStep, gpus: int | None, *, inputs: Inputs, ended: Ended) -> GpuStep:
    cause, change_id = _UNKNOWN_BEFORE if last.gpus is None else _cause(status, inputs=inputs, ended=ended)
    reference: float | None = last.reference
    if gpus is None:
        reference = None
    elif last.gpus is None or reference is None:
        reference = gpus
    elif cause is GpuCause.OWNER:
        reference = max(0.0, reference + gpus - last.gpus)
    return GpuStep(
        # A clock that was set back must not make a step that ends before it begins.
        at=max(inputs.now, last.at),
        cause=cause,
        gpus=gpus,
        reference=reference,
        replicas=_replicas(status),
        change_id=change_id,
    )


def _cause(status: VLLMServiceStatus, *, inputs: Inputs, ended: Ended) -> tuple[GpuCause, str | None]:
    if ended is not None:
        change, ending = ended
        if ending.outcome is Outcome.SUCCEEDED or ending.serving == change.to:
            return GpuCause.CHANGE, change.id
    before, after = inputs.service.status.effective, status.effective
    moved = before is not None and after is not None and before.replicas != after.replicas
    if moved and inputs.service.spec.scaling is not None and after is not None and after.replicas_reason:
        return GpuCause.SCALING, None
    return GpuCause.OWNER, None


def _replicas(status: VLLMServiceStatus) -> int | None:
    return None if status.effective is None else status.effective.replicas
