"""GPUs by name: memory, bandwidth, compute throughput, compute capability.

Separate from the geometry of models, because one grows with vendors and the other with model families.
Must not: guess. A name that is not in the table gives None, and figures that depend on it are unknown.
Names are those of node labels (`nvidia.com/gpu.product`: NVIDIA-H100-80GB-HBM3), of cloud catalogues (A10G) and of
benchmark tables (H100-SXM-80GB): words in any order, other words ignored.
Source: vendor data sheets (dense figures, no sparsity); memory is what the driver leaves of it to a process, measured
79.18 GiB on H100, otherwise about 99 % of the data sheet in GiB (our estimate; error correction of GDDR deducted).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["GPUS", "Gpu", "gpu_named", "words_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One product."""

    name: str
    words: tuple[str, ...]
    """All of them stand in a label of this product."""
    memory_gib: float
    bandwidth: float
    """Bytes per second between memory and cores."""
    flops: float
    """Dense 16-bit operations per second."""
    compute_capability: tuple[int, int] | None
    """NVIDIA's; None for other vendors."""


def _gpu(label: str, memory_gib: float, terabytes: float, teraflops: float, capability: tuple[int, int]) -> Gpu:
    words = tuple(label.upper().split())
    return Gpu(
        name="-".join(words),
        words=words,
        memory_gib=memory_gib,
        bandwidth=terabytes * 1e12,
        flops=teraflops * 1e12,
        compute_capability=capability,
    )


GPUS: Final[tuple[Gpu, ...]] = (
    _gpu("B300", 268.0, 8.0, 2500, (10, 3)),
    _gpu("GB200", 184.0, 8.0, 2500, (10, 0)),
    _gpu("B200", 178.0, 8.0, 2250, (10, 0)),
    _gpu("GH200 144GB", 140.0, 4.9, 989, (9, 0)),
    _gpu("GH200", 94.5, 4.0, 989, (9, 0)),
    _gpu("H200", 139.8, 4.8, 989, (9, 0)),
    _gpu("H100 NVL", 93.1, 3.9, 835, (9, 0)),
    _gpu("H100 PCIE", 79.18, 2.0, 756, (9, 0)),
    _gpu("H100", 79.18, 3.35, 989, (9, 0)),
    _gpu("H800", 79.18, 3.35, 989, (9, 0)),
    _gpu("H20", 95.1, 4.0, 148, (9, 0)),
    _gpu("A100 80GB PCIE", 79.25, 1.935, 312, (8, 0)),
    _gpu("A100 80GB", 79.25, 2.039, 312, (8, 0)),
    _gpu("A100", 39.4, 1.555, 312, (8, 0)),
    _gpu("A800", 79.25, 2.039, 312, (8, 0)),
    _gpu("L40S", 44.4, 0.864, 362, (8, 9)),
    _gpu("L40", 44.4, 0.864, 181, (8, 9)),
    _gpu("L4", 22.0, 0.3, 121, (8, 9)),
    _gpu("A10G", 22.0, 0.6, 70, (8, 6)),
    _gpu("A10", 22.0, 0.6, 125, (8, 6)),
    _gpu("A30", 23.5, 0.933, 165, (8, 0)),
    _gpu("A40", 44.4, 0.696, 150, (8, 6)),
    _gpu("A6000", 47.5, 0.768, 155, (8, 6)),
    _gpu("6000 ADA", 47.5, 0.96, 364, (8, 9)),
    _gpu("PRO 6000", 94.9, 1.792, 503, (12, 0)),
    _gpu("5090", 31.4, 1.792, 210, (12, 0)),
    _gpu("4090", 23.5, 1.008, 165, (8, 9)),
    _gpu("T4", 14.6, 0.32, 65, (7, 5)),
    _gpu("V100 32GB", 31.7, 0.9, 125, (7, 0)),
    _gpu("V100", 15.8, 0.9, 125, (7, 0)),
)
"""Where several rows fit a label, the first does: the longer name stands first."""


def gpu_named(label: str, *, more: Sequence[Gpu] = ()) -> Gpu | None:
    """Return the GPU whose words all stand in `label`, or None. Rows of `more` (the user's own) come first."""
    words = words_of(label)
    return next((gpu for gpu in (*more, *GPUS) if words.issuperset(gpu.words)), None)


def words_of(label: str) -> frozenset[str]:
    """Return the words of a label, in capitals. Worked: NVIDIA-A10G has NVIDIA and A10G."""
    return frozenset(word for word in re.split(r"[^A-Z0-9]+", label.upper()) if word)
