"""From the laws of one model on one GPU, at one or several tensor parallel sizes, to a profile of the simulator.

Apart from the fit of a law, because here memory joins in and tensor parallelism is a scale between laws.
Must not: write a file, or invent a pool: without geometry the pool comes from where the curves saturate, and says so.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.measured_curves.groups import SetUp, fit_set_up, fit_without, sample_at, usable_points
from benchmarks.measured_curves.pool_fit import weight_bytes, with_pool
from benchmarks.measured_curves.structured_law import StructuredLaw
from vllm_autotuner.engine.geometry import Geometry
from vllm_autotuner.performance.step_time import NoFit
from vllm_autotuner.simulation.configuration import Profile
from vllm_autotuner.simulation.profiles import ProfileDocument
from vllm_autotuner.simulation.step_duration import StepTimes

__all__ = ["Family", "families", "profile_of"]

LARGE_GPU_GIB: Final = 70
"""From here on vLLM's own defaults are 1024 seats and 8192 batched tokens; below, 256 and 2048."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Set-ups that differ only in their tensor parallel size, each with its law."""

    laws: Mapping[int, tuple[SetUp, StructuredLaw]]

    @property
    def first(self) -> SetUp:
        """The one at the smallest size."""
        return self.laws[min(self.laws)][0]

    @property
    def impossible(self) -> str | None:
        """Why its law cannot be that of an engine that computes its prompts; None when it can."""
        for size, (set_up, law) in self.laws.items():
            fastest = set_up.fastest_prefill
            if fastest is not None and law.per_prefill_token < fastest:
                return (
                    f"at TP {size} a prompt token takes {law.per_prefill_token * 1e6:.1f} us, and the GPU needs "
                    f"{fastest * 1e6:.1f} us at its peak: prompts came from a prefix cache"
                )
        return None


def families(set_ups: Sequence[SetUp]) -> tuple[Family, ...]:
    """Join fitted set-ups of one model, GPU, types and version; the same size twice begins another family."""
    found: list[tuple[tuple[object, ...], dict[int, tuple[SetUp, StructuredLaw]]]] = []
    for set_up in set_ups:
        law, first = fit_set_up(set_up), set_up.first
        if isinstance(law, NoFit):
            continue
        key = (first.model, first.gpu, first.kv_dtype, first.version, first.weights)
        for other, laws in found:
            if other == key and first.tensor_parallel_size not in laws:
                laws[first.tensor_parallel_size] = (set_up, law)
                break
        else:
            found.append((key, {first.tensor_parallel_size: (set_up, law)}))
    return tuple(Family(laws=laws) for _, laws in found)


def profile_of(family: Family) -> ProfileDocument:
    """Return the profile that gives back each law of the family at its tensor parallel size."""
    set_up = family.first
    profile = _with_model(family)
    if set_up.gpu is not None and set_up.gpu.memory_gib < LARGE_GPU_GIB:
        profile = replace(profile, max_num_seqs=256, max_num_batched_tokens=2048)
    profile, source = with_pool(profile, {size: each for size, (each, _) in family.laws.items()})
    return ProfileDocument(
        name=_name(set_up),
        model=set_up.first.model,
        gpu=set_up.first.gpu,
        tensor_parallel_sizes=tuple(sorted(family.laws)),
        profile=profile,
        provenance={
            "vllm": set_up.first.version or "unknown",
            "weights": set_up.first.weights or "unknown",
            "pool": source,
            "laws": {str(size): _told(*family.laws[size]) for size in sorted(family.laws)},
        },
    )


def _with_model(family: Family) -> Profile:
    """Return the step times with the model's heads; a made-up number of heads when its geometry is unknown."""
    shape, default = family.first.shape, Profile()
    if not isinstance(shape, Geometry):
        # Any tensor parallel size that was measured must divide the heads.
        heads = default.attention_heads * math.lcm(*family.laws)
        return Profile(step=_step_times(family, kv_heads=default.kv_heads), attention_heads=heads)
    return Profile(
        step=_step_times(family, kv_heads=shape.kv_heads),
        attention_heads=shape.attention_heads,
        kv_heads=shape.kv_heads,
        model_max_len=shape.max_positions or default.model_max_len,
        kv_bytes_per_token=shape.kv_bytes_per_token(bytes_per_value=2),
    )


def _step_times(family: Family, *, kv_heads: int) -> StepTimes:
    """Turn laws at several sizes into one at size 1 and how it scales; what one size cannot tell stays a default."""
    default = StepTimes()
    sizes = np.array(sorted(family.laws), dtype=float)
    laws = [family.laws[size][1] for size in sorted(family.laws)]
    base = np.array([law.base for law in laws]) * 1e3 - default.all_reduce_ms * np.log2(sizes)
    split, rest = _split_and_rest(np.maximum(base, 1e-3), sizes, _weights_ms(family.first))
    prefill = np.array([law.per_prefill_token for law in laws]) * 1e3
    scaling = default.prefill_scaling
    if len(laws) > 1 and prefill.min() > 0:
        scaling = max(0.0, -float(np.polyfit(np.log(sizes), np.log(prefill), 1)[0]))
    return StepTimes(
        base_ms=_short(split + rest),
        per_sequence_ms=_short(np.mean([law.per_sequence for law in laws]) * 1e3),
        per_ktoken_ms=_short(
            np.mean([law.per_held_token * min(size, kv_heads) for law, size in zip(laws, sizes, strict=True)]) * 1e6
        ),
        prefill_per_token_ms=_short(np.mean(prefill * sizes**scaling)),
        weight_share=_short(split / (split + rest)),
        all_reduce_ms=default.all_reduce_ms,
        prefill_scaling=_short(scaling),
    )


def _split_and_rest(
    base: NDArray[np.float64], sizes: NDArray[np.float64], weights_ms: float | None
) -> tuple[float, float]:
    """Return the part of the base that tensor parallelism splits and the part that it does not: split / TP + rest.

    Neither is negative. From one size only the sum is known: the time to read the weights then is the split part, as
    far as the base reaches; without it, the default share.
    """
    if len(sizes) == 1:
        share = StepTimes().weight_share
        split = base[0] * share / (share / sizes[0] + 1 - share) if weights_ms is None else weights_ms
        split = min(split, base[0] * sizes[0])
        return float(split), float(base[0] - split / sizes[0])
    split, rest = np.linalg.lstsq(np.stack([1 / sizes, np.ones(len(sizes))], axis=1), base, rcond=None)[0]
    if split < 0:
        return 0.0, float(np.mean(base))
    if rest < 0:
        return float(np.mean(base * sizes)), 0.0
    return float(split), float(rest)


def _weights_ms(set_up: SetUp) -> float | None:
    """Return how long reading all weights takes a single GPU, where geometry and GPU are known."""
    weights = weight_bytes(set_up)
    return None if weights is None or set_up.gpu is None else weights / set_up.gpu.bandwidth * 1e3


def _name(set_up: SetUp) -> str:
    """Return a file name such as qwen3-32b-h100."""
    model = re.sub(r"-(instruct|chat|it)$", "", set_up.first.model.rsplit("/", 1)[-1].lower())
    gpu = set_up.gpu.name if set_up.gpu is not None else set_up.first.gpu
    return re.sub(r"[^a-z0-9.]+", "-", f"{model}-{gpu.lower()}").strip("-")


def _told(set_up: SetUp, law: StructuredLaw) -> dict[str, object]:
    """Return what a law was fitted on, how well it fits and where it holds."""
    return {
        "mixes": [curve.mix for curve in set_up.curves],
        "sources": sorted({curve.source for curve in set_up.curves if curve.source}),
        "points": law.samples,
        "mean_abs_error": _short(law.error),
        "mean_abs_error_on_an_unseen_mix": _unseen_error(set_up),
        "batch": [_short(law.batch.low), _short(law.batch.high)],
        "context_tokens": [_short(law.context.low), _short(law.context.high)],
        "prefill_tokens_per_sequence_and_step": [_short(law.prefill.low), _short(law.prefill.high)],
        "priors": law.priors,
    }


def _unseen_error(set_up: SetUp) -> float | None:
    """Return the mean error of the laws that never saw the mix they foresee; None with a single mix."""
    errors = []
    for curve in set_up.curves if len(set_up.curves) > 1 else ():
        law = fit_without(set_up, curve)
        if isinstance(law, StructuredLaw):
            samples = [sample_at(curve, point) for point in usable_points(curve)]
            errors += [abs(law.predict(sample) / sample.itl - 1) for sample in samples]
    return _short(np.mean(errors)) if errors else None


def _short(value: float | np.floating) -> float:
    """Round to five digits: more than any of this is known to."""
    return float(f"{value:.5g}")
