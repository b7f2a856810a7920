"""What the administrator of the cluster sets above every service: a ceiling on the mode, and a kill switch (G02).

Under a ceiling each service behaves as if its spec.tuning.mode were at most that; a change that runs goes on to its
verdict. The kill switch is the ceiling Recommend, and takes the change that runs back. Serving goes on in any case.
Apart from the chain, because limits are read (from text) and joined (flags, ConfigMap) before any service is looked at.
Must not: guess. What cannot be read allows nothing new.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from vllm_autotuner.api.spec import Mode

__all__ = [
    "KILL_SWITCH",
    "MODE_CEILING",
    "NO_LIMITS",
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
"""From nothing to everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is allowed at most, here and now."""

    ceiling: Mode = Mode.AUTOMATIC
    """The kill switch and unreadable limits are in it already."""
    kill: bool = False
    """The change that runs is taken back."""
    why: str = ""
    """Who limits what, for people; empty when nobody limits anything."""

    def of(self, mode: Mode) -> Mode:
        """The mode of a service that asks for this one."""
        return lower(self.ceiling, mode)


NO_LIMITS: Final = Limits()


def lower(one: Mode, other: Mode) -> Mode:
    """The mode that allows less."""
    return min(one, other, key=_LADDER.index)


def limits_from(*, ceiling: Mode, kill: bool, source: str) -> Limits:
    """Limits as they were set. `source` says where, for people who want to lift them."""
    if kill:
        why = f"the operator's kill switch is on ({source})"
        return Limits(ceiling=lower(ceiling, Mode.RECOMMEND), kill=True, why=why)
    why = f"the operator's mode ceiling is {ceiling.value} ({source})" if ceiling is not Mode.AUTOMATIC else ""
    return Limits(ceiling=ceiling, why=why)


def parse_limits(data: Mapping[str, object], *, source: str) -> Limits:
    """Read the data of a ConfigMap; a key left out sets no limit. What is misspelt allows nothing new."""
    for key in data:
        if key not in _KEYS:
            return unreadable(f"{key} is neither {MODE_CEILING} nor {KILL_SWITCH}", source=source)
    try:
        ceiling = Mode(str(data.get(MODE_CEILING, Mode.AUTOMATIC.value)).strip())
    except ValueError:
        return unreadable(f"write {MODE_CEILING} as one of {', '.join(_LADDER)}", source=source)
    switch = str(data.get(KILL_SWITCH, "false")).strip().lower()
    if switch not in ("true", "false"):
        return unreadable(f'write {KILL_SWITCH} as "true" or "false"', source=source)
    return limits_from(ceiling=ceiling, kill=switch == "true", source=source)


def unreadable(why: str, *, source: str) -> Limits:
    """Limits that nobody knows: nothing new starts, what runs is judged."""
    return Limits(ceiling=Mode.RECOMMEND, why=f"the operator's limits cannot be read ({source}): {why}")


def joined(one: Limits, other: Limits) -> Limits:
    """Both at once; the stricter one explains."""
    stricter, milder = sorted((one, other), key=lambda limits: (not limits.kill, _LADDER.index(limits.ceiling)))
    ceiling = lower(stricter.ceiling, milder.ceiling)
    return Limits(ceiling=ceiling, kill=stricter.kill, why=stricter.why or milder.why)
