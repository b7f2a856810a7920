"""The five kinds of query to a metrics source, as values, with their PromQL.

A fixed number of these covers all services that are looked at together. A recording answers the same values
(`recording.py`), so there is one decision path over both. Must not: do I/O, or interpret an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from vllm_autotuner.observation.label_matchers import selector
from vllm_autotuner.observation.series import Series

__all__ = [
    "IDENTITY",
    "TARGET",
    "Beside",
    "Buckets",
    "Growths",
    "Means",
    "MetricsSource",
    "Question",
    "Samples",
    "census",
    "promql",
]

IDENTITY: Final = ("namespace", "pod", "instance", "engine")
"""The labels that tell engines apart; `instance` for those that run outside Kubernetes and have no `pod`. A label that
a source lacks is the empty string."""
TARGET: Final = IDENTITY[:3]
"""The labels that tell scraped addresses apart: a process has no `engine`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The raw samples of the last `window` seconds, every series of every name."""

    names: tuple[str, ...]
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """How much each bucket of a histogram grew in `window` seconds, per engine. `names`: newest first, one wins."""

    names: tuple[str, ...]
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The mean of a gauge over each `step` seconds of the last `window` seconds, per series."""

    name: str
    window: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growths:
    """How much a counter grew in each `step` of the last `window` seconds, per engine. `names`: newest first."""

    names: tuple[str, ...]
    window: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The newest value of `name` at each address that also exports `anchor`: for names that any program exports."""

    name: str
    anchor: str


Question: TypeAlias = Samples | Buckets | Means | Growths | Beside


class MetricsSource(Protocol):
    """A source that can answer a query for a moment in time."""

    async def ask(self, question: Question, *, at: float) -> Sequence[Series]:
        """Answer for the moment `at` (Unix seconds). Raises SourceError; an empty answer is an answer."""
        ...


def promql(question: Question, *, namespaces: Sequence[str] = (), match: Sequence[str] = ()) -> str:
    """Render a question as PromQL. `namespaces`: names of Kubernetes namespaces, none is all; `match`: matchers."""
    by = ", ".join(IDENTITY)
    within = f'namespace=~"{"|".join(namespaces)}"' if namespaces else ""
    only = selector(within, match=match)
    match question:
        case Samples(names=names, window=window):
            named = f'__name__=~"{"|".join(names)}"'
            return f"{selector(named, within, match=match)}[{window}s]"
        case Buckets(names=names, window=window):
            return " or ".join(f"sum by ({by}, le) (increase({name}_bucket{only}[{window}s]))" for name in names)
        case Means(name=name, window=window, step=step):
            return f"avg_over_time({name}{only}[{step}s])[{window}s:{step}s]"
        case Growths(names=names, window=window, step=step):
            grown = " or ".join(f"sum by ({by}) (increase({name}{only}[{step}s]))" for name in names)
            return f"({grown})[{window}s:{step}s]"
        case Beside(name=name, anchor=anchor):
            return f"{name}{only} and on ({', '.join(TARGET)}) {anchor}{only}"


def census(namespaces: Sequence[str], *, match: Sequence[str] = ()) -> str:
    """How many series of vLLM each namespace has, in PromQL: one small answer, however many there are."""
    vllm, within = '__name__=~"vllm:.+"', f'namespace=~"{"|".join(namespaces)}"'
    return f"count by (namespace) ({selector(vllm, within, match=match)})"
