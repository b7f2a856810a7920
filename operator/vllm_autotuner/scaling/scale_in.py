"""Decides on scale-in: whether n - 1 engines would carry the load of the last minutes, from their measurements.

Separate from scale-out, which reacts to an existing queue; this is a prediction, and any unknown input keeps the
replica.
Must not: use the current load alone; the highest load of the stabilization time must fit.
"""

import math
from collections import defaultdict
from datetime import timedelta
from statistics import fmean
from typing import Final

from vllm_autotuner.api.wording import told_seconds
from vllm_autotuner.diagnosis.case import Case, tail_of, tpot_at_most, tpot_mean
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.diagnosis.prefill_bound import CONTENDING, prefill_shares
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.reading import number
from vllm_autotuner.performance.batch_curve import BatchCurveFit, fit_batch_curve, remembered_curve
from vllm_autotuner.performance.queueing import wait_for_slot
from vllm_autotuner.performance.step_time import NoFit
from vllm_autotuner.planning.capped_value import HEADROOM
from vllm_autotuner.planning.max_num_seqs import kv_bound
from vllm_autotuner.scaling.carrying import batch_for
from vllm_autotuner.scaling.lateness import ttft_lately
from vllm_autotuner.scaling.rise import growth

__all__ = ["fewer_do", "peak_tokens_per_second"]

LEAST_SEEN: Final = 0.8
"""Share of the stabilization time that must have been observed under load: less is an outage or a restart, not low
load. Our choice, as for `Sustained`."""

LATELY: Final = 0.2
"""Newest share of the stabilization time, whose load is compared with that of the whole: long enough that it varies by
less than noise, short enough to see a rise within minutes. Our choice, unmeasured."""
PERHAPS: Final = 1.0
"""Standard deviations of the slope above which a load may be rising: waiting costs one replica for a minute, less than
lacking one for as long as it takes to start. Our choice."""


def fewer_do(case: Case, *, replicas: int, over: timedelta, since: float | None = None) -> str | None:
    """Say how one replica fewer would serve the highest load of the time `over`; None if it would not.

    None as well if an input is not known. `since`: Unix seconds since when the number of replicas is the current one;
    all remembered TTFT windows from then on count, because bursts may be farther apart than `over`.
    Worked: 2 engines at 20 sequences, with steps of 10 ms and 0.1 ms a sequence, give 3,333 tokens/s together; one
    alone needs a batch of 50 for them at 15 ms a token where that was seen, and of 75 at 22 ms where nothing above 20
    was (15 % slower for each doubling).
    """
    observation, targets = case.observation, case.targets
    if replicas < 2 or len(observation.engines) < replicas:
        return None
    peak = peak_tokens_per_second(observation, over=over)
    if peak is None or _rises(observation, over=over):
        return None
    if _prompts_would_contend(observation, peak=peak, more=replicas / (replicas - 1)):
        return None
    curve, pool = _curve(case), kv_bound(observation)
    ttft = ttft_lately(observation, targets=targets, since=since)
    if pool is None or isinstance(curve, NoFit) or ttft is None:
        return None
    batch, before = (batch_for(peak / count, curve, itl=curve.at_most) for count in (replicas - 1, replicas))
    if batch is None or before is None or batch > pool * (1 - HEADROOM):
        return None
    itl, tail = curve.at_most(batch), tail_of(tpot_at_most(case), tpot_mean(case))
    # Prompts wait for steps and for other prompts: steps become longer, and each engine gets more prompts.
    first = ttft * itl / curve.at_most(before) * replicas / (replicas - 1)
    wait = _wait_for_slot(observation, batch=batch, itl=itl, slots=case.knobs.max_num_seqs, targets=targets)
    # No further margin: the highest load and the upper bound of the inter-token latency already include one.
    if itl * tail > targets.tpot.seconds or first + wait > targets.ttft.seconds:
        return None
    return (
        f"{replicas - 1} replica(s) carry the highest load of the last {over.total_seconds() / 60:.0f} min at batch "
        f"size {batch:.0f} and a TPOT of {told_seconds(itl * tail)}"
    )


def _curve(case: Case) -> BatchCurveFit:
    """The measured curve; if a steady load allows no slope, combined with the line that was learned before."""
    curve = fit_batch_curve(case.observation.steps)
    if isinstance(curve, NoFit) and curve.unmoved and case.learned_here is not None:
        return remembered_curve(case.learned_here, case.observation.steps)
    return curve


def _wait_for_slot(observation: Observation, *, batch: float, itl: float, slots: int | None, targets: Targets) -> float:
    """Return by how many seconds TTFT grows because no slot is free; inf with a max-num-seqs but unknown lengths."""
    if slots is None:
        return 0.0
    length = number(observation.recent_output_length.mean)
    if length is None:
        return math.inf
    return wait_for_slot(batch, slots=slots, held=length * itl, quantile=targets.ttft.quantile)


def _prompts_would_contend(observation: Observation, *, peak: float, more: float) -> bool:
    """Whether prefill would fill the engines' time, at the highest load and with `more` times as much per engine.

    Prompts then wait for each other, and TTFT no longer grows in proportion to the load but without bound. If engines
    do not export prefill times, the other limits decide.
    """
    shares = prefill_shares(observation.engines)
    served = observation.generated_per_second
    if not shares or not served:
        return False
    return sum(shares) / len(shares) * max(1.0, peak / served) * more > CONTENDING.limit


def peak_tokens_per_second(observation: Observation, *, over: timedelta) -> float | None:
    """The most output tokens per second of all engines in any window within `over`; None when too few were seen."""
    by_time, window = _tokens_by_window(observation, over=over), observation.window
    if len(by_time) * window < LEAST_SEEN * over.total_seconds():
        return None
    return max(by_time.values()) / window


def _rises(observation: Observation, *, over: timedelta) -> bool:
    """Whether the load has been rising: then its peak is still to come, and the observed one is too low.

    The newest part is above the whole, or above the part before it: a load that has just left a trough rises although
    it was as high ten minutes ago, while falling. The request rate shows it before output tokens do.
    """
    newest = _mean_load(observation, over=over * LATELY)
    before = (_mean_load(observation, over=over), _mean_load(observation, over=over * LATELY, ago=over * LATELY))
    if newest is not None and any(each is not None and newest > each * (1 + NOISE) for each in before):
        return True
    return growth(observation, within=0.0, over=over, since=None, deviations=PERHAPS) is not None


def _mean_load(observation: Observation, *, over: timedelta, ago: timedelta = timedelta()) -> float | None:
    """Output tokens in a window, on average over those that ended within `over` until so long ago; None without any."""
    loads = _tokens_by_window(observation, over=over, ago=ago).values()
    return fmean(loads) if loads else None


def _tokens_by_window(observation: Observation, *, over: timedelta, ago: timedelta = timedelta()) -> dict[float, float]:
    """Output tokens of all engines in each window that ended within `over` until so long ago, by its end."""
    until = observation.at - ago.total_seconds()
    since = until - over.total_seconds()
    by_time: dict[float, float] = defaultdict(float)
    for point in observation.steps:
        if point.time is not None and since < point.time <= until:
            by_time[point.time] += point.tokens
    return by_time
