"""Planted laws: samples of an engine whose step time is known, with constants of no measured one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.measured_curves.step_sample import StepSample, steady_sample

Mix = tuple[int, int]
"""Prompt and output tokens."""
BATCHES = (4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A law in seconds. The defaults are a made-up 20B model on a made-up GPU."""

    base: float = 0.0184
    per_sequence: float = 0.000031
    per_held_token: float = 71e-9
    per_prefill_token: float = 0.000083

    def at(self, sample: StepSample) -> float:
        return (
            self.base
            + self.per_sequence * sample.batch
            + self.per_held_token * sample.held_tokens
            + self.per_prefill_token * sample.prefill_tokens
        )

    def samples(
        self, mixes: Sequence[Mix], *, batches: Sequence[float] = BATCHES, noise: float = 0.0, seed: int = 3
    ) -> list[StepSample]:
        wobble = np.random.default_rng(seed).normal(1.0, noise, (len(mixes), len(batches)))
        found = []
        for (prompt, output), row in zip(mixes, wobble, strict=True):
            for batch, factor in zip(batches, row, strict=True):
                sample = steady_sample(
                    batch=batch, prompt_tokens=prompt, output_tokens=output, mix=f"{prompt}x{output}"
                )
                found.append(replace(sample, itl=self.at(sample) * float(factor)))
        return found
