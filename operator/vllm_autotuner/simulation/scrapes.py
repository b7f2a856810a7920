"""Scrapes a simulated pod directly into values, without formatting and parsing its `/metrics` page.

Separate from `metrics_page`, which writes pages: a benchmark scrapes a million times and reads every line back.
Must not: define a metric's name; a test compares each value with the page. Only families that the product reads.
"""

from collections.abc import Iterator
from typing import NamedTuple

from vllm_autotuner.engine.metric_names import CACHE_INFO, canonical_names
from vllm_autotuner.simulation.metrics import Histogram
from vllm_autotuner.simulation.metrics_page import Family, cache_config_labels, families
from vllm_autotuner.simulation.simulated_pod import VirtualPod

__all__ = ["ScrapedValue", "scraped"]

Labels = tuple[tuple[str, str], ...]


class ScrapedValue(NamedTuple):
    """One line of a page: name, labels in order of their names, value."""

    name: str
    labels: Labels
    value: float


def scraped(pod: VirtualPod, *, extra: dict[str, str] | None = None) -> Iterator[ScrapedValue]:
    """Yield what a scrape of this pod brings now; nothing when it does not answer. `extra`: labels of the scraper."""
    if pod.engine is None or not pod.serves:
        return
    common = {"pod": pod.name, **(extra or {})}
    wanted = canonical_names()
    for family in families(pod.engine.metrics):
        name = family.name + ("_total" if family.kind == "counter" else "")
        if family.name in wanted or name in wanted:
            yield from _values(name, family, labels=_labelled(pod, family, common))
    yield ScrapedValue(CACHE_INFO, _sorted({**common, **cache_config_labels(pod.config)}), 1.0)


def _labelled(pod: VirtualPod, family: Family, common: dict[str, str]) -> dict[str, str]:
    engine = {"engine": "0"} if family.engine_label else {}
    return {**common, **engine, "model_name": pod.config.model_name}


def _values(name: str, family: Family, *, labels: dict[str, str]) -> Iterator[ScrapedValue]:
    if not isinstance(family.values, Histogram):
        for own, value in family.values:
            yield ScrapedValue(name, _sorted({**labels, **own}), float(value))
        return
    histogram, below, plain = family.values, 0, _sorted(labels)
    at = next((index for index, (label, _) in enumerate(plain) if label > "le"), len(plain))
    before, after = plain[:at], plain[at:]
    for edge, counted in zip((*map(repr, histogram.edges), "+Inf"), histogram.counts, strict=True):
        below += counted
        yield ScrapedValue(f"{name}_bucket", (*before, ("le", edge), *after), float(below))
    yield ScrapedValue(f"{name}_count", plain, float(below))
    yield ScrapedValue(f"{name}_sum", plain, histogram.total)


def _sorted(labels: dict[str, str]) -> Labels:
    return tuple(sorted(labels.items()))
