"""Estimates the step time of other batch sizes from typical engines, for a service that ran at one batch size only.

Separate from `performance.physics`, which uses the hardware only, and from the fit, which takes precedence.
Must not: be used to choose a value. It is accurate enough to decide whether a trial is worthwhile.
"""

from vllm_autotuner.diagnosis.case import batch_of_tokens
from vllm_autotuner.diagnosis.prefill_bound import BUSY, prefill_shares
from vllm_autotuner.observation.reading import number
from vllm_autotuner.performance.physics import empty_step
from vllm_autotuner.planning.demand import demand_of
from vllm_autotuner.planning.situation import Situation

__all__ = ["seconds_alone"]


def seconds_alone(situation: Situation) -> float | None:
    """Return the step time without sequences; None if the inter-token latency or the context is not known."""
    seen, context = situation.observation, demand_of(situation).context
    itl, batch = number(seen.itl.mean), batch_of_tokens(seen)
    if itl is None or context is None or batch is None:
        return None
    return empty_step(itl, batch=batch, context=context, prefilling=_prefilling(situation))


def _prefilling(situation: Situation) -> float:
    shares = prefill_shares(situation.observation.engines)
    # Times of prompts that are computed side by side add up: no more than what does not yet count as prefilling.
    return min(BUSY.limit, sum(shares) / len(shares)) if shares else 0.0
