"""Reads the answer of a Prometheus series by series while it arrives, so that its size costs neither time nor memory.

Separate from `prometheus`, which sends the questions. Whoever is scraped chooses how many series there are: where they
are more than the budget allows, over all answers of one look, the namespace that has most of them is left out of all of
them, and the others are read in full.
Must not: judge a value. What the document says apart from its series is the client's to check.
"""

import codecs
import json
import re
import threading
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from vllm_autotuner.budgets import ANSWER_SERIES
from vllm_autotuner.observation.errors import TooLarge, Unusable
from vllm_autotuner.observation.recording import LATEST
from vllm_autotuner.observation.series import Series
from vllm_autotuner.observation.series_labels import LABELS, SharedLabels
from vllm_autotuner.observation.series_memory import Points, SeriesMemory

__all__ = ["LEFT_OUT", "Allowance", "AnswerReader"]

LEFT_OUT: Final = "left out"
"""The label of what stands for a namespace that was left out: a series without samples. No series of a Prometheus has a
label with a space."""
LONGEST_LABEL: Final = 1024
"""Characters of a label that are kept: Kubernetes' names have 253."""
LONGEST_FRAME: Final = 2**20
"""Characters of a document apart from its series: a hundred times the longest list of warnings that was seen."""
_BEGIN: Final = re.compile(r'"result"\s*:\s*\[')
"""A quote inside of a text is escaped: this can only be the key."""
_BETWEEN: Final = re.compile(r"[\s,]*")
_ANOTHER: Final = '},{"metric":'
"""How the next series begins in what Prometheus and its kin send. It stands in no label: a quote there is escaped."""
_ONE: Final = json.JSONDecoder()


class _Entry(msgspec.Struct, gc=False):
    """One series of an answer."""

    metric: msgspec.Raw
    value: tuple[float, float] | None = None
    values: list[tuple[float, float]] | None = None
    histogram: msgspec.Raw | None = None
    histograms: msgspec.Raw | None = None


# Not strict: Prometheus writes a value as text.
_MANY: Final = msgspec.json.Decoder(list[_Entry], strict=False)


class Allowance:
    """What one look at a source may read, over all of its answers. Those are read in several threads at a time."""

    def __init__(self, *, most: int = ANSWER_SERIES.limit, ends: bool = False) -> None:
        """`ends`: what is too much ends the look, so that it can begin anew without the namespace."""
        self._most = most
        self._ends = ends
        self._lock = threading.Lock()
        self._of_namespace: Counter[str] = Counter()
        self._total = 0
        self._left_out: frozenset[str] = frozenset()
        self._answers: list[list[Series]] = []

    @property
    def left_out(self) -> frozenset[str]:
        """The namespaces of which nothing is read any more, and nothing is kept."""
        return self._left_out

    def check(self) -> None:
        """Raise TooLarge where the look has ended: the rest of its answers is not worth reading."""
        if self._ends and self._left_out:
            raise TooLarge("more series than are read (docs/budgets.md)", large=self._left_out)

    def answer(self) -> list[Series]:
        """Return a new list for the series of one answer. Those of a namespace that is left out vanish from it."""
        with self._lock:
            self._answers.append([])
            return self._answers[-1]

    def take(self, read: Sequence[tuple[Series, int]], *, answer: list[Series]) -> None:
        """Put series, each with its weight, into an answer; leave out the largest namespaces while all are too much."""
        with self._lock:
            for series, weight in read:
                namespace = series.labels.get("namespace", "")
                if namespace not in self._left_out:
                    answer.append(series)
                    self._of_namespace[namespace] += weight
                    self._total += weight
            while self._total > self._most:
                ANSWER_SERIES.exceeded()
                self._leave_out(self._of_namespace.most_common(1)[0][0])
                if self._ends:
                    break

    def _leave_out(self, namespace: str) -> None:
        self._left_out |= {namespace}
        self._total -= self._of_namespace.pop(namespace)
        for answer in self._answers:
            answer[:] = [
                one for one in answer if one.labels.get("namespace", "") != namespace or LEFT_OUT in one.labels
            ]

    def largest(self, *, least: int | None = None) -> frozenset[str]:
        """Return the namespaces that were left out, or else the largest that has been read, if it is large at all."""
        with self._lock:
            if self._left_out or not self._of_namespace:
                return self._left_out
            (name, weight), *_ = self._of_namespace.most_common(1)
            return frozenset({name} if weight > (self._most // 8 if least is None else least) else ())


class AnswerReader:
    """One answer. Not for two threads at a time."""

    def __init__(self, allowance: Allowance | None = None, *, memory: SeriesMemory | None = None) -> None:
        """`memory`: takes what is read, and knows the series that were read before."""
        self._memory = memory
        self._allowance = allowance or Allowance()
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._text = ""
        self._before = ""
        self._state = "before"
        self._series = self._allowance.answer()
        self._shared = SharedLabels()
        self._again_at = 0
        self._moment: tuple[float] | None = None
        """The time of the last single value: an instant has one."""

    def feed(self, chunk: bytes) -> None:
        """Read the next part of the body. Raises Unusable for a series that does not follow the API, or TooLarge."""
        self._allowance.check()
        self._text += self._decode(chunk)
        if self._state == "before" and (begin := _BEGIN.search(self._text)) is not None:
            self._before, self._text = self._text[: begin.end()], self._text[begin.end() :]
            self._state = "series"
        # A series that has not arrived in whole is tried again when twice as much is there: time grows with its length.
        if self._state == "series" and len(self._text) >= self._again_at:
            self._read_series()
        if self._state != "series" and len(self._text) > LONGEST_FRAME:
            raise Unusable("the answer does not follow the Prometheus API: it is long, and not for its series")

    def finish(self) -> tuple[str, Sequence[Series]]:
        """Return the document with an empty list of series, and the series."""
        self._again_at = 0
        self.feed(b"")
        self._text += self._decode(b"", True)
        left_out = self._allowance.left_out
        self._series += [Series(labels={"namespace": name, LEFT_OUT: ""}, times=(), values=()) for name in left_out]
        return self._before + self._text, self._series

    def _read_series(self) -> None:
        cut = self._text.rfind(_ANOTHER)
        if cut >= 0:
            whole, self._text = self._text[: cut + 1], self._text[cut + 2 :]
            self._read_many(whole)
        else:
            self._text = self._read_one_by_one(self._text)
        self._again_at = 2 * len(self._text)

    def _read_many(self, text: str) -> None:
        """Read whole series that follow each other."""
        try:
            entries = _MANY.decode(f"[{text[_BETWEEN.match(text).end() :]}]")  # type: ignore[union-attr]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # Another layout, or a number as only Python reads it: +Inf.
            if left := self._read_one_by_one(text):
                raise Unusable(f"the answer does not follow the Prometheus API: {left[:120]}") from None
            return
        read: list[tuple[Series, int]] = []
        for each in entries:
            native = each.histogram is not None or each.histograms is not None
            points = each.values if each.values is not None else [each.value] if each.value is not None else []
            labels = bytes(each.metric)
            if not points and not native:
                raise Unusable(f"the answer does not follow the Prometheus API: no value of {labels[:120]!r}")
            if (series := self._one(labels, [] if native else points)) is not None:
                read.append((series, _weight(series, labels)))
        self._allow(read)

    def _read_one_by_one(self, text: str) -> str:
        """Read series of any layout; return what has not arrived in whole."""
        place = 0
        while True:
            place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]  # matches everywhere
            if text.startswith("]", place):
                self._state = "after"
                break
            try:
                entry, place = _ONE.raw_decode(text, place)
            except ValueError:
                break  # not all of it has arrived
            except RecursionError as error:
                raise Unusable("the answer does not follow the Prometheus API: it is nested too deep") from error
            try:
                points = _points_of(entry)
                metric = json.dumps(entry["metric"], separators=(",", ":")).encode()
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
                excerpt = json.dumps(entry)[:120]
                raise Unusable(f"the answer does not follow the Prometheus API: {excerpt}") from error
            if (series := self._one(metric, points)) is not None:
                self._allow([(series, _weight(series, metric))])
        return text[place:]

    def _allow(self, read: Sequence[tuple[Series, int]]) -> None:
        self._allowance.take(read, answer=self._series)
        self._allowance.check()

    def _one(self, text: bytes, points: Points) -> Series | None:
        """A series, None where its namespace is left out. `text`: its labels, as JSON. Raises Unusable."""
        if points and not (0 <= points[0][0] < LATEST and 0 <= points[-1][0] < LATEST):
            shown = text[:120].decode(errors="replace")
            raise Unusable(f"the answer does not follow the Prometheus API: a time that is none: {shown}")
        memory = self._memory
        labels = memory.labels_of(text) if memory is not None else None
        if labels is None:
            labels = self._labels(text)
        if labels.get("namespace", "") in self._allowance.left_out:
            return None
        if memory is not None:
            return memory.take(text, labels, points)
        if len(points) == 1:
            ((time, value),) = points
            if self._moment != (time,):
                self._moment = (time,)
            return Series(labels=labels, times=self._moment, values=(value,))
        times, values = array("d", [time for time, _ in points]), array("d", [value for _, value in points])
        return Series(labels=labels, times=times, values=values)

    def _labels(self, text: bytes) -> Mapping[str, str]:
        try:
            metric = LABELS.decode(text)
        except msgspec.MsgspecError as error:
            shown = text[:120].decode(errors="replace")
            raise Unusable(f"the answer does not follow the Prometheus API: {shown}") from error
        return self._shared.labels(metric, longest=LONGEST_LABEL)


def _points_of(entry: Any) -> Points:
    """Raises KeyError, TypeError, ValueError, AttributeError or OverflowError for what is no series."""
    points = entry["values"] if "values" in entry else [entry["value"]] if "value" in entry else []
    if "histogram" in entry or "histograms" in entry:
        points = []
    elif not points:
        raise KeyError("value")
    return [(float(time), float(value)) for time, value in points]


def _weight(series: Series, text: bytes) -> int:
    """How many KB it takes, about: 1 for a series with 64 samples and 500 characters of labels. `text`: its labels."""
    return 1 + len(series.times) // 64 + len(text) // 1024
