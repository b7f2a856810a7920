"""One sample for a step-time fit: a stretch of steady operation with the work per step.

Separate from the fit, because windows of a running service and points of a measured curve both become samples.
Must not: fit or judge.
"""

from dataclasses import dataclass

__all__ = ["StepSample", "steady_sample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """Means over one stretch; seconds and tokens."""

    batch: float
    """Sequences that run together."""
    held_tokens: float
    """Tokens of KV that the batch holds."""
    prefill_tokens: float
    """Prompt tokens computed per step, as a running sequence sees it: its own prompt delays only the others."""
    itl: float
    """Mean inter-token latency, seconds."""
    weight: float = 1.0
    """How much it counts against the others: the tokens behind it, or 1 each."""
    mix: str = ""
    """Samples of one length mix share a name: leave-one-mix-out leaves them out together."""


def steady_sample(
    *, batch: float, prompt_tokens: float, output_tokens: float, itl: float = 0.0, weight: float = 1.0, mix: str = ""
) -> StepSample:
    """Return the steady state of `batch` sequences of these lengths, out of step with each other.

    Each holds its prompt and on average half of its output. In the `output_tokens` steps of a sequence every other one
    is replaced once, so each step computes (batch - 1) / output_tokens prompts. Worked: batch 8, 4096 + 128 tokens:
    8 * (4096 + 64) = 33,280 held, 7 * 4096 / 128 = 224 prefilled per step.
    """
    return StepSample(
        batch=batch,
        held_tokens=batch * (prompt_tokens + output_tokens / 2),
        prefill_tokens=max(0.0, batch - 1) * prompt_tokens / output_tokens,
        itl=itl,
        weight=weight,
        mix=mix,
    )
