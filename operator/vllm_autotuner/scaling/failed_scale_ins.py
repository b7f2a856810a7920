"""Which numbers of replicas were tried and did not do, and at what load: a prediction that failed is not made again.

Apart from `scale_in`, which predicts from what was measured; this remembers what came of it, whatever the reason was.
Without it a service that looks as if fewer would do is scaled in again after every rest, and late again each time.
Pure. Must not: hold back a replica at a load that is clearly lower.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.scale_ins import ScaleInTried
from vllm_autotuner.observation.noise import NOISE

__all__ = ["FORGOTTEN", "after_scaling", "failed_at", "too_few"]

FORGOTTEN: Final = timedelta(days=1)
"""How long a failure counts: loads repeat by the day, while prompts and users change. Our choice, unmeasured."""


def after_scaling(
    tried: Sequence[ScaleInTried],
    *,
    before: int,
    replicas: int,
    config_hash: str | None,
    load: float | None,
    proves_itself: timedelta,
    now: datetime,
) -> tuple[ScaleInTried, ...]:
    """Return what is remembered once `replicas` are asked for where there were `before`.

    Fewer: they are on trial. More, within the time in which fewer have to prove themselves: those were too few at
    `load` (output tokens per second of all; None where nobody knows). Later than that the load has moved on.
    """
    if replicas < before:
        others = (one for one in tried if one.replicas != replicas or one.failed_at is not None)
        return (*others, ScaleInTried(replicas=replicas, config_hash=config_hash, at=now))
    if replicas == before:
        return tuple(tried)
    return tuple(
        one.updated(failed_at=now, tokens_per_second=load)
        if _on_trial(one, replicas=before, config_hash=config_hash, proves_itself=proves_itself, now=now)
        else one
        for one in tried
    )


def failed_at(tried: Sequence[ScaleInTried], *, config_hash: str | None, now: datetime) -> tuple[ScaleInTried, ...]:
    """Return the failures that still say something of what runs now."""
    return tuple(
        one
        for one in tried
        if one.failed_at is not None and one.config_hash == config_hash and now - one.failed_at < FORGOTTEN
    )


def too_few(failed: Sequence[ScaleInTried], *, replicas: int, load: float) -> ScaleInTried | None:
    """Return the failure that speaks against so many replicas at this load; None when nothing does.

    As many or more have failed at it, or at little more: loads that differ by less than noise are the same.
    """
    against = (
        one
        for one in failed
        if one.replicas >= replicas and (one.tokens_per_second is None or load >= one.tokens_per_second * (1 - NOISE))
    )
    return next(against, None)


def _on_trial(
    one: ScaleInTried, *, replicas: int, config_hash: str | None, proves_itself: timedelta, now: datetime
) -> bool:
    same = one.replicas == replicas and one.config_hash == config_hash and one.failed_at is None
    return same and one.at is not None and now - one.at <= proves_itself
