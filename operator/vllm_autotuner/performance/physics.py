"""What engines in general cost, before anything is measured.

Every constant has its source. All are priors, not laws of nature: beside each stands its range over measured curves of
8B to 70B models on H100 and H200.
Must not: fit.
"""

from typing import Final

__all__ = ["BANDWIDTH_SHARE", "PER_SEQUENCE", "READ_TO_BASE", "SEQUENCE_TO_BASE", "empty_step"]

BANDWIDTH_SHARE: Final = 0.72
"""Part of the memory bandwidth that reading the KV cache reaches. Free fits of five groups: 0.70-0.82."""
PER_SEQUENCE: Final = 0.045e-3
"""Seconds per sequence: sampling, scheduling. Free fits: 0.038-0.062 ms for 32B-70B, 0-0.03 ms for 8B."""
READ_TO_BASE: Final = 0.004
"""Reading 1,000 KV tokens against an empty step, when geometry or GPU is unknown: both read the same memory.
0.0029-0.0047 for dense 32B-70B models at TP 1-4, 0.0077 for an 8B model."""
SEQUENCE_TO_BASE: Final = 0.004
"""What a sequence costs against an empty step, when the GPU is unknown. The same models: 0.0029-0.0066; 8B: 0-0.004."""


def empty_step(itl: float, *, batch: float, context: float, prefilling: float) -> float:
    """Return the seconds that a step without a sequence probably takes, from a single measured one.

    For engines in general, as one batch tells nothing of another: good to tell what is worth trying, not what will be.
    `context`: tokens held per sequence. `prefilling`: part of the time (0..1) in which prompts are computed.
    Worked: 28 ms at 68 sequences of 700 tokens, a third of it prompts: 28 * 0.67 / (1 + 68 * 0.0068) = 12.8 ms.
    """
    added = batch * (SEQUENCE_TO_BASE + READ_TO_BASE * context / 1000)
    return itl * (1 - prefilling) / (1 + added)
