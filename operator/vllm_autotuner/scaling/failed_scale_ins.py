"""Remembers failed scale-ins with their load, so that the same prediction is not repeated.

Separate from `desired_replicas`, which predicts from measurements; this records the results, whatever their reason.
Without it a service that seems to need fewer replicas would be scaled in again and again, and be late each time.
Pure. Must not: hold a scale-in at a clearly lower load back for longer than `tried_again_from` says.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from vllm_autotuner.api.scale_ins import ScaleInTried
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.planning.current_replica import STRETCH
from vllm_autotuner.scaling.supply import Scale

__all__ = ["FORGOTTEN", "after_scaling", "failed_at", "most_too_few", "tried_again_from"]

FORGOTTEN: Final = timedelta(days=1)
"""How long a failure counts: loads repeat daily, while prompts and users change. Our choice, unmeasured."""


def after_scaling(
    tried: Sequence[ScaleInTried],
    *,
    before: int,
    ready: int,
    newest_since: datetime | None,
    scale: Scale,
    config_hash: str | None,
    load: float | None,
    now: datetime,
) -> tuple[ScaleInTried, ...]:
    """Return the remembered scale-ins after the desired replicas changed from `before`.

    A scale-in is on trial until the next one, or until requests wait or are late and replicas are added for it, unless
    nothing was foretold of it (an idle service, the user's bounds). Then the number that served was too low at `load`,
    the most output tokens per second of all replicas in five minutes, which `most_too_few` compares; None if not known.
    The number above it was enough, and is not to blame for a backlog that the lower one has left.
    `ready`: of those before; what is still starting has not been tried. Of a few, one that came back (`newest_since`:
    Ready) within the time of that load says that the others had its share: the number was too few, but not at such a
    load.
    """
    if scale.replicas < before:
        failed = (one for one in tried if one.failed_at is not None and now - one.failed_at < FORGOTTEN)
        trial = ScaleInTried(replicas=scale.replicas, config_hash=config_hash, at=now)
        return (*failed, trial) if scale.foretold else tuple(failed)
    if not scale.lacking:
        return tuple(tried)
    return tuple(
        one.updated(failed_at=now, tokens_per_second=load, pod_came_back=_came_back(one, newest_since, now=now) or None)
        if _on_trial(one, replicas=min(before, ready), config_hash=config_hash)
        else one
        for one in tried
    )


def failed_at(tried: Sequence[ScaleInTried], *, config_hash: str | None, now: datetime) -> tuple[ScaleInTried, ...]:
    """Return the failures that apply to the current configuration at this moment: none of the future, or long ago."""
    known = [one for one in tried if one.failed_at is not None and timedelta() <= now - one.failed_at < FORGOTTEN]
    return tuple(one for one in known if one.config_hash == config_hash)


def most_too_few(failed: Sequence[ScaleInTried], *, load: float) -> int:
    """Return the most replicas that failed at this load or a lower one; 0 if none has.

    Loads that differ by less than noise count as equal. Those of which a pod had just come back have had another load.
    """
    known = ((one.replicas, one.tokens_per_second) for one in failed if not one.pod_came_back)
    return max((replicas for replicas, then in known if then is None or load >= then * (1 - NOISE)), default=0)


def tried_again_from(replicas: int, failed: Sequence[ScaleInTried], *, stabilization: timedelta) -> datetime | None:
    """Return the moment from which so few replicas may be tried again; None if neither they nor more of them failed.

    Counted for each number from its last failure, and twice as long for each time that it was too few: bursts that come
    by chance are rarely among the last minutes, and one is late for each try.
    Worked: with 10 minutes, 20 after the first failure and 40 after the second.
    """
    # Not the failures of all of them together: a day that needs one replica after the other is one of each number.
    moments: dict[int, list[datetime]] = defaultdict(list)
    for one in failed:
        if one.replicas >= replicas and one.failed_at is not None:
            moments[one.replicas].append(one.failed_at)
    return max((max(each) + stabilization * 2.0 ** len(each) for each in moments.values()), default=None)


def _on_trial(one: ScaleInTried, *, replicas: int, config_hash: str | None) -> bool:
    return one.replicas == replicas and one.config_hash == config_hash and one.failed_at is None


def _came_back(one: ScaleInTried, newest_since: datetime | None, *, now: datetime) -> bool:
    """Whether a pod became ready after the scale-in, just now, whose share is more than noise."""
    if newest_since is None or one.at is None or one.replicas * NOISE >= 1:
        return False
    return one.at < newest_since and now - newest_since < timedelta(seconds=STRETCH)
