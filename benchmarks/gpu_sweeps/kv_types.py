"""The step with the KV cache in 8 bit beside 16 bit: two engines on one GPU, one after the other, the same loads.

The product foretells a larger KV cache from `--kv-cache-dtype fp8` and the same step time (`planning.forecast`), so
what is measured is the error of that, relative to 16 bit.
Must not: fit.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.gpu_sweeps.tables import SweepPoint, read_sweep
from benchmarks.recordings.read import BadRecording

__all__ = ["Pair", "pairs_of"]

IN_16_BIT: Final = "h200-kv-auto.om.gz"
IN_8_BIT: Final = "h200-kv-fp8.om.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One load on both engines."""

    in_16_bit: SweepPoint
    in_8_bit: SweepPoint

    @property
    def change(self) -> float:
        """Of the mean inter-token latency by 8 bit, relative, signed."""
        return self.in_8_bit.itl / self.in_16_bit.itl - 1


def pairs_of(folder: Path) -> tuple[Pair, ...]:
    """Read both recordings. Raises BadRecording, also where their loads differ."""
    one, other = (read_sweep(folder / name).points for name in (IN_16_BIT, IN_8_BIT))
    if [_load(each) for each in one] != [_load(each) for each in other]:
        raise BadRecording(f"{folder}: {IN_16_BIT} and {IN_8_BIT} are not of the same loads")
    return tuple(Pair(in_16_bit=first, in_8_bit=second) for first, second in zip(one, other, strict=True))


def _load(point: SweepPoint) -> tuple[int, float, float]:
    return point.clients, point.prompt_tokens, point.output_tokens
