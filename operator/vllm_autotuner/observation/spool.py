"""Writes a recording: collects scrapes one after the other and sorts them by metric family, as OpenMetrics requires.

Samples are kept in one temporary file per family, 24 bytes each, and are sorted into text at the end. Memory holds the
names of the series and one family. The format is described in docs/recording-format.md.
Must not: fetch, or interpret a metric.
"""

import gzip
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from vllm_autotuner.observation.families import Families, Family
from vllm_autotuner.observation.metrics_text import Sample
from vllm_autotuner.observation.recording import MOST_SAMPLES
from vllm_autotuner.observation.whole_file import replacing

__all__ = ["MOST_SERIES", "RecordingFull", "Spool"]

MOST_SERIES: Final = 100_000
"""Different series of a recording. An engine has about 700; labels that change with each request would have no end.
Our choice."""
BUFFERED: Final = 64 * 1024
"""Bytes of a family that wait in memory."""
_RECORD: Final = struct.Struct("<IIdd")
_ROWS: Final = np.dtype([("metric", "<u4"), ("series", "<u4"), ("time", "<f8"), ("value", "<f8")])
_PARTS_OF_A_METRIC: Final = frozenset({"le", "quantile"})

Labels = tuple[tuple[str, str], ...]


class RecordingFull(Exception):
    """There are more samples or series than a recording may hold; `str()` says which. What came before is kept."""


@dataclass(slots=True)
class _Shelf:
    """One family: its file, what is not yet in it, and the ids of its metrics."""

    family: Family
    file: Path
    metrics: dict[Labels, int] = field(default_factory=dict)
    waiting: bytearray = field(default_factory=bytearray)

    def put(self, record: bytes) -> None:
        self.waiting += record
        if len(self.waiting) >= BUFFERED:
            self.flush()

    def flush(self) -> None:
        with self.file.open("ab") as file:
            file.write(self.waiting)
        self.waiting.clear()


class Spool:
    """Samples on their way into a recording. `folder` must be empty and is the caller's to remove."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shelves: dict[str, _Shelf] = {}
        self._series: dict[tuple[str, Labels], tuple[int, int, _Shelf]] = {}
        self._texts: list[str] = []
        self.samples = 0

    @property
    def series(self) -> int:
        """How many different series there are."""
        return len(self._texts)

    def add(self, samples: Iterable[Sample], *, families: Families, time: float, labels: Labels = ()) -> None:
        """Take the samples of one scrape at `time` (Unix seconds); `labels` are added to each, over its own.

        Raises RecordingFull.
        """
        seen: set[int] = set()
        for sample in samples:
            found = self._series.get((sample.name, sample.labels + labels))
            if found is None:
                found = self._new_series(sample, families=families, labels=labels)
            if found is None or found[1] in seen:
                continue
            metric, series, shelf = found
            seen.add(series)
            if self.samples >= MOST_SAMPLES:
                raise RecordingFull(f"a recording holds at most {MOST_SAMPLES:,} samples")
            shelf.put(_RECORD.pack(metric, series, time, sample.value))
            self.samples += 1

    def _new_series(self, sample: Sample, *, families: Families, labels: Labels) -> tuple[int, int, _Shelf] | None:
        family = families.of(sample.name)
        if family is None:
            return None
        if self.series >= MOST_SERIES:
            raise RecordingFull(
                f"there are more than {MOST_SERIES:,} different series: a label of {sample.name} has unbounded values"
            )
        shelf = self._shelves.get(family.name)
        if shelf is None or shelf.family.kind != family.kind:
            shelf = self._new_shelf(family, name=sample.name)
        own = dict(sample.labels) | dict(labels)
        metric = shelf.metrics.setdefault(
            tuple(sorted(pair for pair in own.items() if pair[0] not in _PARTS_OF_A_METRIC)), len(shelf.metrics)
        )
        self._texts.append(_series_text(sample.name, tuple(sorted(own.items()))))
        found = (metric, self.series - 1, shelf)
        self._series[(sample.name, sample.labels + labels)] = found
        return found

    def _new_shelf(self, family: Family, *, name: str) -> _Shelf:
        if family.name in self._shelves:
            # A gauge `x` beside a counter `x_total`: OpenMetrics calls both `x`. The later one keeps its full name.
            family = Family(name, "unknown", family.text)
            if family.name in self._shelves:
                return self._shelves[family.name]
        shelf = _Shelf(family, self._folder / str(len(self._shelves)))
        self._shelves[family.name] = shelf
        return shelf

    def write(self, path: Path, *, written: Callable[[int], None] = lambda samples: None) -> None:
        """Write the recording, gzip when the name ends with `.gz`. Raises OSError; never leaves half a file."""
        with replacing(path) as part, part.open("wb") as raw:
            if path.suffix == ".gz":
                # The same samples give the same bytes: no name and no time inside.
                with gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as file:
                    self._write(file, written=written)
            else:
                self._write(raw, written=written)

    def _write(self, file: BinaryIO | gzip.GzipFile, *, written: Callable[[int], None]) -> None:
        for shelf in self._shelves.values():
            shelf.flush()
            family = shelf.family
            file.write(f"# TYPE {family.name} {family.kind}\n".encode())
            if family.text:
                file.write(f"# HELP {family.name} {family.text}\n".encode())
            count = 0
            for line in self._lines(shelf):
                file.write(line.encode())
                count += 1
            written(count)
        file.write(b"# EOF\n")

    def _lines(self, shelf: _Shelf) -> Iterator[str]:
        rows = np.fromfile(shelf.file, dtype=_ROWS)
        # By metric, and inside by the order in which they came: by time, and within a scrape as in the page.
        for row in rows[np.argsort(rows["metric"], kind="stable")]:
            yield f"{self._texts[int(row['series'])]} {_number(float(row['value']))} {float(row['time']):.3f}\n"


def _series_text(name: str, labels: Labels) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{inside}}}" if inside else name


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
