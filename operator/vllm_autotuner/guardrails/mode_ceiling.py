"""Cluster-wide limits of the administrator: a mode ceiling and a kill switch for all services (G02).

Under a ceiling each service behaves as if its spec.tuning.mode were at most that; active changes continue to their
verdict. The kill switch sets the ceiling Recommend and rolls active changes back. Serving continues in any case.
Separate from the chain, because limits are parsed and merged (flags, ConfigMap) once, before any service is evaluated.
Must not: guess. Limits that cannot be read allow no new change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.api.spec import Mode

__all__ = [
    "KILL_SWITCH",
    "MODE_CEILING",
    "NO_LIMITS",
    "READ_ONLY",
    "Limits",
    "joined",
    "limits_from",
    "lower",
    "parse_limits",
    "unreadable",
]

MODE_CEILING: Final = "modeCeiling"
KILL_SWITCH: Final = "killSwitch"
_KEYS: Final = (MODE_CEILING, KILL_SWITCH)

_LADDER: Final = (Mode.OFF, Mode.RECOMMEND, Mode.APPROVE, Mode.AUTOMATIC)
"""The modes from least to most permissive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The cluster-wide limits in force."""

    ceiling: Mode = Mode.AUTOMATIC
    """The highest allowed mode, with the kill switch and unreadable limits taken into account."""
    kill: bool = False
    """Active changes are rolled back."""
    why: str = ""
    """The limit and its source, in words; empty without limits."""

    def of(self, mode: Mode) -> Mode:
        """The effective mode of a service with this spec.tuning.mode."""
        return lower(self.ceiling, mode)


NO_LIMITS: Final = Limits()
READ_ONLY: Final = Limits(ceiling=Mode.RECOMMEND, why="the operator is read-only (--read-only)")
"""Of an operator that writes nothing: no change can begin, so none may be decided."""


def lower(one: Mode, other: Mode) -> Mode:
    """The less permissive mode."""
    return min(one, other, key=_LADDER.index)


def limits_from(*, ceiling: Mode, kill: bool, source: str) -> Limits:
    """Build limits from their settings. `source` is named in the message, so that they can be lifted there."""
    if kill:
        why = f"the operator's kill switch is on ({source})"
        return Limits(ceiling=lower(ceiling, Mode.RECOMMEND), kill=True, why=why)
    why = f"the operator's mode ceiling is {ceiling.value} ({source})" if ceiling is not Mode.AUTOMATIC else ""
    return Limits(ceiling=ceiling, why=why)


def parse_limits(data: Mapping[str, object], *, source: str) -> Limits:
    """Parse the data of a ConfigMap; a missing key sets no limit. A misspelt one allows no new change."""
    for key in data:
        if key not in _KEYS:
            return unreadable(f"unknown key {key}, use {MODE_CEILING} or {KILL_SWITCH}", source=source)
    try:
        ceiling = Mode(str(data.get(MODE_CEILING, Mode.AUTOMATIC.value)).strip())
    except ValueError:
        return unreadable(f"set {MODE_CEILING} to one of {', '.join(_LADDER)}", source=source)
    switch = str(data.get(KILL_SWITCH, "false")).strip().lower()
    if switch not in ("true", "false"):
        return unreadable(f'set {KILL_SWITCH} to "true" or "false"', source=source)
    return limits_from(ceiling=ceiling, kill=switch == "true", source=source)


def unreadable(why: str, *, source: str) -> Limits:
    """Limits that cannot be read: no new changes; active ones continue to their verdict."""
    return Limits(ceiling=Mode.RECOMMEND, why=f"the operator's limits cannot be read ({source}): {why}")


def joined(one: Limits, other: Limits) -> Limits:
    """Merge two limits: the stricter of each setting, explained by the stricter limit."""
    stricter, milder = sorted((one, other), key=lambda limits: (not limits.kill, _LADDER.index(limits.ceiling)))
    ceiling = lower(stricter.ceiling, milder.ceiling)
    return Limits(ceiling=ceiling, kill=stricter.kill, why=stricter.why or milder.why)
