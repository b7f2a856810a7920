"""Samples of one time series, and how counters grow over them.

`extrapolated_increase` repeats the arithmetic of PromQL's `increase()`, so that a recording and a Prometheus that
scraped the same engine give the same numbers (e2e/test_prometheus_agrees.py compares them).
Must not: depend on the metric.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

import msgspec

__all__ = ["STALE_AFTER_INTERVALS", "Series", "extrapolated_increase", "plain_increase", "since"]

STALE_AFTER_INTERVALS: Final = 3
"""Scrape intervals without a sample after which an engine is silent. Design: diagnosis.md, inputs."""


class Series(msgspec.Struct, frozen=True, gc=False):  # a fleet has 150 for each engine, and no reference leads back
    """One series: its labels (with `__name__`), sample times (Unix seconds, ascending) and values, same length.

    Without any sample: the source holds native histograms where numbers were asked for.
    """

    labels: Mapping[str, str]
    times: Sequence[float]
    values: Sequence[float]

    @property
    def name(self) -> str:
        """The metric name; empty where the source gave none."""
        return self.labels.get("__name__", "")

    @property
    def pace(self) -> float | None:
        """The median gap between samples, in seconds; None below two."""
        gaps = [after - before for before, after in pairwise(self.times)]
        return median(gaps) if gaps else None

    def is_stale(self, *, at: float, interval: float) -> bool:
        """Whether the last sample is too old at `at` (Unix seconds) for a target scraped each `interval` seconds."""
        return at - self.times[-1] > STALE_AFTER_INTERVALS * interval


def since(series: Series, *, start: float, end: float) -> Series:
    """Return the samples with start < time <= end, as PromQL's range selector does."""
    first, last = bisect_right(series.times, start), bisect_right(series.times, end)
    return Series(labels=series.labels, times=series.times[first:last], values=series.values[first:last])


def plain_increase(values: Sequence[float]) -> float | None:
    """How much a counter grew from the first to the last sample; a fall is a restart from zero. None below two."""
    if len(values) < 2:
        return None
    grown = values[-1] - values[0]
    for before, after in pairwise(values):
        if after < before:
            grown += before
    return grown


def extrapolated_increase(series: Series, *, start: float, end: float) -> float | None:
    """How much a counter grew over (start, end], extrapolated to the edges as PromQL does. None below 2 samples."""
    window = since(series, start=start, end=end)
    grown = plain_increase(window.values)
    if grown is None:
        return None
    sampled = window.times[-1] - window.times[0]
    if sampled <= 0:
        return None
    spacing = sampled / (len(window.times) - 1)
    to_start, to_end = window.times[0] - start, end - window.times[-1]
    # PromQL extends to the edge only when the edge is near (1.1 of the mean spacing), else by half a spacing,
    # and never back beyond the moment at which the counter would have been zero.
    if to_start >= spacing * 1.1:
        to_start = spacing / 2
    if grown > 0 and window.values[0] >= 0:
        to_start = min(to_start, sampled * (window.values[0] / grown))
    if to_end >= spacing * 1.1:
        to_end = spacing / 2
    return grown * (sampled + to_start + to_end) / sampled
