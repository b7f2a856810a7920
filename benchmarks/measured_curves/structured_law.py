"""Step time as a + cb * batch + ck * tokens held + p * prompt tokens per step: one model for every length mix.

Separate from the line of `step_time`, which is better within one mix and invalid outside it. Four parameters need
several mixes to be identified; with fewer, the priors (`priors`) decide what the data cannot.
Must not: extrapolate silently (`covers`), or keep a prior that the data refute (its weight is bounded).
Source of the form: a step reads the weights, reads the KV of the batch, serves each sequence and computes prompts; it
describes measured curves of 24 mixes with a median error of 1 %, and mixes it has not seen with 2 %.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.measured_curves.priors import TO_BASE_SPREAD, LawPriors, Prior
from benchmarks.measured_curves.step_sample import StepSample
from vllm_autotuner.performance.physics import READ_TO_BASE, SEQUENCE_TO_BASE
from vllm_autotuner.performance.step_time import FEWEST_POINTS, LEAST_SPREAD, SHORTEST_STEP, NoFit

__all__ = ["Range", "StructuredLaw", "StructuredLawFit", "fit_structured_law"]

EXPECTED_NOISE: Final = 0.03
"""Relative error of a sample that sets data against priors: the mean error of one law over six mixes is 2-3 %."""
OUTLIER: Final = 1.5
"""Standard deviations from which a sample, or a prior, pulls with constant force (Huber's usual choice is 1.345)."""
LEAST_NOISE: Final = 0.005
"""Relative. Samples are not believed to be closer to the law than this, or one of them would decide alone."""
ROUNDS: Final = 12
"""Reweightings; measured curves settle within 8."""

FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Range:
    """From the smallest to the largest value seen."""

    low: float
    high: float

    def covers(self, value: float) -> bool:
        """Whether the value lies inside, up to rounding."""
        return self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredLaw:
    """Mean inter-token latency in seconds; what it was fitted on; how far it may be trusted."""

    base: float
    """Seconds: reading the weights, work per layer and on the host."""
    per_sequence: float
    """Seconds per running sequence."""
    per_held_token: float
    """Seconds per token of KV held."""
    per_prefill_token: float
    """Seconds per prompt token computed in the step."""
    batch: Range
    context: Range
    """Tokens held per sequence."""
    prefill: Range
    """Prompt tokens per step and sequence."""
    samples: int
    mixes: int
    error: float
    """Mean absolute relative residual (0..1) of its own samples."""
    priors: str
    """What the data were joined by."""
    covariance: tuple[tuple[float, ...], ...]
    """Of the four parameters, for `interval`."""

    def predict(self, sample: StepSample) -> float:
        """Return the inter-token latency in seconds; the sample's own is not looked at."""
        return float(_row(sample) @ self._parameters)

    def interval(self, sample: StepSample, *, deviations: float = 2.0) -> tuple[float, float]:
        """Return where the inter-token latency is expected: the uncertainty of the parameters and of a sample."""
        mean, row = self.predict(sample), _row(sample)
        noise = max(self.error, LEAST_NOISE) * mean
        deviation = float(np.sqrt(row @ np.array(self.covariance) @ row + noise**2))
        return max(0.0, mean - deviations * deviation), mean + deviations * deviation

    def covers(self, sample: StepSample) -> bool:
        """Whether batch, context and prefill share all lie inside what was seen."""
        return (
            self.batch.covers(sample.batch)
            and self.context.covers(sample.held_tokens / sample.batch)
            and self.prefill.covers(sample.prefill_tokens / sample.batch)
        )

    @property
    def _parameters(self) -> FloatArray:
        return np.array([self.base, self.per_sequence, self.per_held_token, self.per_prefill_token])


StructuredLawFit: TypeAlias = StructuredLaw | NoFit


def fit_structured_law(samples: Sequence[StepSample], *, priors: LawPriors) -> StructuredLawFit:
    """Fit by least squares on relative error, samples and priors reweighted until outliers pull no more than others.

    No parameter is negative: those that would be are left out of the law. NoFit says what is missing.
    """
    usable = [
        sample
        for sample in samples
        if sample.batch > 0 and np.isfinite(sample.itl) and sample.itl >= SHORTEST_STEP and sample.weight > 0
    ]
    if len(usable) < FEWEST_POINTS:
        return NoFit(f"only {len(usable)} samples with load ({FEWEST_POINTS} needed)")
    rows = np.array([_row(sample) for sample in usable])
    if rows[:, 1].max() < LEAST_SPREAD * rows[:, 1].min():
        return NoFit(f"insufficient spread: the batch size only varied between {rows[:, 1].min():.1f} and "
                     f"{rows[:, 1].max():.1f}")  # fmt: skip
    itl = np.array([sample.itl for sample in usable])
    weight = np.array([sample.weight for sample in usable])
    parameters, covariance = _solve(rows / itl[:, None], np.sqrt(weight / weight.mean()), _expected(priors, itl))
    if parameters[1:].max() <= 0:
        return NoFit("inter-token latency does not grow with the batch size")
    residual = np.abs(rows @ parameters / itl - 1)
    return StructuredLaw(
        base=float(parameters[0]),
        per_sequence=float(parameters[1]),
        per_held_token=float(parameters[2]),
        per_prefill_token=float(parameters[3]),
        batch=_range(rows[:, 1]),
        context=_range(rows[:, 2] / rows[:, 1]),
        prefill=_range(rows[:, 3] / rows[:, 1]),
        samples=len(usable),
        mixes=len({sample.mix for sample in usable}),
        error=float(np.average(residual, weights=weight)),
        priors=priors.source,
        covariance=tuple(tuple(map(float, line)) for line in covariance),
    )


def _row(sample: StepSample) -> FloatArray:
    return np.array([1.0, sample.batch, sample.held_tokens, sample.prefill_tokens])


def _range(values: FloatArray) -> Range:
    return Range(float(values.min()), float(values.max()))


def _expected(priors: LawPriors, itl: FloatArray) -> tuple[tuple[int, Prior], ...]:
    """Return the priors by column. Without physics, sequences and KV are expected in proportion to the fastest step."""
    sequence, token = float(itl.min()) * SEQUENCE_TO_BASE, float(itl.min()) * READ_TO_BASE / 1000
    expected = (
        priors.base,
        priors.per_sequence or Prior(sequence, sequence * TO_BASE_SPREAD),
        priors.per_held_token or Prior(token, token * TO_BASE_SPREAD),
        priors.per_prefill_token,
    )
    return tuple((column, prior) for column, prior in enumerate(expected) if prior is not None)


def _solve(rows: FloatArray, weight: FloatArray, priors: Sequence[tuple[int, Prior]]) -> tuple[FloatArray, FloatArray]:
    """Return the parameters and their covariance. `rows` predict 1: both sides are divided by the measured latency."""
    wanted = np.array([prior.mean / prior.spread for _, prior in priors])
    pulls = np.zeros((len(priors), rows.shape[1]))
    for index, (column, prior) in enumerate(priors):
        pulls[index, column] = 1 / prior.spread
    data_weight, prior_weight = weight / EXPECTED_NOISE, np.ones(len(priors))
    for _ in range(ROUNDS):
        left = np.vstack([rows * data_weight[:, None], pulls * prior_weight[:, None]])
        right = np.concatenate([data_weight, wanted * prior_weight])
        parameters = _least_squares(left, right)
        residual = np.abs(rows @ parameters - 1)
        usual = max(1.4826 * float(np.median(residual)), LEAST_NOISE)
        data_weight = weight / EXPECTED_NOISE * _bounded(residual / usual)
        prior_weight = _bounded(np.abs(pulls @ parameters - wanted))
    return parameters, np.asarray(np.linalg.pinv(left.T @ left), dtype=np.float64)


def _bounded(deviations: FloatArray) -> FloatArray:
    """Return the square roots of Huber's weights: 1 near the law, falling where a row would pull ever harder."""
    return np.asarray(np.sqrt(np.minimum(1.0, OUTLIER / np.maximum(deviations, 1e-12))), dtype=np.float64)


def _least_squares(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the non-negative parameters with the smallest squared error: all of them, or the best subset."""
    scale = np.sqrt(np.sum(left**2, axis=0))
    scale[scale == 0] = 1.0
    left = left / scale
    whole = np.linalg.lstsq(left, right, rcond=None)[0]
    if (whole >= 0).all():
        return np.asarray(whole / scale, dtype=np.float64)
    columns = range(left.shape[1])
    best, least = np.zeros(left.shape[1]), float(right @ right)
    for subset in itertools.chain.from_iterable(itertools.combinations(columns, size) for size in columns):
        part = np.linalg.lstsq(left[:, subset], right, rcond=None)[0]
        error = float(np.sum((left[:, subset] @ part - right) ** 2))
        if (part >= 0).all() and error < least:
            best, least = np.zeros(left.shape[1]), error
            best[list(subset)] = part
    return np.asarray(best / scale, dtype=np.float64)
