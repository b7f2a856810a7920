"""The samples of each series, kept from look to look: a look asks only for what is new since the last one.

Nine tenths of what a Prometheus is asked for in every interval it has told in the one before. What is kept is what one
whole question would be answered with, where each sample can be seen `OVERLAP` seconds after its time, in whatever
order. What is held back for longer makes a hole, and a hole makes the question be asked in whole; so does time, at the
latest after as long as the question looks back.
Must not: do I/O, or hold more than one question asks for.
"""

import json
import math
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from vllm_autotuner.observation.questions import Growths, Means, Samples
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.series_labels import LABELS

__all__ = ["OVERLAP", "Points", "Remembered", "SeriesMemory"]

OVERLAP: Final = 60.0
"""Seconds before the last look that are asked for again. A scrape is stored when it has ended: up to its timeout after
the time that its samples bear. Our choice."""

Remembered: TypeAlias = Samples | Means | Growths
"""The questions whose answers are points in time."""
Points: TypeAlias = Sequence[tuple[float, float]]


@dataclass(slots=True)
class _Coverage:
    """What is known of one namespace. Unix seconds."""

    whole: float
    """When the whole question was asked last."""
    until: float
    """When it was last asked what is new."""


class SeriesMemory:
    """The answers to one question so far. Not for two threads at a time."""

    def __init__(self, question: Remembered) -> None:
        self._question = question
        self._series: dict[str, dict[int, Series]] = {}
        """By namespace and the hash of their labels: a look asks about a part of the fleet."""
        self._places: dict[int, dict[int, Series]] = {}
        """Hash of labels as the server writes them -> the series of their namespace: they are read once, not in every
        look. They may not be among these any more; there are at most twice as many as series."""
        self._aliases: dict[int, int] = {}
        """Hash of labels that are written in another order -> that of the same in order. Empty beside a Prometheus."""
        self._covered: dict[str, _Coverage] = {}
        self._times: dict[bytes, array[float]] = {}
        """Of the look under way, each list once: all series of a target are scraped at the same moments."""
        self._start = 0.0
        """Samples up to this time (Unix seconds) are no part of the answer that is being read."""
        self._gaps: set[str] = set()

    def unknown(self, namespaces: Iterable[str], *, at: float) -> list[str]:
        """Those about which the whole question has to be asked at `at` (Unix seconds)."""
        return [each for each in namespaces if not self._is_covered(each, at=at)]

    def _is_covered(self, namespace: str, *, at: float) -> bool:
        covered = self._covered.get(namespace)
        if covered is None or at < covered.until:
            return False
        # Not all namespaces in the same look: their whole answers together are what is spared here.
        spread = 0.5 + zlib.crc32(namespace.encode()) % 1000 / 2000
        window = self._question.window
        return at - covered.whole <= spread * window and at - covered.until <= window / 2

    def begin_whole(self, namespaces: Iterable[str], *, at: float) -> Remembered:
        """Forget these namespaces, and return the question to ask about them. Each answer is read into `take`."""
        self.forget(namespaces)
        # Until the answer is there nothing is known of them; what is read of a part of it can be forgotten.
        self._covered |= {each: _Coverage(whole=-math.inf, until=-math.inf) for each in namespaces}
        self._start = at - self._question.window
        return self._question

    def begin_new(self, namespaces: Iterable[str], *, at: float) -> Remembered:
        """Return the question for what is new about these namespaces. Its answer is read into `take`."""
        self._tidy()
        known = min(self._covered[each].until for each in namespaces)
        step = self._question.step if isinstance(self._question, Means | Growths) else 1
        # A mean or growth at an edge that had not all of its samples yet is asked for again as well.
        back = min(self._question.window, round(at - known + OVERLAP) + 2 * step)
        self._start = at - back
        return replace(self._question, window=back)

    def labels_of(self, text: bytes) -> Mapping[str, str] | None:
        """The labels of a series that is known under this text; None where it has to be read."""
        written = hash(text)
        beside = self._places.get(written)
        found = None if beside is None else beside.get(self._aliases.get(written, written))
        return found.labels if found is not None else None

    def take(self, text: bytes, labels: Mapping[str, str], points: Points) -> Series:
        """Add what was read of a series, and return all that is known of it. `text`: its labels as they were sent."""
        namespace, written = labels.get("namespace", ""), hash(text)
        beside = self._series.setdefault(namespace, {})
        if self._places.get(written) is not beside:
            self._places[written] = beside
            if (names := [*LABELS.decode(text)]) != sorted(names):
                in_order = json.dumps(dict(sorted(labels.items())), separators=(",", ":"), ensure_ascii=False)
                self._aliases[written] = hash(in_order.encode())
        number = self._aliases.get(written, written)
        times, values = array("d", [time for time, _ in points]), array("d", [value for _, value in points])
        known = beside.get(number)
        if known is None or not known.times or not times:
            self._note_gap(namespace, before=None, first=times[0] if times else None)
            found = Series(labels=labels, times=self._once(times), values=values)
        else:
            self._note_gap(namespace, before=known.times[-1], first=times[0])
            # What is told again may be told otherwise: a mean whose last samples had not been stored.
            keep = bisect_left(known.times, times[0])
            found = Series(
                labels=known.labels,
                times=self._once(known.times[:keep] + times),  # type: ignore[operator]  # arrays, both of them
                values=known.values[:keep] + values,  # type: ignore[operator]
            )
        beside[number] = found
        return found

    def _once(self, times: "array[float]") -> "array[float]":
        return self._times.setdefault(times.tobytes(), times)

    def _note_gap(self, namespace: str, *, before: float | None, first: float | None) -> None:
        """Note a namespace of which something arrived later than the look that should have seen it."""
        covered = self._covered.get(namespace)
        if covered is None or first is None:
            return
        late = first <= covered.until if before is None else before < self._start
        if late:
            self._gaps.add(namespace)

    def gaps(self) -> list[str]:
        """Return the namespaces of which the answer that was read last is not all that is missing; once."""
        found, self._gaps = sorted(self._gaps), set()
        return found

    def cover(self, namespaces: Iterable[str], *, at: float, whole: bool) -> None:
        """Note that these namespaces are known until `at` (Unix seconds)."""
        for each in namespaces:
            if whole:
                self._covered[each] = _Coverage(whole=at, until=at)
            else:
                self._covered[each].until = at

    def answer(self, namespaces: Iterable[str], *, at: float) -> list[Series]:
        """Return what the whole question about these namespaces would be answered with at `at` (Unix seconds)."""
        start = at - self._question.window
        found: list[Series] = []
        for namespace in dict.fromkeys(namespaces):
            mine = self._series.get(namespace, {})
            for number, series in list(mine.items()):
                if series.times and series.times[0] <= start:
                    first = bisect_right(series.times, start)
                    times: array[float] = series.times[first:]  # type: ignore[assignment]  # as `take` made it
                    series = Series(labels=series.labels, times=self._once(times), values=series.values[first:])
                    if not series.times:
                        del mine[number]
                        continue
                    mine[number] = series
                found.append(series)
            if not mine:
                self._series.pop(namespace, None)
        self._tidy()
        return found

    def forget(self, namespaces: Iterable[str]) -> None:
        """Drop all that is known of these namespaces."""
        for each in frozenset(namespaces) & self._covered.keys():
            # Emptied, as places lead to it.
            self._series.pop(each, {}).clear()
            del self._covered[each]
        self._tidy()

    def keep_only(self, namespaces: Iterable[str]) -> None:
        """Drop all that is known of other namespaces."""
        self.forget(self._covered.keys() - frozenset(namespaces))

    def _tidy(self) -> None:
        """Forget the times of a look that has ended or failed, and the places of series that have ended once they are
        as many as those that go on."""
        self._times.clear()
        if len(self._places) > 2 * sum(map(len, self._series.values())):
            self._places = {
                written: beside
                for written, beside in self._places.items()
                if self._aliases.get(written, written) in beside
            }
            self._aliases = {written: number for written, number in self._aliases.items() if written in self._places}
