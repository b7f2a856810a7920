"""Quantiles, mean and count of a histogram with cumulative buckets.

A quantile inside a bucket is interpolation. vLLM's TPOT buckets are wide (10, 25, 50, 75 ms): with everything at 30 ms,
`histogram_quantile(0.95)` says 49 ms, and an objective of 40 ms looks missed although it is met. Where the exact
mean is known, a shape that has it and fills the buckets as counted tells where in its bucket a quantile lies (`shape`).
Must not: invent a quantile without observations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_autotuner.observation.reading import Absence, Measured, NoData, Reading, number
from vllm_autotuner.observation.shape import shape_of

__all__ = ["Distribution", "merged"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Observations of a window. `buckets`: upper edge -> cumulative count, with +Inf; `total`: their sum."""

    buckets: Mapping[float, float] = field(default_factory=dict)
    total: float | None = None
    count: float = 0.0
    missing: str = ""
    """Why there are no buckets at all; empty when the family is exported."""
    _quantiles: dict[float, Reading] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Those that were asked for: each class and each candidate of one decision asks for the same few."""

    def quantile(self, q: float) -> Reading:
        """The q-quantile (0 < q < 1); above the last finite edge that edge is returned, or the mean if it is higher.

        Below that it never leaves its bucket: there it lies by the shape that the mean allows, or evenly where no mean
        is known.
        """
        if (found := self._quantiles.get(q)) is None:
            found = self._quantiles[q] = self._quantile(q)
        return found

    def _quantile(self, q: float) -> Reading:
        if not self.buckets:
            return NoData(Absence.NOT_EXPORTED, self.missing or "no such histogram")
        edges = sorted(self.buckets)
        everything = self.buckets[edges[-1]]
        if everything <= 0 or math.isnan(everything):
            return NoData(Absence.NO_TRAFFIC, "no observations in this window")
        if math.isinf(edges[0]):
            return NoData(Absence.NOT_EXPORTED, "no bucket with a finite edge: some relabelling drops them")
        rank, below_edge, below_count = q * everything, 0.0, 0.0
        for edge in edges:
            # Rates of neighbouring buckets are extrapolated apart; a tiny fall between them is rounding, not data.
            cumulative = max(self.buckets[edge], below_count)
            if cumulative >= rank:
                if math.isinf(edge):
                    # The edges may be far too low: those above are dropped to save series.
                    return Measured(max(below_edge, number(self.mean) or 0.0))
                inside = cumulative - below_count
                share = (rank - below_count) / inside if inside > 0 else 1.0
                return Measured(self._inside(below_edge, edge, share=share))
            below_edge, below_count = edge, cumulative
        return Measured(below_edge)

    def exceeded_by(self, share: float) -> float:
        """The highest edge that at least this share (0 < share < 1) of the observations lie above; 0 if none is."""
        edges = sorted(self.buckets)
        everything = self.buckets[edges[-1]] if edges else 0.0
        above = (edge for edge in edges if everything > 0 and self.buckets[edge] <= (1 - share) * everything)
        return max((edge for edge in above if not math.isinf(edge)), default=0.0)

    def divided(self, by: float) -> "Distribution":
        """Return the same observations in a unit that is so many times as large."""
        if by == 1:
            return self
        buckets = {edge / by: count for edge, count in self.buckets.items()}
        return replace(self, buckets=buckets, total=None if self.total is None else self.total / by)

    def without_zeros(self, share: float) -> "Distribution":
        """Return it less `share` (0..1) of its observations that were 0: no more than its first bucket has.

        Worked: 400 with a mean of 30 ms of which a quarter are 0 are 300 with a mean of 40 ms.
        """
        everything = max(self.buckets.values(), default=0.0)
        if not everything > 0:
            return self
        share = min(share, self.buckets[min(self.buckets)] / everything)
        buckets = {edge: count - share * everything for edge, count in self.buckets.items()}
        return replace(self, buckets=buckets, count=self.count * (1 - share))

    def _inside(self, low: float, high: float, *, share: float) -> float:
        mean = self.mean
        if not isinstance(mean, Measured) or not 0 < mean.value < math.inf:
            return low + (high - low) * share
        return shape_of(tuple(sorted(self.buckets.items())), mean.value).inside(low, high, share=share)

    @property
    def mean(self) -> Reading:
        """The mean, from sum and count: exact, unlike a quantile."""
        if self.total is None:
            return NoData(Absence.NOT_EXPORTED, self.missing or "no such histogram")
        if self.count <= 0:
            return NoData(Absence.NO_TRAFFIC, "no observations in this window")
        return Measured(self.total / self.count)


def merged(parts: Sequence[Distribution]) -> Distribution:
    """Add the observations of several engines. Engines that export nothing are left out, not counted as zero."""
    known = [part for part in parts if part.buckets or part.total is not None]
    if not known:
        return parts[0] if parts else Distribution(missing="no engine")
    # Engine versions differ in their edges: a cumulative count can only be added where every part has that edge.
    bucketed = [part.buckets for part in known if part.buckets]
    shared = set(bucketed[0]).intersection(*bucketed[1:]) if bucketed else set()
    buckets = {edge: sum(part[edge] for part in bucketed) for edge in shared}
    totals = [part.total for part in known if part.total is not None]
    return Distribution(buckets=buckets, total=sum(totals) if totals else None, count=sum(part.count for part in known))
