"""The OpenMetrics metric family of each sample on an engine's metrics page.

Separate from reading samples: only writing a recording needs types and help texts. Assumes pages of the Prometheus
text format, as vLLM serves them. Must not: keep a `_created` sample: there they are gauges whose names OpenMetrics
reserves for the counters beside them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Families", "Family"]

_DESCRIPTION: Final = re.compile(r"#\s+(TYPE|HELP)\s+([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\s+(.*))?$")
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count", ""),
}
_KINDS: Final = frozenset({"counter", "gauge", "histogram", "summary"})


@dataclass(frozen=True, slots=True)
class Family:
    """A name with its type ("unknown" where the page tells none) and its help text, escaped as in the page."""

    name: str
    kind: str
    text: str


class Families:
    """What one page says about its samples."""

    def __init__(self, page: str) -> None:
        self._kinds: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        for line in page.splitlines():
            if line.startswith("#") and (found := _DESCRIPTION.match(line)):
                word, name, rest = found.groups()
                (self._kinds if word == "TYPE" else self._texts)[name] = (rest or "").strip()

    def of(self, sample: str) -> Family | None:
        """Return the family of a sample's name; None for a sample that no recording should keep."""
        if sample.endswith("_created"):
            return None
        if self._kinds.get(sample) == "counter":
            # OpenMetrics has no counter whose sample lacks the suffix.
            name = sample.removesuffix("_total")
            return self._family(name, "counter" if name != sample else "unknown", described=sample)
        for kind, parts in _PARTS.items():
            for part in parts:
                base = sample.removesuffix(part)
                if sample.endswith(part) and self._kinds.get(base) == kind:
                    return self._family(base, kind, described=base)
        base = sample.removesuffix("_total")
        if base != sample and self._kinds.get(base) == "counter":
            return self._family(base, "counter", described=base)
        kind = self._kinds.get(sample, "unknown")
        return self._family(sample, kind if kind in _KINDS else "unknown", described=sample)

    def _family(self, name: str, kind: str, *, described: str) -> Family:
        return Family(name, kind, re.sub(r'(?<!\\)"', r'\\"', self._texts.get(described, "")))
