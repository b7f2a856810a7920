"""Remembers failed scale-ins with their load, so that the same prediction is not repeated.

Separate from `scale_in`, which predicts from measurements; this records the results, whatever their reason. Without it
a service that seems to need fewer replicas would be scaled in again after every cooldown and be late each time.
Pure. Must not: prevent a scale-in at a load that is clearly lower.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.scale_ins import ScaleInTried
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.scaling.supply import Scale

__all__ = ["FORGOTTEN", "after_scaling", "failed_at", "most_too_few", "wait_before"]

FORGOTTEN: Final = timedelta(days=1)
"""How long a failure counts: loads repeat daily, while prompts and users change. Our choice, unmeasured."""


def after_scaling(
    tried: Sequence[ScaleInTried],
    *,
    before: int,
    ready: int,
    scale: Scale,
    config_hash: str | None,
    load: float | None,
    now: datetime,
) -> tuple[ScaleInTried, ...]:
    """Return the remembered scale-ins after the desired replicas changed from `before`.

    A scale-in is on trial until requests wait or are late and replicas are added for it: the number that served was too
    low at `load`, the most output tokens per second of all replicas in five minutes, which `most_too_few` compares;
    None if not known. `ready`: of those before; what is still starting has not been tried.
    """
    if scale.replicas < before:
        others = (one for one in tried if one.replicas != scale.replicas or one.failed_at is not None)
        return (*others, ScaleInTried(replicas=scale.replicas, config_hash=config_hash, at=now))
    if not scale.lacking:
        return tuple(tried)
    return tuple(
        one.updated(failed_at=now, tokens_per_second=load)
        if _on_trial(one, replicas=min(before, ready), config_hash=config_hash)
        else one
        for one in tried
    )


def failed_at(tried: Sequence[ScaleInTried], *, config_hash: str | None, now: datetime) -> tuple[ScaleInTried, ...]:
    """Return the failures that still apply to the current configuration.

    One of the future, from an edited status or another clock, counts for as long as one of the past.
    """
    return tuple(
        one
        for one in tried
        if one.failed_at is not None and one.config_hash == config_hash and abs(now - one.failed_at) < FORGOTTEN
    )


def most_too_few(failed: Sequence[ScaleInTried], *, load: float) -> int:
    """Return the most replicas that failed at this load or a lower one; 0 if none has.

    Loads that differ by less than noise count as equal.
    """
    known = ((one.replicas, one.tokens_per_second) for one in failed)
    return max((replicas for replicas, then in known if then is None or load >= then * (1 - NOISE)), default=0)


def wait_before(replicas: int, failed: Sequence[ScaleInTried], *, stabilization: timedelta) -> timedelta:
    """Return how long nothing may have moved before so few replicas are tried (again).

    Twice as long for each time that they, or more of them, were too few within `FORGOTTEN`: bursts that come by chance
    are rarely among the last minutes, and one is late for each try. Worked: 10 min, and 40 min after two failures.
    """
    return stabilization * 2 ** sum(one.replicas >= replicas for one in failed)


def _on_trial(one: ScaleInTried, *, replicas: int, config_hash: str | None) -> bool:
    return one.replicas == replicas and one.config_hash == config_hash and one.failed_at is None
