"""Refuses a series that cannot be what its name says: no numbers, impossible values, a bucket without its edge.

Anybody who is scraped chooses names, labels and values. Separate from `snapshot`, which files what is accepted, so that
every refusal is in one place: an engine with an odd series is unreadable, and its neighbours are not.
Must not: repair a value. NaN in a gauge is left alone: a broken exporter's gap is no number, and no lie.
"""

import math
from typing import Final

from vllm_autotuner.engine.metric_names import NAMES, Meaning
from vllm_autotuner.observation.series import Series

__all__ = ["MOST_COUNTED", "OddSeries", "edge_of", "refuse_odd_counts", "refuse_odd_levels"]

MOST_COUNTED: Final = 1e18
"""The largest number that a counter may show: an engine needs a million years for so many tokens. Our choice."""
SLACK: Final = 1.001
"""By how much a gauge may exceed its largest value: rounding."""


class OddSeries(Exception):
    """A series that no vLLM exports; the message names it and says what is wrong with it."""


def refuse_odd_levels(series: Series, *, meaning: Meaning) -> None:
    """Raise OddSeries where the samples of a gauge are not numbers from 0 to the largest that its meaning allows."""
    _refuse_histograms(series)
    if "://" in (server := series.labels.get("server", "")):
        raise OddSeries(f"{series.name} is a router's view of {server[:100]}; scrape the engines themselves")
    highest = NAMES[meaning].highest
    for value in series.values:
        if not (math.isnan(value) or 0 <= value <= highest * SLACK):
            raise OddSeries(f"{series.name} is {value:g}, which is not between 0 and {highest:g}")


def refuse_odd_counts(series: Series) -> None:
    """Raise OddSeries where the samples of a counter, or the sum or count of a histogram, cannot be added up."""
    _refuse_histograms(series)
    for value in series.values:
        if not 0 <= value <= MOST_COUNTED:
            raise OddSeries(f"{series.name} is {value:g}, which no counter of an engine reaches")


def edge_of(series: Series) -> float:
    """Return the upper edge of a bucket. Raises OddSeries where it has none, or its growth is no number."""
    text = series.labels.get("le")
    try:
        edge = float(text) if text is not None else math.nan
    except ValueError:
        edge = math.nan
    if text is None or not edge >= 0:
        wrong = "without the label le" if text is None else f"with le={text[:20]!r}, which is not a number"
        raise OddSeries(f"a histogram has a bucket {wrong}")
    if not series.values or not 0 <= series.values[-1] <= MOST_COUNTED:
        raise OddSeries("a histogram has a bucket whose growth is not a number")
    return edge


def _refuse_histograms(series: Series) -> None:
    if not series.values:
        raise OddSeries(f"{series.name} is a native histogram; vLLM exports a number under this name")
