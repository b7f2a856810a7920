"""What was true against what was named, counted by window.

Must not: leave a window out. One that nobody named (`Unclear`) is a wrong one of its true class.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

__all__ = ["Matrix", "Score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well one class is told; ratios 0..1."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """Harmonic mean; 0 where nothing was right."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


@dataclass(slots=True)
class Matrix:
    """Windows by (true class, named class)."""

    windows: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count(self, truth: str, named: Sequence[str]) -> None:
        """Add the windows of one scene."""
        self.windows.update((truth, one) for one in named)

    @property
    def truths(self) -> tuple[str, ...]:
        """The classes that were true somewhere, in the order they were counted."""
        return tuple(dict.fromkeys(truth for truth, _ in self.windows))

    @property
    def names(self) -> tuple[str, ...]:
        """True classes first, then those that were only named."""
        return tuple(dict.fromkeys([*self.truths, *sorted(named for _, named in self.windows)]))

    def score(self, name: str) -> Score:
        """Score one class."""
        right = self.windows[name, name]
        said = sum(count for (_, named), count in self.windows.items() if named == name)
        true = sum(count for (truth, _), count in self.windows.items() if truth == name)
        return Score(precision=right / said if said else 0.0, recall=right / true if true else 0.0)

    @property
    def macro_f1(self) -> float:
        """Mean F1 over the classes that were true somewhere. Raises ValueError when nothing was counted."""
        if not self.truths:
            raise ValueError("no window was counted")
        return fmean(self.score(name).f1 for name in self.truths)

    def named_as(self, name: str, *, truths: frozenset[str]) -> int:
        """Return how many windows of these true classes were called `name`."""
        return sum(count for (truth, named), count in self.windows.items() if named == name and truth in truths)
