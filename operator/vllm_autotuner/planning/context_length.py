"""Proposals for max-model-len: lowered only, and never below the lengths that were observed.

Lowering it frees no memory by itself (vLLM V1 reserves none for it). It bounds the worst case of one request, and the
engine fails to start if its KV cache does not hold one sequence of this length. So it is changed where an engine does
not start without it: as the remedy, or together with another setting. Traffic cannot show what a shorter limit does
otherwise, so a trial could not be judged: then it is recommended only.
Must not: propose a length that would reject requests like those served.
"""

import math
from typing import Final

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.planning.capped_value import LARGEST_STEP, STEP_LIMIT, Limit, limited, user_limits
from vllm_autotuner.planning.feasibility import Feasible, holds_lengths, not_failed, verdict
from vllm_autotuner.planning.forecast import longest_length
from vllm_autotuner.planning.proposal import NothingToGain, Proposal
from vllm_autotuner.planning.situation import Situation

__all__ = ["length_within", "longest_seen", "shorter_context", "shorter_to_start"]

MARGIN: Final = 0.25
"""Share added to the longest request seen in half an hour. On a day of chat the longest request was 10 times the
median and 2.2 times the 99.9th percentile, so a cut to what is usual refuses real requests; beyond the longest seen
this is our choice."""
GRANULE: Final = 256
"""Tokens to whole multiples of which a length is rounded up: block sizes divide it. Our choice."""
UNJUDGED: Final = "it only bounds the worst case of one request, so a trial could not be judged"
NO_BOUNDS: Final = "spec.tuning.maxModelLen sets no bounds"


def shorter_context(situation: Situation) -> Proposal | NothingToGain:
    """A shorter limit, at most halved, where requests stay far below it."""
    seen, current = situation.observation, longest_length(situation)
    if current is None:
        return NothingToGain("max-model-len is not known")
    longest = longest_seen(seen)
    if longest is None:
        return NothingToGain("max-model-len: request lengths are not known")
    # The edges of buckets may lie beyond what the engine takes.
    longest = min(longest, current)
    needed = _needed(seen) or longest
    step = Limit(name=STEP_LIMIT, low=math.ceil(current / LARGEST_STEP))
    found = limited(needed, limits=(step, *user_limits("maxModelLen", situation.tuning.max_model_len)))
    if found.value > current * (1 - NOISE):
        return NothingToGain(f"max-model-len {current} is needed: requests had up to {longest} tokens")
    answer = verdict(
        (
            holds_lengths(found.value, longest_seen=needed, shape=situation.platform.shape),
            not_failed(situation.failed, knob=Knob.MAX_MODEL_LEN.value, value=found.value),
        )
    )
    if not isinstance(answer, Feasible):
        return NothingToGain(f"max-model-len {found.value}: {answer.why}")
    return Proposal(
        knob=Knob.MAX_MODEL_LEN,
        current=situation.knobs.max_model_len,
        value=found.value,
        target=ChangeTarget.THROUGHPUT,
        reason=f"Requests had at most {longest} tokens in the last half hour, but {current} are allowed: one request "
        "could use far more KV cache than any has.",
        confidence=Confidence.MEDIUM,
        limited_by=found.limited_by or "longest request seen",
        recommend_only=UNJUDGED,
    )


def shorter_to_start(situation: Situation, *, suggested: int | None) -> Proposal | NothingToGain:
    """The length that fits according to the log of an engine that fails to start (`suggested`), within the bounds."""
    if suggested is None or suggested < 1:
        return NothingToGain("the engine's log does not say which max-model-len would fit")
    current = situation.knobs.max_model_len
    if current is not None and suggested >= current:
        return NothingToGain(f"max-model-len {current} already fits (at most {suggested})")
    whole = suggested // GRANULE * GRANULE or suggested
    found = limited(whole, limits=user_limits("maxModelLen", situation.tuning.max_model_len))
    if found.value > suggested:
        return NothingToGain(f"{found.limited_by} requires {found.value}, but the KV cache holds {suggested} tokens")
    needed = _needed(situation.observation)
    if needed is not None and found.value < needed:
        return NothingToGain(f"max-model-len {found.value} would reject requests: they had up to {needed} tokens")
    answer = not_failed(situation.failed, knob=Knob.MAX_MODEL_LEN.value, value=found.value)
    if not isinstance(answer, Feasible):
        return NothingToGain(f"max-model-len {found.value}: {answer.why}")
    return Proposal(
        knob=Knob.MAX_MODEL_LEN,
        current=current,
        value=found.value,
        target=ChangeTarget.START,
        reason=f"The engine fails to start: its KV cache holds {suggested} tokens, less than one request of "
        f"max-model-len. Requests of more than {found.value} tokens would be rejected.",
        confidence=Confidence.HIGH,
        limited_by=found.limited_by or "KV cache",
        recommend_only="" if situation.tuning.max_model_len is not None else NO_BOUNDS,
    )


def length_within(situation: Situation, *, tokens: float) -> int | None:
    """The longest limit with which a KV cache of so many tokens starts; None if bounds or requests ask for more.

    Requests need the longest one that was served and a margin; without known lengths nothing is shortened.
    """
    bounds, needed = situation.tuning.max_model_len, _needed(situation.observation)
    if bounds is None or needed is None:
        return None
    found = limited(int(tokens) // GRANULE * GRANULE, limits=user_limits("maxModelLen", bounds))
    return found.value if needed <= found.value <= tokens else None


def _needed(seen: Observation) -> int | None:
    longest = longest_seen(seen)
    return None if longest is None else math.ceil(longest * (1 + MARGIN) / GRANULE) * GRANULE


def longest_seen(seen: Observation) -> int | None:
    """Return a length that no request exceeded: the longest prompt and the longest output, as if they had met.

    Upper edges of histogram buckets, so on the safe side. None when one of them is not known, or is in the last bucket.
    """
    prompt, output = _highest(seen.prompt_length), _highest(seen.output_length)
    return None if prompt is None or output is None else math.ceil(prompt + output)


def _highest(lengths: Distribution) -> float | None:
    edges = sorted(lengths.buckets)
    everything = lengths.buckets[edges[-1]] if edges else 0.0
    if not everything > 0:
        return None
    edge = next(each for each in edges if lengths.buckets[each] >= everything)
    return edge if math.isfinite(edge) else None
