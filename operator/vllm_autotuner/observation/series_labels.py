"""The labels of a series, in two parts that it shares with others: those of its metric, and those of its target.

An engine has 170 series. The same metrics, quantiles and edges come from each engine, and the same namespace, pod and
job stand in each series of one: a dict for each series would be most of what a fleet's samples take.
Must not: interpret a label.
"""

from collections.abc import Iterator, Mapping
from sys import intern
from typing import Final, TypeVar, overload

import msgspec
from typing_extensions import override

from vllm_autotuner.engine.metric_names import PARTS

__all__ = ["LABELS", "Labels", "SharedLabels"]

T = TypeVar("T")

LABELS: Final = msgspec.json.Decoder(dict[str, str])
"""Reads labels as a server writes them."""
OF_THE_METRIC: Final = frozenset({"__name__", "le", "quantile", *PARTS.values()})
"""Labels that tell the series of one target apart. All others are the target's."""


class Labels(Mapping[str, str]):
    """Both parts as one mapping."""

    __slots__ = ("_metric", "_target")

    def __init__(self, *, metric: Mapping[str, str], target: Mapping[str, str]) -> None:
        """No label may be in both."""
        self._metric = metric
        self._target = target

    @override
    def __getitem__(self, label: str) -> str:
        found = self._target.get(label)
        return self._metric[label] if found is None else found

    @overload
    def get(self, label: str, default: None = None, /) -> str | None: ...
    @overload
    def get(self, label: str, default: str | T, /) -> str | T: ...
    @override
    def get(self, label: str, default: str | T | None = None, /) -> str | T | None:
        """Without the detour of `Mapping`, whose exception takes most of the time of a look."""
        found = self._target.get(label)
        return self._metric.get(label, default) if found is None else found

    @override
    def __contains__(self, label: object) -> bool:
        return label in self._target or label in self._metric

    @override
    def __iter__(self) -> Iterator[str]:
        yield from self._metric
        yield from self._target

    @override
    def __len__(self) -> int:
        return len(self._metric) + len(self._target)

    @override
    def __repr__(self) -> str:
        return f"Labels({dict(self)!r})"


class SharedLabels:
    """The parts and texts that were seen in one answer. Not for two threads at a time."""

    def __init__(self) -> None:
        self._parts: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._texts: dict[str, str] = {}

    def labels(self, read: Mapping[str, str], *, longest: int) -> Labels:
        """Return labels as they were read, names and texts cut to `longest` characters."""
        metric: list[tuple[str, str]] = []
        target: list[tuple[str, str]] = []
        for pair in read.items():
            (metric if pair[0] in OF_THE_METRIC else target).append(pair)
        return Labels(
            metric=self._part(tuple(metric), longest=longest), target=self._part(tuple(target), longest=longest)
        )

    def _part(self, pairs: tuple[tuple[str, str], ...], *, longest: int) -> Mapping[str, str]:
        # Whole parts are looked up, not each label: nearly all were seen before.
        if (found := self._parts.get(pairs)) is None:
            cut = [(intern(name[:longest]), text[:longest]) for name, text in pairs]
            found = {name: self._texts.setdefault(text, text) for name, text in cut}
            self._parts[tuple(found.items())] = found
        return found
