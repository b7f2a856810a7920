"""Every measured point against the simulator: with the fitted profile, and with a law that never saw the curve.

Apart from playing and fitting, because here the two meet the measurement.
Must not: leave out a point because it fits badly. What cannot be compared is None, with the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.measured_curves.groups import DEFAULT_UTILIZATION, SetUp, first_sign, fit_without
from benchmarks.measured_curves.play import Lengths, Played, play_closed, play_open
from benchmarks.measured_curves.profile_fit import Family, profile_of
from benchmarks.measured_curves.read import Curve, CurveError, Point
from benchmarks.measured_curves.saturation import LoadPoint, first_saturation_sign
from benchmarks.measured_curves.structured_law import StructuredLaw
from vllm_autotuner.engine.flags import EngineFlags
from vllm_autotuner.simulation.configuration import EngineConfig, Profile, StartupRefused, configure
from vllm_autotuner.simulation.step_duration import StepLaw

__all__ = ["ComparedCurve", "ComparedPoint", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPoint:
    """One point; seconds."""

    point: Point
    saturated: bool
    """At or above the first sign of saturation: the law was not fitted on it."""
    played: Played
    unseen: Played | None
    """Played with the law of the other mixes; None when there is no other mix."""

    @property
    def error(self) -> float:
        """Relative error of TPOT, signed."""
        return self.played.tpot / self.point.tpot - 1

    @property
    def unseen_error(self) -> float | None:
        """The same for the law that never saw this curve."""
        return None if self.unseen is None else self.unseen.tpot / self.point.tpot - 1

    @property
    def ttft_error(self) -> float | None:
        """Relative error of TTFT, signed; None where it was not measured."""
        return None if self.point.ttft is None else self.played.ttft / self.point.ttft - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCurve:
    """One curve."""

    curve: Curve
    profile: str
    points: tuple[ComparedPoint, ...]

    @property
    def measured_sign(self) -> int | None:
        """Index of the first saturated point, as measured."""
        sign = first_sign(self.curve)
        return None if sign is None else sign.index

    @property
    def played_sign(self) -> int | None:
        """The same for the simulator, by the same rule on its own TTFT and TPOT."""
        points = [LoadPoint(load=each.point.x, tpot=each.played.tpot, ttft=each.played.ttft) for each in self.points]
        sign = first_saturation_sign(points)
        return None if sign is None else sign.index

    @property
    def saturates_within_one_step(self) -> bool:
        """Whether both saturate within one step of the grid; never counts as one step beyond its end."""
        end = len(self.points)
        measured = end if self.measured_sign is None else self.measured_sign
        played = end if self.played_sign is None else self.played_sign
        return abs(measured - played) <= 1


def compare(
    families: Sequence[Family], *, seed: int, progress: Callable[[str], None] = lambda _: None
) -> tuple[ComparedCurve, ...]:
    """Play every curve of every family."""
    compared = []
    for family in families:
        document = profile_of(family)
        for set_up, _ in family.laws.values():
            for curve in set_up.curves:
                progress(f"playing {curve.file}")
                compared.append(_compare_curve(set_up, curve, document.name, document.profile, seed=seed))
    return tuple(compared)


def _compare_curve(set_up: SetUp, curve: Curve, name: str, profile: Profile, *, seed: int) -> ComparedCurve:
    law = fit_without(set_up, curve) if len(set_up.curves) > 1 else None
    sign = first_sign(curve)
    points = []
    for index, point in enumerate(curve.points):
        config = _config(curve, point, profile)
        saturated = sign is not None and index >= sign.index
        unseen = None
        if isinstance(law, StructuredLaw):
            step = StepLaw(
                base=law.base,
                per_sequence=law.per_sequence,
                per_held_token=law.per_held_token,
                per_prefill_token=law.per_prefill_token,
            )
            unseen = _play(replace(config, law=step), curve, point, saturated=saturated, seed=seed)
        played = _play(config, curve, point, saturated=saturated, seed=seed)
        points.append(ComparedPoint(point=point, saturated=saturated, played=played, unseen=unseen))
    return ComparedCurve(curve=curve, profile=name, points=tuple(points))


def _config(curve: Curve, point: Point, profile: Profile) -> EngineConfig:
    longest = round(point.prompt_tokens) + round(point.output_tokens) + 1
    seats = round(point.x) if curve.load.is_max_num_seqs else curve.seats
    flags = EngineFlags(
        max_num_seqs=seats,
        max_model_len=longest,
        tensor_parallel_size=curve.tensor_parallel_size,
        kv_cache_dtype="fp8" if curve.fp8_kv else None,
        gpu_memory_utilization=curve.utilization or DEFAULT_UTILIZATION,
        max_num_batched_tokens=curve.batched_tokens,
        enable_prefix_caching=False,
    )
    try:
        return configure(flags, profile=replace(profile, model_max_len=max(longest, profile.model_max_len)))
    except StartupRefused as error:
        raise CurveError(f"{curve.file}, line {point.line}: no engine starts like this: {error}") from None


def _play(config: EngineConfig, curve: Curve, point: Point, *, saturated: bool, seed: int) -> Played:
    lengths = Lengths(prompt=point.prompt_tokens, output=point.output_tokens, shortest=curve.shortest)
    if curve.load.closed or (saturated and not curve.load.is_rate):
        # Past capacity an open loop has no steady state; the measured one was held by as many clients.
        return play_closed(config, clients=max(1, round(point.x)), lengths=lengths, seed=seed)
    mean_output = point.output_tokens * curve.mean_share
    rate = point.x if curve.load.is_rate else (point.throughput or 0.0) / mean_output
    return play_open(config, rate=rate, lengths=lengths, seed=seed)
