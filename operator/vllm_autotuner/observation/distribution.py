"""What a histogram says: quantiles, mean, count. Cumulative buckets in, answers with their limits out.

A quantile inside a bucket is interpolation; vLLM's ITL buckets start at 10 ms, so whatever is faster reads as one
number. Must not: invent a quantile without observations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_autotuner.observation.reading import Absence, Measured, NoData, Reading

__all__ = ["Distribution", "merged"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Observations of a window. `buckets`: upper edge -> cumulative count, with +Inf; `total`: their sum."""

    buckets: Mapping[float, float] = field(default_factory=dict)
    total: float | None = None
    count: float = 0.0
    missing: str = ""
    """Why there are no buckets at all; empty when the family is exported."""

    def quantile(self, q: float) -> Reading:
        """The q-quantile (0 < q < 1), linear inside its bucket; above the last finite edge that edge is returned."""
        if not self.buckets:
            return NoData(Absence.NOT_EXPORTED, self.missing or "no such histogram")
        edges = sorted(self.buckets)
        everything = self.buckets[edges[-1]]
        if everything <= 0 or math.isnan(everything):
            return NoData(Absence.NO_TRAFFIC, "no observations in this window")
        rank, below_edge, below_count = q * everything, 0.0, 0.0
        for edge in edges:
            # Rates of neighbouring buckets are extrapolated apart; a tiny fall between them is rounding, not data.
            cumulative = max(self.buckets[edge], below_count)
            if cumulative >= rank:
                if math.isinf(edge):
                    return Measured(below_edge)
                inside = cumulative - below_count
                share = (rank - below_count) / inside if inside > 0 else 1.0
                return Measured(below_edge + (edge - below_edge) * share)
            below_edge, below_count = edge, cumulative
        return Measured(below_edge)

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
