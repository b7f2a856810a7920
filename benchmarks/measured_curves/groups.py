"""Curves that one law must explain: one set-up (model, GPU, TP, types, version) under several length mixes.

Apart from reading, because which curves belong together is a decision, and from the simulator, which plays them.
Must not: look at file names. Two curves with the same lengths cannot be one set-up (some flag differs that no column
tells), so such a group is split by source, then by file.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.measured_curves.priors import LawPriors, fastest_prefill, physics_priors
from benchmarks.measured_curves.read import Curve, Point
from benchmarks.measured_curves.saturation import LoadPoint, SaturationSign, first_saturation_sign
from benchmarks.measured_curves.step_sample import StepSample, steady_sample
from benchmarks.measured_curves.structured_law import StructuredLawFit, fit_structured_law
from vllm_autotuner.engine.geometry import ModelShape, geometry_named
from vllm_autotuner.engine.hardware import Gpu, gpu_named

__all__ = [
    "DEFAULT_SEATS",
    "DEFAULT_UTILIZATION",
    "SetUp",
    "first_sign",
    "fit_set_up",
    "fit_without",
    "sample_at",
    "set_ups",
    "usable_points",
]

DEFAULT_UTILIZATION: Final = 0.9
"""gpu-memory-utilization where the notes tell none: vLLM's own before 0.21, newer than most curves."""
DEFAULT_SEATS: Final = 1024
"""max-num-seqs where the notes tell none: vLLM's own on GPUs of 70 GiB and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """Curves of one engine under different lengths."""

    curves: tuple[Curve, ...]

    @property
    def first(self) -> Curve:
        """Any of them: in what matters here they agree."""
        return self.curves[0]

    @property
    def shape(self) -> ModelShape:
        """The model's geometry, if its name is known."""
        return geometry_named(self.first.model)

    @property
    def gpu(self) -> Gpu | None:
        """The GPU, if its name is known."""
        return gpu_named(self.first.gpu)

    @property
    def priors(self) -> LawPriors:
        """What physics says of it."""
        return physics_priors(
            self.shape,
            self.gpu,
            tensor_parallel_size=self.first.tensor_parallel_size,
            bytes_per_weight=self.first.bytes_per_weight,
        )

    @property
    def fastest_prefill(self) -> float | None:
        """Seconds per prompt token that nothing beats, where known."""
        return fastest_prefill(
            self.shape,
            self.gpu,
            tensor_parallel_size=self.first.tensor_parallel_size,
            bytes_per_weight=self.first.bytes_per_weight,
        )


def set_ups(curves: Sequence[Curve]) -> tuple[SetUp, ...]:
    """Group curves by what they say of themselves; split groups that contradict themselves."""
    groups = _by(
        curves,
        lambda curve: (
            curve.model, curve.gpu, curve.tensor_parallel_size, curve.kv_dtype, curve.version, curve.weights,
        ),
    )  # fmt: skip
    for finer in (lambda curve: curve.source, lambda curve: curve.file):
        groups = [part for group in groups for part in (_by(group, finer) if _contradicts(group) else [group])]
    return tuple(SetUp(curves=tuple(group)) for group in groups)


def _by(curves: Sequence[Curve], key: Callable[[Curve], Hashable]) -> list[list[Curve]]:
    groups: dict[Hashable, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(key(curve), []).append(curve)
    return list(groups.values())


def _contradicts(group: Sequence[Curve]) -> bool:
    """Whether two curves have the same lengths, up to rounding."""
    lengths = [(curve.points[0].prompt_tokens, curve.points[0].output_tokens) for curve in group]
    return any(
        abs(one[0] - other[0]) <= 0.1 * one[0] and abs(one[1] - other[1]) <= 0.1 * one[1]
        for index, one in enumerate(lengths)
        for other in lengths[:index]
    )


def first_sign(curve: Curve) -> SaturationSign | None:
    """Return the first sign of saturation on a measured curve."""
    points = [
        LoadPoint(load=point.x, tpot=point.tpot, ttft=point.ttft, throughput=point.throughput, waiting=point.waiting)
        for point in curve.points
    ]
    if curve.seats is not None and not curve.load.closed and not curve.load.is_rate:
        over = next((index for index, point in enumerate(curve.points) if point.x > curve.seats), len(points))
        sign = first_saturation_sign(points[: over + 1])
        if sign is None and over < len(points):
            return SaturationSign(over, f"{points[over].load:g} in the system, {curve.seats} seats")
        return sign
    return first_saturation_sign(points)


def usable_points(curve: Curve) -> tuple[Point, ...]:
    """Return the points below the first sign of saturation."""
    sign = first_sign(curve)
    return curve.points if sign is None else curve.points[: sign.index]


def batch_of(curve: Curve, point: Point) -> float:
    """Return the sequences that run together at a point; in a closed loop, the seats that so many clients fill.

    In an open loop it follows from the output rate: so many tokens per second, each of which took one step of its
    sequence. Never less than one: whatever the mean over time, a token is made in the company of its own sequence.
    """
    if curve.load.closed:
        return max(1.0, point.x)
    rate = point.x * point.output_tokens * curve.mean_share if point.throughput is None else point.throughput
    return max(1.0, rate * point.tpot)


def sample_at(curve: Curve, point: Point) -> StepSample:
    """Return what a step had to do at a point below saturation.

    The batch is that below saturation, where nobody queues.
    """
    return steady_sample(
        batch=batch_of(curve, point),
        prompt_tokens=point.prompt_tokens * curve.mean_share,
        output_tokens=point.output_tokens * curve.mean_share,
        itl=point.tpot,
        mix=f"{curve.file}:{curve.mix}",
    )


def fit_set_up(set_up: SetUp) -> StructuredLawFit:
    """Fit the law on every curve of the set-up, below saturation."""
    return _fit(set_up, set_up.curves)


def fit_without(set_up: SetUp, left_out: Curve) -> StructuredLawFit:
    """Fit the law on the other curves only: what it says of `left_out` is then a prediction."""
    return _fit(set_up, [curve for curve in set_up.curves if curve is not left_out])


def _fit(set_up: SetUp, curves: Sequence[Curve]) -> StructuredLawFit:
    samples = [sample_at(curve, point) for curve in curves for point in usable_points(curve)]
    return fit_structured_law(samples, priors=set_up.priors)
