"""In which pods nothing waits: told by the gauges alone, before anything else is asked about them.

Apart from `observation`, which needs the answers to all questions. Must not: take a silent pod for a quiet one.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from vllm_autotuner.engine.metric_names import NAMES, Meaning
from vllm_autotuner.observation.series import Series, since
from vllm_autotuner.observation.state_windows import Windows, key_of

__all__ = ["PodName", "quiet_pods"]

WAITING: Final = frozenset(NAMES[Meaning.WAITING].names)


class PodName(NamedTuple):
    """A pod as its metrics name it."""

    namespace: str
    name: str


def quiet_pods(gauges: Sequence[Series], *, windows: Windows, at: float) -> frozenset[PodName]:
    """The pods of which every engine says that no request waited in the state window before `at` (Unix seconds)."""
    quiet: set[PodName] = set()
    others: set[PodName] = set()
    for series in gauges:
        if series.labels.get("__name__") not in WAITING:
            continue
        key = key_of(series)
        found = quiet if _is_quiet(series, windows=windows, window=windows.of(key), at=at) else others
        found.add(PodName(key.namespace, key.pod))
    return frozenset(quiet - others)


def _is_quiet(series: Series, *, windows: Windows, window: int, at: float) -> bool:
    pace = series.pace or windows.interval
    if not series.times or pace is None or series.is_stale(at=at, interval=pace):
        return False
    recent = since(series, start=at - window, end=at).values
    # A value that is not a number is not zero either.
    return bool(recent) and all(value == 0 for value in recent)
