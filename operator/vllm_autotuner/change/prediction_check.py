"""Checks predictions of recommendations against later measurements, for status.trackRecord (G45).

Only recommendations that the operator did not apply itself: a user set the value, or the load reached the predicted
batch. Pure: record and current measurements in, next record out. A prediction counts as tested only with the predicted
setting and a similar load; most are never tested.
Must not: score the operator's own changes (they have a verdict), or influence decisions: the record is informational.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final

from vllm_autotuner.api.knobs import EngineKnobs, Knob, knob_value
from vllm_autotuner.api.status import ActiveChange, Came, ComparedBy, Foretold, Measurement, Prediction, Recommendation
from vllm_autotuner.planning.bounds import with_value

__all__ = ["FEWEST_WINDOWS", "KEPT_FOR", "NEAR_BATCH", "SAME_LOAD", "TOLERANCE", "Now", "followed_up", "noted"]

FEWEST_WINDOWS: Final = 3
"""Windows needed for a comparison. Our choice: one may be chance, three in a row are a steady state."""
SAME_LOAD: Final = 0.2
"""Loads that differ by at most this share count as equal. Our choice: on measured curves latency then moves by less
than the tolerance, short of the knee."""
NEAR_BATCH: Final = 0.15
"""A batch within this share of the predicted one tests its TPOT, as in `backtest`."""
TOLERANCE: Final = 0.25
"""A latency that is worse than predicted by at most this share still counts as correct: the models miss TPOT by 2 to
6 % on measured curves, quantiles of half a minute by more. Our choice, unmeasured."""
KEPT_FOR: Final = timedelta(days=7)
"""Untested predictions are dropped after this time: by then lengths and load have changed. Our choice."""
_TTFT, _TPOT = "TTFT", "TPOT"
_MEASURED: Final = ("s", "tokens/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The current configuration and its measurements."""

    at: datetime
    knobs: EngineKnobs
    replicas: int
    windows: Sequence[Measurement] = ()
    """Measured with exactly this configuration, warmed up; newest last."""
    change: ActiveChange | None = None


def noted(
    record: Sequence[Foretold],
    made: Recommendation | None,
    *,
    now: Now,
    in_system: float | None,
    arrivals_per_second: float | None,
) -> tuple[Foretold, ...]:
    """Add a recommendation that is new and predicts a latency. It replaces an earlier one for the same step."""
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
        max_num_seqs=made.max_num_seqs,
        made_at=now.at,
        knobs=now.knobs,
        replicas=now.replicas,
        in_system=in_system,
        arrivals_per_second=arrivals_per_second,
        predicted=measurable,
    )
    return (*others, new)


def followed_up(record: Sequence[Foretold], now: Now) -> tuple[Foretold, ...]:
    """Record results that can be compared now; drop old entries, and those that the operator applied itself."""
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
    """Whether the recommended value runs and nothing else has changed."""
    if foretold.knob == Knob.REPLICAS:
        return now.knobs == foretold.knobs and str(now.replicas) == foretold.recommended
    try:
        knob = Knob(foretold.knob)
        wanted = with_value(foretold.knobs, knob, knob_value(foretold.recommended))
    except ValueError:
        # A record of another version, or edited by hand.
        return False
    if foretold.max_num_seqs is not None:
        wanted = wanted.updated(max_num_seqs=foretold.max_num_seqs)
    # A length may have gone with it (`Recommendation.max_model_len`), and no latency depends on it.
    same = now.knobs if knob is Knob.MAX_MODEL_LEN else now.knobs.updated(max_model_len=wanted.max_model_len)
    return same == wanted and now.replicas == foretold.replicas


def _is_like(window: Measurement, foretold: Foretold) -> bool:
    """Whether the load is similar: requests in the system (closed-loop clients) or arrival rate (open-loop clients)."""
    return _near(_in_system(window), foretold.in_system, by=SAME_LOAD) or _near(
        window.requests_per_second, foretold.arrivals_per_second, by=SAME_LOAD
    )


def _tests_batch(window: Measurement, foretold: Foretold, now: Now) -> bool:
    """Whether the engines run the batch that the recommended max-num-seqs would have filled."""
    slots, replicas = knob_value(foretold.recommended), foretold.replicas or 0
    as_then = (now.knobs, now.replicas) == (foretold.knobs, replicas)
    if foretold.knob != Knob.MAX_NUM_SEQS or isinstance(slots, str) or not as_then:
        return False
    filled = foretold.in_system is not None and foretold.in_system >= slots * replicas
    return filled and _near(window.running, float(slots * replicas), by=NEAR_BATCH)


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
