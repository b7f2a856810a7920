"""Whether what a recommendation foretold came true, where somebody else carried it out or the load came to it (G45).

Pure, like `memory`: a record and what is measured now go in, the next record comes out. A prediction counts as tested
only where the setting is the foretold one and the load is like the one of then; most are never tested, and say nothing.
Must not: score the operator's own changes (they have a verdict), or let a score decide anything: it is for people.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.status import ActiveChange, Came, ComparedBy, Foretold, Measurement, Prediction, Recommendation
from vllm_autotuner.planning.bounds import with_value

__all__ = ["FEWEST_WINDOWS", "KEPT_FOR", "NEAR_BATCH", "SAME_LOAD", "TOLERANCE", "Now", "followed_up", "noted"]

FEWEST_WINDOWS: Final = 3
"""Windows that a figure is compared with. Our choice: one may be chance, three in a row are a state."""
SAME_LOAD: Final = 0.2
"""Loads within this share of each other are alike. Our choice: on measured curves latency then moves by less than the
tolerance, short of the knee."""
NEAR_BATCH: Final = 0.15
"""A batch within this share of the foretold one tests its TPOT, as in `backtest`."""
TOLERANCE: Final = 0.25
"""So much worse than foretold still counts as held: the models miss TPOT by 2 to 6 % on measured curves, quantiles of
half a minute by more. Our choice, unmeasured."""
KEPT_FOR: Final = timedelta(days=7)
"""What nothing has tested after so long is forgotten: lengths and load of a service are others by then. Our choice."""
_TTFT, _TPOT = "TTFT", "TPOT"
_MEASURED: Final = ("s", "tokens/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What runs now, and what was measured of it."""

    at: datetime
    knobs: EngineKnobs
    replicas: int
    windows: Sequence[Measurement] = ()
    """Of this very setting, warmed up; newest last."""
    change: ActiveChange | None = None


def noted(
    record: Sequence[Foretold],
    made: Recommendation | None,
    *,
    now: Now,
    in_system: float | None,
    arrivals_per_second: float | None,
) -> tuple[Foretold, ...]:
    """Add a recommendation that is new and foretells a latency. The same question asked again replaces the first."""
    if made is None or any(each.id == made.id for each in record):
        return tuple(record)
    measurable = tuple(each for each in made.predicted if each.unit in _MEASURED and each.predicted is not None)
    if not any(each.name in (_TTFT, _TPOT) for each in measurable):
        return tuple(record)
    asked = (made.knob, made.current, made.recommended)
    others = (each for each in record if each.came is not None or (each.knob, each.current, each.recommended) != asked)
    new = Foretold(
        id=made.id,
        knob=made.knob,
        current=made.current,
        recommended=made.recommended,
        made_at=now.at,
        knobs=now.knobs,
        replicas=now.replicas,
        in_system=in_system,
        arrivals_per_second=arrivals_per_second,
        predicted=measurable,
    )
    return (*others, new)


def followed_up(record: Sequence[Foretold], now: Now) -> tuple[Foretold, ...]:
    """Write down what came where it can be told now; forget what is too old, and what became a change of ours."""
    kept = (
        each for each in record if each.came is not None or (now.at - each.made_at < KEPT_FOR and not _ours(each, now))
    )
    return tuple(each if each.came is not None else _tested(each, now) for each in kept)


def _ours(foretold: Foretold, now: Now) -> bool:
    change = now.change
    return change is not None and (change.knob, change.to_value) == (foretold.knob, foretold.recommended)


def _tested(foretold: Foretold, now: Now) -> Foretold:
    if now.change is not None:
        return foretold
    if _is_applied(foretold, now):
        alike = [each for each in now.windows if _is_like(each, foretold)]
        found = _came(foretold, alike, by=ComparedBy.VALUE)
    else:
        found = _came(foretold, [each for each in now.windows if _tests_batch(each, foretold, now)], by=ComparedBy.LOAD)
    return foretold if found is None else foretold.updated(came=found)


def _is_applied(foretold: Foretold, now: Now) -> bool:
    """Whether exactly what was recommended runs, and nothing else is different."""
    if foretold.knob == Knob.REPLICAS:
        return now.knobs == foretold.knobs and str(now.replicas) == foretold.recommended
    try:
        knob = Knob(foretold.knob)
        wanted = with_value(foretold.knobs, knob, _value(foretold))
    except ValueError:
        # A record of another version, or edited by hand.
        return False
    return now.knobs == wanted and now.replicas == foretold.replicas


def _value(foretold: Foretold) -> int | str:
    text = foretold.recommended
    return int(text) if text.isascii() and text.isdecimal() else text


def _is_like(window: Measurement, foretold: Foretold) -> bool:
    """Clients that wait for their answers keep their number, others their rate: either alike is a load alike."""
    return _near(_in_system(window), foretold.in_system, by=SAME_LOAD) or _near(
        window.requests_per_second, foretold.arrivals_per_second, by=SAME_LOAD
    )


def _tests_batch(window: Measurement, foretold: Foretold, now: Now) -> bool:
    """Whether each engine runs the batch that the recommended seats would have filled."""
    seats, replicas = _value(foretold), foretold.replicas or 0
    as_then = (now.knobs, now.replicas) == (foretold.knobs, replicas)
    if foretold.knob != Knob.MAX_NUM_SEQS or isinstance(seats, str) or not as_then:
        return False
    filled = foretold.in_system is not None and foretold.in_system >= seats * replicas
    return filled and _near(window.running, float(seats * replicas), by=NEAR_BATCH)


def _came(foretold: Foretold, windows: Sequence[Measurement], *, by: ComparedBy) -> Came | None:
    if len(windows) < FEWEST_WINDOWS:
        return None
    ttft = _median(each.ttft_seconds for each in windows) if by is ComparedBy.VALUE else None
    tpot = _median(each.tpot_seconds for each in windows)
    compared = [
        measured <= wanted * (1 + TOLERANCE)
        for name, measured in ((_TTFT, ttft), (_TPOT, tpot))
        if measured is not None and (wanted := _predicted(foretold.predicted, name)) is not None
    ]
    return Came(
        at=windows[-1].at,
        compared_by=by,
        windows=len(windows),
        ttft_seconds=ttft,
        tpot_seconds=tpot,
        tokens_per_second=_median(each.tokens_per_second for each in windows) if by is ComparedBy.VALUE else None,
        held=all(compared) if compared else None,
    )


def _predicted(predictions: Sequence[Prediction], name: str) -> float | None:
    return next((each.predicted for each in predictions if each.name == name), None)


def _in_system(window: Measurement) -> float | None:
    return None if window.running is None or window.waiting is None else window.running + window.waiting


def _median(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return float(f"{median(known):.3g}") if known else None


def _near(found: float | None, wanted: float | None, *, by: float) -> bool:
    if found is None or wanted is None or not (0 < wanted < math.inf):
        return False
    return abs(found - wanted) <= by * wanted
