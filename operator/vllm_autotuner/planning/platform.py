"""What one service runs on, as far as anybody told: the model's shape, the GPU, the weights, the room in the cluster.

Apart from the observation, because none of it is measured; apart from the knobs, because we change none of it.
Must not: guess. What is not known stays unknown, and every check that needs it says so.
"""

from dataclasses import dataclass, replace

from vllm_autotuner.api.spec import VLLMServiceSpec
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.engine.flags import FlagError, parse_flags
from vllm_autotuner.engine.geometry import ModelShape, UnknownGeometry
from vllm_autotuner.engine.hardware import Gpu
from vllm_autotuner.engine.weights import bytes_per_weight
from vllm_autotuner.planning.placement import FreeGpus

__all__ = ["Platform", "platform_named", "platform_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Everything that formulas need and metrics do not tell."""

    shape: ModelShape = UnknownGeometry("the model is not known")
    gpu: Gpu | None = None
    bytes_per_weight: float | None = None
    step_tokens: int | None = None
    """--max-num-batched-tokens; None where no flag sets it: the engine's own default grows with the seats."""
    free_gpus: FreeGpus | None = None
    """GPUs that are free; None where nobody looked."""
    devices_ours: bool = False
    """The operator sets the devices of a replica, so that another degree gets as many as it needs."""


def platform_of(spec: VLLMServiceSpec, *, catalogue: Catalogue, free_gpus: FreeGpus | None = None) -> Platform:
    """Return what a spec says: model, device and the flags that are not tuned."""
    model = "" if spec.model is None else spec.model.name
    args = () if spec.engine is None else spec.engine.args
    product = None if spec.accelerator is None else spec.accelerator.product
    if product is None and free_gpus is not None and free_gpus.product:
        product = free_gpus.product
    found = platform_named(model, gpu=product, args=args, catalogue=catalogue, free_gpus=free_gpus)
    return replace(found, devices_ours=spec.accelerator is not None and spec.target_ref is None)


def platform_named(
    model: str, *, gpu: str | None, catalogue: Catalogue, args: tuple[str, ...] = (), free_gpus: FreeGpus | None = None
) -> Platform:
    """Return what names say, where there is no spec. An empty model is not known."""
    if not model:
        return Platform(gpu=catalogue.gpu(gpu), step_tokens=_step_tokens(args), free_gpus=free_gpus)
    return Platform(
        shape=catalogue.shape(model),
        gpu=catalogue.gpu(gpu),
        bytes_per_weight=bytes_per_weight(model, args),
        step_tokens=_step_tokens(args),
        free_gpus=free_gpus,
    )


def _step_tokens(args: tuple[str, ...]) -> int | None:
    try:
        return parse_flags(args).max_num_batched_tokens
    except FlagError:
        return None
