"""How long each engine's state window is: it holds a few scrapes, so it depends on how often that engine is scraped.

Separate from `snapshot`, which asks and files. One window for all would let a single slow target stretch everybody's
figures to minutes; one for each would cost queries without an end. So at most a few different ones are used.
Must not: fill a gap, or judge.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vllm_autotuner.engine.metric_names import NAMES, Meaning
from vllm_autotuner.observation.series import Series

__all__ = ["MOST_WINDOWS", "EngineKey", "WindowSettings", "Windows", "key_of", "windows_of"]

MOST_WINDOWS: Final = 3
"""Different state windows in one look: each costs ten queries. The pace of Prometheus, that of a PodMonitor, and the
rest. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """How far back each kind of question looks."""

    state: int = 30
    """Seconds of "now": queue, KV, latencies. Shorter is noise, longer reacts late. Field guide: waiting for 30 s."""
    gauges: int = 300
    """Seconds of raw samples fetched; the state window may grow into it when scrapes are far apart. Our choice."""
    long: int = 1800
    """Seconds for length percentiles and the step-time fit: enough for a load to move. Design: 30 min."""
    fewest_scrapes: int = 4
    """Scrapes that a state window must hold; with fewer it is stretched. Our choice: 3 gaps still show a trend."""


@dataclass(frozen=True, slots=True, order=True)
class EngineKey:
    """One engine core. An absent label is the empty string. Not the model: cache_config_info does not carry it."""

    namespace: str
    pod: str
    """Outside Kubernetes, where there is no `pod` label: the scraped address (`instance`)."""
    engine: str


def key_of(series: Series) -> EngineKey:
    """Return whose series this is."""
    labels = series.labels
    pod = labels.get("pod") or labels.get("instance", "")
    return EngineKey(labels.get("namespace", ""), pod, labels.get("engine", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The state windows of a fleet, in seconds."""

    usual: int
    """Of most engines, and of those whose pace is not known."""
    interval: float | None
    """The slowest scrape interval (s) among the engines with the usual window; None when none is known."""
    own: Mapping[EngineKey, int] = field(default_factory=dict)
    """Of the engines that have another one."""

    @property
    def different(self) -> Sequence[int]:
        """Every window in use, the usual one first."""
        return [self.usual, *sorted(set(self.own.values()) - {self.usual})]

    def of(self, key: EngineKey) -> int:
        """The window of one engine."""
        return self.own.get(key, self.usual)


def windows_of(gauges: Sequence[Series], *, at: float, settings: WindowSettings) -> Windows:
    """Choose the windows from the spacing of the gauges at the moment `at` (Unix seconds).

    A gap that no window can hold often enough is a target that comes and goes, not a pace. Nor has an engine a pace
    that is gone: one that lived through an outage with three samples would for as long as they are fetched. Only where
    nothing else is known do these decide.
    """
    paces = [(one, pace) for one in gauges if (pace := one.pace) is not None]
    holdable = [(one, pace) for one, pace in paces if pace <= settings.gauges / settings.fewest_scrapes]
    live = [(one, pace) for one, pace in holdable if not one.is_stale(at=at, interval=pace)]
    running = [(one, pace) for one, pace in live if one.name in NAMES[Meaning.RUNNING].names]
    if not running:
        interval = max((pace for _, pace in live or holdable or paces), default=None)
        return Windows(usual=_window(interval, settings=settings), interval=interval)
    slowest: dict[EngineKey, float] = {}
    for one, pace in running:
        slowest[key_of(one)] = max(pace, slowest.get(key_of(one), 0.0))
    wanted = {key: _window(pace, settings=settings) for key, pace in slowest.items()}
    common = sorted(Counter(wanted.values()).items(), key=lambda found: (-found[1], found[0]))
    usual, kept = common[0][0], {window for window, _ in common}
    if len(kept) > MOST_WINDOWS:
        kept = {window for window, _ in common[: MOST_WINDOWS - 1]} | {max(kept)}
    own = {key: min(each for each in kept if each >= window) for key, window in wanted.items()}
    return Windows(
        usual=usual,
        interval=max(pace for key, pace in slowest.items() if own[key] == usual),
        own={key: window for key, window in own.items() if window != usual},
    )


def _window(interval: float | None, *, settings: WindowSettings) -> int:
    if interval is None:
        return min(settings.state, settings.gauges)
    # Intervals are whole seconds but for jitter, which would make 61 s of 60, and another window for each target.
    return min(max(settings.state, settings.fewest_scrapes * round(interval)), settings.gauges)
