"""Recorded or directly scraped samples that answer the same queries as a Prometheus would.

Assumes nothing about the scrape interval. Must not: define windows or rates of its own; the arithmetic is in
`series.py`, and a test compares it with a real Prometheus loaded with the same file.
"""

import gzip
import math
import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Final, TextIO

from vllm_autotuner.observation.errors import Unreadable
from vllm_autotuner.observation.metrics_text import LONGEST_LINE, Sample, read_samples
from vllm_autotuner.observation.questions import IDENTITY, TARGET, Beside, Buckets, Growths, Means, Question, Samples
from vllm_autotuner.observation.series import Series, extrapolated_increase, since

__all__ = ["LATEST", "Recording", "load_recording"]

MOST_SAMPLES: Final = 20_000_000
"""Above this a file is refused: about 2 GB of memory. A day of one engine at 2 s is 14 million samples."""
LOOKBACK: Final = 300.0
"""Seconds after which Prometheus takes a series without samples for ended (its default, --query.lookback-delta)."""
MOST_SERIES: Final = 300_000
"""Above this a file is refused: a fleet of 400 engines. Each series costs about 1 KB. Our choice."""
LATEST: Final = 1e11
"""Unix seconds, in the year 5138: a later time was written in milliseconds, as a page of Prometheus text has it."""
MOST_LABEL_TEXT: Final = 256 * 2**20
"""Characters of labels above which a file is refused. 300,000 usual series have 30 million."""


class Recording:
    """Samples in memory, by metric name. Scrapes may be added while questions are asked."""

    def __init__(self) -> None:
        self._series: dict[str, dict[tuple[tuple[str, str], ...], tuple[list[float], list[float]]]] = defaultdict(dict)
        self._sorted = True
        self._grown: dict[tuple[tuple[str, ...], int, float], list[Series]] = {}
        """Answers about moments that have passed, by names, step, moment: the next look asks for nearly all again."""
        self.series = 0
        """How many were ever begun."""
        self.label_size = 0
        """Characters of their labels."""
        self.first = math.inf
        self.last = -math.inf

    def add(self, sample: Sample, *, time: float) -> None:
        """Add one sample; `time` in Unix seconds."""
        labelled = self._series[sample.name]
        found = labelled.get(sample.labels)
        if found is None:
            found = labelled[sample.labels] = ([], [])
            self.series += 1
            self.label_size += sum(len(label) + len(text) for label, text in sample.labels)
        if self._grown and time < self.last:
            self._grown.clear()
        times, values = found
        if times and time < times[-1]:
            self._sorted = False
        times.append(time)
        values.append(sample.value)
        self.first, self.last = min(self.first, time), max(self.last, time)

    def forget(self, *, before: float) -> None:
        """Drop the samples older than `before` (Unix seconds), and series that have no other."""
        self._sort()
        for name, labelled in tuple(self._series.items()):
            for labels, (times, values) in tuple(labelled.items()):
                old = bisect_left(times, before)
                if old == len(times):
                    del labelled[labels]
                elif old:
                    del times[:old], values[:old]
            if not labelled:
                del self._series[name]
        self._grown = {key: answer for key, answer in self._grown.items() if key[-1] >= before}
        starts = (times[0] for labelled in self._series.values() for times, _ in labelled.values())
        self.first = min(starts, default=math.inf)

    @property
    def names(self) -> frozenset[str]:
        """Every metric name seen."""
        return frozenset(self._series)

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        """See MetricsSource.ask."""
        self._sort()
        match question:
            case Samples(names=names, window=window):
                windows = (since(one, start=at - window, end=at) for name in names for one in self._of(name))
                return [one for one in windows if one.times]
            case Buckets(names=names, window=window):
                return self._newest([f"{name}_bucket" for name in names], at=at, window=window, extra=("le",))
            case Means(name=name, window=window, step=step):
                return self._means(name, moments=_moments(at, window=window, step=step), step=step)
            case Growths(names=names, window=window, step=step):
                return self._growths(names, moments=_moments(at, window=window, step=step), step=step)

            case Beside(name=name, anchor=anchor):
                anchored = {_target(one) for one in self._newest_of(anchor, at=at)}
                return [one for one in self._newest_of(name, at=at) if _target(one) in anchored]

    def _newest_of(self, name: str, *, at: float) -> Iterator[Series]:
        """An instant vector: the last sample of each series that has not ended, at the moment of the question."""
        for one in self._of(name):
            window = since(one, start=at - LOOKBACK, end=at)
            if window.values:
                yield Series(labels=one.labels, times=[at], values=[window.values[-1]])

    def _sort(self) -> None:
        if self._sorted:
            return
        for labelled in self._series.values():
            for times, values in labelled.values():
                order = sorted(range(len(times)), key=times.__getitem__)
                times[:], values[:] = [times[i] for i in order], [values[i] for i in order]
        self._sorted = True

    def _of(self, name: str) -> Iterator[Series]:
        for labels, (times, values) in self._series.get(name, {}).items():
            yield Series(labels={"__name__": name, **dict(labels)}, times=times, values=values)

    def _newest(self, names: Sequence[str], *, at: float, window: int, extra: tuple[str, ...] = ()) -> list[Series]:
        """`sum by (identity, extra) (increase(name[window]))`, the first name that has an identity wins."""
        answered: dict[tuple[str, ...], Series] = {}
        for name in names:
            for key, value in self._increases(name, at=at, window=window, by=(*IDENTITY, *extra)).items():
                labels = {label: text for label, text in zip((*IDENTITY, *extra), key, strict=True) if text}
                answered.setdefault(key, Series(labels=labels, times=[at], values=[value]))
        return list(answered.values())

    def _grown_at(self, names: Sequence[str], *, moment: float, step: int) -> list[Series]:
        key = (tuple(names), step, moment)
        answer = self._grown.get(key)
        if answer is None:
            answer = self._newest(names, at=moment, window=step)
            if moment < self.last:
                # Whatever comes now is later, or `add` forgets it.
                self._grown[key] = answer
        return answer

    def _increases(self, name: str, *, at: float, window: int, by: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        grown: dict[tuple[str, ...], float] = {}
        for one in self._of(name):
            increase = extrapolated_increase(one, start=at - window, end=at)
            if increase is not None:
                key = tuple(one.labels.get(label, "") for label in by)
                grown[key] = grown.get(key, 0.0) + increase
        return grown

    def _means(self, name: str, *, moments: Sequence[float], step: int) -> list[Series]:
        answer = []
        for one in self._of(name):
            times, values = [], []
            for moment in moments:
                window = since(one, start=moment - step, end=moment)
                if window.values:
                    times.append(moment)
                    values.append(sum(window.values) / len(window.values))
            if times:
                answer.append(Series(labels=one.labels, times=times, values=values))
        return answer

    def _growths(self, names: Sequence[str], *, moments: Sequence[float], step: int) -> list[Series]:
        points: dict[tuple[tuple[str, str], ...], tuple[list[float], list[float]]] = {}
        for moment in moments:
            for one in self._grown_at(names, moment=moment, step=step):
                times, values = points.setdefault(tuple(sorted(one.labels.items())), ([], []))
                times.append(moment)
                values.append(one.values[0])
        return [Series(labels=dict(key), times=times, values=values) for key, (times, values) in points.items()]


def _target(series: Series) -> tuple[str, ...]:
    return tuple(series.labels.get(label, "") for label in TARGET)


def _moments(at: float, *, window: int, step: int) -> list[float]:
    # A PromQL subquery evaluates at multiples of its step since the epoch, not at multiples before `at`.
    last = math.floor(at / step)
    first = math.floor((at - window) / step) + 1
    return [float(index * step) for index in range(first, last + 1)]


def load_recording(path: Path) -> Recording:
    """Read an OpenMetrics recording with timestamps, plain or gzip. Raises Unreadable with what to do."""
    recording = Recording()
    try:
        for count, sample in enumerate(_samples_of(path), start=1):
            if sample.time is None:
                raise Unreadable(
                    f"{path} has samples without a timestamp, which a recording needs "
                    "(for the page of one engine use --metrics URL instead)"
                )
            if not 0 <= sample.time < LATEST:
                hint = ", but these look like milliseconds" if sample.time >= LATEST else ""
                raise Unreadable(f"{path} has a sample at {sample.time:g}; timestamps are Unix seconds{hint}")
            if count > MOST_SAMPLES:
                raise Unreadable(f"{path} has more than {MOST_SAMPLES:,} samples; cut it into shorter recordings")
            recording.add(sample, time=sample.time)
            if recording.series > MOST_SERIES or recording.label_size > MOST_LABEL_TEXT:
                raise Unreadable(
                    f"{path} has more than {MOST_SERIES:,} series or very long labels: a label of {sample.name} has "
                    "unbounded values; drop it and record again"
                )
    except FileNotFoundError as error:
        raise Unreadable(f"file {path} does not exist") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Unreadable(f"{path} is a damaged or truncated gzip file: {error}") from error
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path} is not text; a recording is OpenMetrics text (.om or .om.gz)") from error
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {error.strerror or error}") from error
    if not recording.names:
        raise Unreadable(f"{path} contains no samples")
    return recording


def _samples_of(path: Path) -> Iterator[Sample]:
    try:
        yield from read_samples(_lines(path))
    except Unreadable as error:
        raise Unreadable(f"{path}: {error}") from error


def _lines(path: Path) -> Iterable[str]:
    with path.open("rb") as raw:
        # Looked at, not read: a pipe cannot go back to its start.
        zipped = raw.peek(2)[:2] == b"\x1f\x8b"
        with gzip.open(raw, "rt", encoding="utf-8") if zipped else TextIOWrapper(raw, encoding="utf-8") as text:
            yield from _bounded(text)


def _bounded(text: TextIO) -> Iterator[str]:
    # readline with a limit: a file without line ends must not become one line of memory.
    while line := text.readline(2 * LONGEST_LINE):
        yield line
