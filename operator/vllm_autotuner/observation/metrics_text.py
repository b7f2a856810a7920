"""Parses metrics text into samples: an engine's page (Prometheus text) or a recording (OpenMetrics with times).

Own parser: the strict parser of prometheus-client rejects recordings whose time goes back between the series of one
family, which `promtool` accepts and which concatenated scrapes contain.
Must not: depend on file names or engines. Memory stays bounded: lines that are too long are rejected.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.observation.errors import Unreadable

__all__ = ["LONGEST_LINE", "Sample", "read_samples"]

LONGEST_LINE: Final = 64 * 1024
MOST_KNOWN: Final = 50_000
"""Label sets that are read once and remembered: more than any engine has; beyond, reading is slower, not bigger."""
LONGEST_KNOWN: Final = 1024
"""Characters of a label set that is remembered: a usual one has 100."""
_BRACES: Final = re.compile(r'\{(?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+\}')
"""A label value may hold braces: quotes decide. Possessive, so that a line without an end is refused at once."""
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]++|\\.)*+)"\s*(?:,|$)')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: name, labels, value, and its time in Unix seconds when the line carries one."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    time: float | None


def read_samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Yield the samples of a text exposition. Raises Unreadable with the line number on the first line that is none."""
    known: dict[str, tuple[tuple[str, str], ...]] = {}
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_LINE:
            raise Unreadable(f"line {number} is not metrics text: it is longer than {LONGEST_LINE} characters")
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        sample = _sample(text, known)
        if sample is None:
            raise Unreadable(f"line {number} is not metrics text: {text[:60]!r}")
        yield sample


def _sample(text: str, known: dict[str, tuple[tuple[str, str], ...]]) -> Sample | None:
    opened = text.find("{")
    if opened < 0:
        name, _, rest = text.partition(" ")
        labels: tuple[tuple[str, str], ...] | None = ()
    else:
        braces = _BRACES.match(text, opened)
        if braces is None:
            return None
        closed = braces.end() - 1
        name, inside, rest = text[:opened], text[opened + 1 : closed], text[closed + 1 :]
        labels = known.get(inside)
        if labels is None:
            labels = _labels(inside)
            if labels is None:
                return None
            if len(known) < MOST_KNOWN and len(inside) < LONGEST_KNOWN:
                known[inside] = labels
    told = rest.split(" # ", 1)[0]
    numbers = told.split()
    # What Python reads as a number and no exposition format does: 1_000, and the digits of other scripts.
    if not name or not 1 <= len(numbers) <= 2 or "_" in told or not told.isascii():
        return None
    try:
        value = float(numbers[0])
        time = float(numbers[1]) if len(numbers) == 2 else None
    except ValueError:
        return None
    return Sample(name=name, labels=labels or (), value=value, time=time)


def _labels(inside: str) -> tuple[tuple[str, str], ...] | None:
    found, position = [], 0
    while position < len(inside.rstrip()):
        match = _LABEL.match(inside, position)
        if match is None:
            return None
        value = re.sub(r'\\[\\"n]', lambda escape: _ESCAPES[escape.group()], match.group(2))
        found.append((match.group(1), value))
        position = match.end()
    return tuple(sorted(found))
