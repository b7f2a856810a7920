"""How many requests per second the service had to serve at its highest lately, by the tokens that were made.

Pure. Must not: look at a replica's capacity, or foretell (decision 14 says why).
"""

from datetime import timedelta
from statistics import fmean, median
from typing import Final

from vllm_autotuner.diagnosis.case import FEWEST_FINISHED
from vllm_autotuner.diagnosis.prefill_bound import prefill_shares
from vllm_autotuner.observation.observation import Observation
from vllm_autotuner.observation.one_grid import on_one_grid
from vllm_autotuner.observation.state_windows import WindowSettings
from vllm_autotuner.planning.current_replica import STRETCH, highest_mean, output_tokens
from vllm_autotuner.planning.forecast import LEAST_SEEN

__all__ = ["REMEMBERED", "busiest_with_prompts", "peak_rate", "peak_tokens_per_second", "tokens_per_second_lately"]

REMEMBERED: Final = timedelta(seconds=WindowSettings().long)
"""The longest time that can be looked back on; of a longer one too little is always seen."""


def peak_rate(seen: Observation, *, over: timedelta) -> float | None:
    """The most requests per second that were served in any five minutes of `over`; None if too little was seen.

    The engines of now must have been there all the time: those of which a scrape was lost count as having their share.
    """
    tokens, output = _peak(seen, over=over, engines=len(seen.engines)), output_tokens(seen)
    return None if tokens is None or not output else tokens / output


def peak_tokens_per_second(seen: Observation, *, over: timedelta) -> float | None:
    """The most output tokens per second of all engines in any five minutes of `over`; None if too little was seen."""
    return _peak(seen, over=over, engines=0)


def _peak(seen: Observation, *, over: timedelta, engines: int) -> float | None:
    seconds = over.total_seconds()
    made = seen.tokens_by_window(over=seconds, quiet=True)
    if len(made) * seen.window < LEAST_SEEN * seconds:
        return None
    told = _engines_by_window(seen, over=seconds) if engines else {}
    whole = {end: tokens * max(1.0, engines / told[end]) if told.get(end) else tokens for end, tokens in made.items()}
    return highest_mean(whole, window=seen.window) / seen.window


def _engines_by_window(seen: Observation, *, over: float) -> dict[float, float]:
    """How many engines told of their tokens in each window, by its end; a fraction where one did for a part of it.

    Where nothing ran at a scrape, first tokens do.
    """
    steps = [(one.time, one.window) for one in seen.steps if one.time is not None]
    firsts = [(one.time, one.window) for one in seen.first_tokens]
    told, begun = (
        on_one_grid(
            [(end, (own or seen.window) / seen.window, own) for end, own in ends if end > seen.at - over],
            window=seen.window,
        )
        for ends in ([*steps, *seen.quiet], firsts)
    )
    return {end: max(count, begun.get(end, 0.0)) for end, count in told.items()}


def tokens_per_second_lately(seen: Observation) -> float | None:
    """Output tokens per second that a failed scale-in is remembered by; None if not known.

    The most of five minutes, as in what it is compared with, or what came of a step within them: the median of the
    newest three windows, which one burst does not move.
    """
    made = list(seen.tokens_by_window(over=STRETCH, quiet=True).values())
    peak = peak_tokens_per_second(seen, over=timedelta(seconds=STRETCH))
    return seen.generated_per_second if peak is None else max(peak, median(made[-3:]) / seen.window)


def busiest_with_prompts(seen: Observation, *, over: timedelta) -> float:
    """The largest share of its time (0..1) that prompts took of an engine in any five minutes of `over`.

    By the prompt tokens of then and what one takes now; 0 where it was no more than now, or if it is not known: a few
    requests do not tell what a token takes.
    Worked: prompts take 2 % now, and came twenty times as fast eight minutes ago: 40 %.
    """
    shares, tokens = prefill_shares(seen.engines), seen.prompts_by_window(over=over.total_seconds())
    now, most = next(reversed(tokens.values()), 0.0), highest_mean(tokens, window=seen.window)
    finished = (seen.finished_per_second or 0.0) * seen.window
    if not shares or not most > now > 0 or finished < FEWEST_FINISHED:
        return 0.0
    return min(1.0, fmean(shares) * most / now)
