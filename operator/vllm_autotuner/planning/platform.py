"""The platform of one service, as far as it is known: model shape, GPU, weights and free GPUs in the cluster.

Separate from the observation, because none of it is measured, and from the knobs, because none of it is tuned.
Must not: guess. Unknown values stay unknown, and every check that needs one reports it.
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
    """The inputs of formulas that metrics do not provide."""

    shape: ModelShape = UnknownGeometry("the model is not known")
    gpu: Gpu | None = None
    bytes_per_weight: float | None = None
    step_tokens: int | None = None
    """--max-num-batched-tokens; None if no flag sets it: the engine's default depends on max-num-seqs."""
    free_gpus: FreeGpus | None = None
    """Free GPUs; None if not determined."""
    devices_ours: bool = False
    """Whether the operator sets the GPUs of a replica, so that it can change the tensor-parallel size."""


def platform_of(spec: VLLMServiceSpec, *, catalogue: Catalogue, free_gpus: FreeGpus | None = None) -> Platform:
    """Return the platform that a spec describes: model, device and untuned flags."""
    model = "" if spec.model is None else spec.model.name
    args = () if spec.engine is None else spec.engine.args
    product = None if spec.accelerator is None else spec.accelerator.product
    if product is None and free_gpus is not None and free_gpus.product:
        product = free_gpus.product
    found = platform_named(model, gpu=product, args=args, catalogue=catalogue)
    ours = spec.accelerator is not None and spec.target_ref is None
    return replace(found, free_gpus=free_gpus, devices_ours=ours)


def platform_named(model: str, *, gpu: str | None, catalogue: Catalogue, args: tuple[str, ...] = ()) -> Platform:
    """Return the platform by names, without a spec. An empty model name means unknown."""
    found = Platform(gpu=catalogue.gpu(gpu), step_tokens=_step_tokens(args))
    if not model:
        return found
    return replace(found, shape=catalogue.shape(model), bytes_per_weight=bytes_per_weight(model, args))


def _step_tokens(args: tuple[str, ...]) -> int | None:
    try:
        return parse_flags(args).max_num_batched_tokens
    except FlagError:
        return None
