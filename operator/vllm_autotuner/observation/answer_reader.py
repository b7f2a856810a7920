"""Reads the answer of a Prometheus series by series while it arrives, so that its size costs neither time nor memory.

Separate from `prometheus`, which sends the questions. Whoever is scraped chooses how many series there are: where they
are more than the budget allows, the namespace that has most of them is left out, and the others are read in full.
Must not: judge a value. What the document says apart from its series is the client's to check.
"""

import codecs
import json
import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from sys import intern
from typing import Any, Final

from vllm_autotuner.budgets import ANSWER_SERIES
from vllm_autotuner.observation.errors import Unusable
from vllm_autotuner.observation.series import Series

__all__ = ["LEFT_OUT", "AnswerReader"]

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
_DECODER: Final = json.JSONDecoder()


class AnswerReader:
    """One answer. Not for two threads at a time."""

    def __init__(self, *, most_series: int = ANSWER_SERIES.limit) -> None:
        self._most = most_series
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._text = ""
        self._before = ""
        self._state = "before"
        self._series: list[Series] = []
        self._of_namespace: Counter[str] = Counter()
        self._left_out: set[str] = set()
        self._texts: dict[str, str] = {}
        self._weight = 0
        self._again_at = 0

    def feed(self, chunk: bytes) -> None:
        """Read the next part of the body. Raises Unusable for a series that does not follow the API."""
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
        markers = [Series(labels={"namespace": name, LEFT_OUT: ""}, times=(), values=()) for name in self._left_out]
        return self._before + self._text, [*self._series, *markers]

    @property
    def large(self) -> frozenset[str]:
        """The namespaces that were left out, or else the one with most of the series that have arrived."""
        if self._left_out or not self._of_namespace:
            return frozenset(self._left_out)
        (name, weight), *_ = self._of_namespace.most_common(1)
        return frozenset({name} if weight > max(self._weight, self._most // 2) / 2 else ())

    def _read_series(self) -> None:
        text, place = self._text, 0
        while True:
            place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]  # matches everywhere
            if text.startswith("]", place):
                self._state = "after"
                break
            try:
                entry, place = _DECODER.raw_decode(text, place)
            except ValueError:
                break  # not all of it has arrived
            except RecursionError as error:
                raise Unusable("the answer does not follow the Prometheus API: it is nested too deep") from error
            self._take(entry)
        self._text = text[place:]
        self._again_at = 2 * len(self._text)

    def _take(self, entry: Any) -> None:
        try:
            series = self._one(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            excerpt = json.dumps(entry)[:120]
            raise Unusable(f"the answer does not follow the Prometheus API: {excerpt}") from error
        namespace = series.labels.get("namespace", "")
        if namespace in self._left_out:
            return
        self._series.append(series)
        self._of_namespace[namespace] += _weight(series)
        self._weight += _weight(series)
        while self._weight > self._most:
            ANSWER_SERIES.exceeded()
            largest, weight = self._of_namespace.most_common(1)[0]
            self._left_out.add(largest)
            self._weight -= weight
            del self._of_namespace[largest]
            self._series = [one for one in self._series if one.labels.get("namespace", "") != largest]

    def _one(self, entry: Mapping[str, Any]) -> Series:
        points = entry["values"] if "values" in entry else [entry["value"]] if "value" in entry else []
        if "histogram" in entry or "histograms" in entry:
            points = []
        elif not points:
            raise KeyError("value")
        # The same few names and texts stand in every series.
        labels = {
            intern(label[:LONGEST_LABEL]): self._texts.setdefault(cut := text[:LONGEST_LABEL], cut)
            for label, text in entry["metric"].items()
        }
        return Series(
            labels=labels,
            times=array("d", [float(time) for time, _ in points]),
            values=array("d", [float(value) for _, value in points]),
        )


def _weight(series: Series) -> int:
    """How many usual series it is worth: 1 for one with 300 samples and 500 characters of labels."""
    text = sum(len(label) + len(value) for label, value in series.labels.items())
    return 1 + len(series.times) // 1024 + text // 1024
