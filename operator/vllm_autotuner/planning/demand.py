"""The current demand on a service, in the few figures that a forecast needs.

Separate from the forecast, because this is measured and the forecast is arithmetic. Unknown figures are None.
"""

from dataclasses import dataclass

from vllm_autotuner.diagnosis.case import mean_batch, queues, tpot_tail
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.reading import number
from vllm_autotuner.planning.situation import Situation

__all__ = ["Demand", "demand_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Of the whole service; seconds and tokens."""

    in_system: float
    """Requests that run or wait, at most at one scrape: what a window's upper end has to serve."""
    queued: bool
    """Requests have been waiting for capacity, lastingly."""
    prompt_tokens: float | None
    """Mean of a request."""
    output_tokens: float | None
    """Mean of a request."""
    prefill: float | None
    """Mean time in which a prompt is computed, once its turn has come."""
    ttft: float | None
    """At the quantile of its objective."""
    prefill_tail: float | None = None
    """That of a prompt as long as at the quantile of TTFT's objective: it is computed in proportion to its length."""
    tail: float
    """TPOT at the quantile of its objective over its mean, at least 1."""
    batch: float
    """Sequences running at once in one engine on average: what that tail is of."""

    @property
    def context(self) -> float | None:
        """Tokens that a sequence holds on average: its prompt and half of its output."""
        if self.prompt_tokens is None or self.output_tokens is None:
            return None
        return self.prompt_tokens + self.output_tokens / 2


def demand_of(situation: Situation) -> Demand:
    """Return the demand on a service. Assumes that an engine reports."""
    seen, targets = situation.observation, situation.targets
    case = situation.case
    prefill, prompt = number(seen.prefill_time.mean), _mean(seen, seen.prompted_per_second)
    longer = number(seen.prompt_length.quantile(targets.ttft.quantile))
    return Demand(
        in_system=sum(max(moment.running + moment.waiting for moment in each.moments) for each in seen.engines),
        queued=queues(seen),
        prompt_tokens=prompt or number(seen.prompt_length.quantile(0.5)),
        output_tokens=_mean(seen, seen.generated_per_second) or number(seen.output_length.quantile(0.5)),
        prefill=prefill,
        ttft=number(seen.ttft.quantile(targets.ttft.quantile)),
        prefill_tail=prefill * max(1.0, longer / prompt) if prefill and longer and prompt else None,
        tail=tpot_tail(case),
        batch=mean_batch(case),
    )


def _mean(seen: Observation, tokens_per_second: float | None) -> float | None:
    finished = seen.finished_per_second
    return tokens_per_second / finished if tokens_per_second and finished else None
