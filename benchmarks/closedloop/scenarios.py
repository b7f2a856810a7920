"""The scenarios: each is a set of ranges from which a seed draws one case.

The ranges are written where they are used and are the whole knowledge in this file: nobody, neither the product nor a
rival, is told what was drawn. Loads are placed against what the drawn engine can carry (`capacity`), so that another
profile or seed is another case of the same kind and not an accident. Sources of ranges: lengths and burstiness of the
Azure and ServeGen traces, cold starts of 1 to 4 minutes as reported to peers; everything else is our choice.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.closedloop.capacity import kv_batch, means_of, rate_at, step_seconds
from benchmarks.closedloop.drawing import FULL, MOST_REPLICAS, MOST_SEATS, QUICK, Draw, Pace, TooSlow
from benchmarks.closedloop.scenario import (
    Disturbance,
    Hardware,
    MetricsOutage,
    Objectives,
    Scenario,
    Upgrade,
    Wedge,
)
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.routing import Routing
from vllm_autotuner.simulation.traffic import Change, Content, Mix

__all__ = ["SCENARIOS", "Case", "cast", "draw"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a scenario's own function decides; the rest is the same for all."""

    story: str
    levels: Sequence[tuple[float, float]]
    """(seconds, requests per second), each from its time on."""
    content: Content
    objectives: Objectives
    replicas: int
    max_replicas: int
    seats: int | None = None
    burstiness: float = 1.0
    disturbances: tuple[Disturbance, ...] = ()
    moments: tuple[float, ...] = (0.0,)
    kv_cache_dtypes: tuple[str, ...] = ("auto",)


def draw(name: str, *, seed: int, hardware: Sequence[Hardware], quick: bool) -> Scenario:
    """Draw one case. Raises KeyError for a name that does not exist, TooSlow without an engine for it."""
    return cast(SCENARIOS[name], name, seed=seed, hardware=hardware, pace=QUICK if quick else FULL)


def cast(story: Callable[[Draw], Case], name: str, *, seed: int, hardware: Sequence[Hardware], pace: Pace) -> Scenario:
    """Draw one case of a story. Raises TooSlow without an engine for it."""
    figures, case = _case(story, name, seed=seed, hardware=hardware, pace=pace)
    mixes = (case.content.first, *(change.mix for change in case.content.changes))
    longest = max(mix.output.at(0.999) for mix in mixes) * case.objectives.tpot
    return Scenario(
        name=name,
        seed=seed,
        story=case.story,
        duration=figures.duration,
        hardware=figures.hardware,
        rate=RateCurve.steps([*case.levels, (figures.duration, 0.0)]),
        content=case.content,
        burstiness=case.burstiness,
        objectives=case.objectives,
        seats=case.seats,
        replicas=case.replicas,
        min_replicas=1,
        max_replicas=case.max_replicas,
        # A user who has fewer allows them.
        seat_bounds=(min(8, case.seats or 8), MOST_SEATS),
        startup=figures.between(*pace.startup),
        # A client waits for the longest answers at twice the objective's pace, and half a minute or more on top.
        patience=figures.between(30, 90) + 2 * longest,
        routing=Routing.RANDOM if figures.maybe() else Routing.LEAST_OUTSTANDING,
        # Long answers need a long goodbye.
        grace=math.ceil(max(65.0, 2 * longest)),
        kv_cache_dtypes=case.kv_cache_dtypes,
        disturbances=case.disturbances,
        moments=case.moments,
    )


def _case(
    story: Callable[[Draw], Case], name: str, *, seed: int, hardware: Sequence[Hardware], pace: Pace
) -> tuple[Draw, Case]:
    """Draw an engine, and another one while the case cannot be had with it."""
    try:
        figures = Draw(name, seed=seed, hardware=hardware, pace=pace)
        return figures, story(figures)
    except TooSlow:
        others = [one for one in hardware if one is not figures.hardware]
        if not others:
            raise
        return _case(story, name, seed=seed, hardware=others, pace=pace)


def _chat(figures: Draw) -> Mix:
    """Chat as in the Azure conversation trace: median prompt 1,020, output 129, p95 4,083 and 451."""
    return Mix(prompt=figures.lengths(300, 1200, tail=(2.5, 4.5)), output=figures.lengths(130, 600, tail=(2.0, 3.5)))


def _tpot(figures: Draw) -> float:
    """An objective that the engine can meet with some batch: 1.6 to 3 times its fastest step."""
    return round(figures.engine.law.base * figures.between(1.6, 3.0), 3)


def _ttft(figures: Draw) -> float:
    return round(figures.between(1.0, 4.0), 1)


def kv_bound(figures: Draw) -> Case:
    """Long outputs fill the pool long before tokens come slowly."""
    mix = Mix(prompt=figures.lengths(400, 1500, tail=(1.6, 2.5)), output=figures.lengths(1200, 2500, tail=(1.6, 2.2)))
    means = means_of(mix)
    held = kv_batch(figures.engine, means)
    full = rate_at(figures.engine, means, batch=held)
    replicas, load, fp8 = figures.few(2), figures.between(1.05, 1.4), figures.maybe()
    return Case(
        story=f"outputs of {means.output:.0f} tokens at {load:.2f} times what {replicas} KV cache(s) hold"
        + ("; fp8 KV is allowed" if fp8 else ""),
        levels=[(0.0, full * replicas * load)],
        content=Content(mix),
        objectives=Objectives(
            ttft=_ttft(figures), tpot=round(1.5 * step_seconds(figures.engine, means, batch=held), 3)
        ),
        replicas=replicas,
        max_replicas=replicas * 2 + 1,
        seats=None if figures.maybe() else MOST_SEATS,
        kv_cache_dtypes=("auto", "fp8") if fp8 else ("auto",),
    )


def cap_bound(figures: Draw) -> Case:
    """max-num-seqs was set too low: there is room in the pool and in the objective."""
    mix, tpot = _chat(figures), _tpot(figures)
    means = means_of(mix)
    useful = figures.useful_batch(means, tpot=tpot)
    seats, replicas = max(8, int(useful * figures.between(0.25, 0.5))), figures.few(2)
    wanted = rate_at(figures.engine, means, batch=seats * figures.between(1.15, 1.7))
    return Case(
        story=f"max-num-seqs {seats} where {useful:.0f} would do, on {replicas} replica(s)",
        levels=[(0.0, replicas * min(wanted, 0.8 * figures.carried(means, tpot=tpot)))],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        seats=seats,
    )


def _past_knee(figures: Draw, tpot: float) -> Case:
    mix = _chat(figures)
    means = means_of(mix)
    knee, replicas, load = figures.useful_batch(means, tpot=tpot), figures.few(2), figures.between(1.1, 1.5)
    return Case(
        story=f"{load:.2f} times what {replicas} replica(s) serve at {tpot * 1000:.0f} ms per token, batch {knee:.0f}",
        levels=[(0.0, figures.carried(means, tpot=tpot) * replicas * load)],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas * 2 + 1,
        seats=None if figures.maybe() else figures.whole(256, MOST_SEATS),
    )


def past_knee_20(figures: Draw) -> Case:
    """Tokens within 20 ms: the batch must stay small."""
    return _past_knee(figures, 0.020)


def past_knee_50(figures: Draw) -> Case:
    """Tokens within 50 ms: a large batch, then more replicas."""
    return _past_knee(figures, 0.050)


def prefill_bound(figures: Draw) -> Case:
    """Long prompts, short answers: first tokens are late while KV cache and seats are free."""
    mix = Mix(prompt=figures.lengths(2500, 5000, tail=(1.4, 2.0)), output=figures.lengths(20, 60, tail=(1.4, 2.0)))
    law, budget = figures.engine.law, figures.engine.max_num_batched_tokens
    replicas, load = figures.few(2), figures.between(0.85, 1.2)
    limit = 1 / (means_of(mix).prompt * law.per_prefill_token)
    return Case(
        story=f"{load:.2f} times the prompts that {replicas} replica(s) can compute",
        levels=[(0.0, limit * replicas * load)],
        content=Content(mix),
        # A step full of prompt is what tokens wait for here: an objective below it could not be met at any load.
        objectives=Objectives(ttft=_ttft(figures), tpot=round(1.2 * (law.base + law.per_prefill_token * budget), 3)),
        replicas=replicas,
        max_replicas=replicas * 2 + 1,
    )


def bursty(figures: Draw) -> Case:
    """Quiet on average, with bursts of many requests at once."""
    mix, tpot = _chat(figures), _tpot(figures)
    burstiness, replicas, load = figures.between(3.0, 6.0), figures.few(3), figures.between(0.5, 0.75)
    return Case(
        story=f"gaps with a coefficient of variation of {burstiness:.1f} at {load:.0%} load",
        levels=[(0.0, figures.carried(means_of(mix), tpot=tpot) * replicas * load)],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        burstiness=burstiness,
        seats=None if figures.maybe() else figures.whole(64, 512),
    )


def diurnal(figures: Draw) -> Case:
    """Two days, squeezed: trough to peak 2 to 5 times, as in ServeGen's language models."""
    mix, tpot = _chat(figures), _tpot(figures)
    ratio, peak = figures.between(2.0, 5.0), figures.between(2.2, 3.8)
    carried, period = figures.carried(means_of(mix), tpot=tpot), figures.duration / 2
    middle, swing = carried * peak * (1 + 1 / ratio) / 2, carried * peak * (1 - 1 / ratio) / 2
    times = np.arange(0.0, figures.duration, period / 96)
    return Case(
        story=f"waves of {period / 60:.0f} min between {peak / ratio:.1f} and {peak:.1f} replicas' worth of load",
        levels=[(float(at), float(middle - swing * np.cos(2 * np.pi * at / period))) for at in times],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=max(1, math.ceil(peak / ratio)),
        max_replicas=math.ceil(peak) + 2,
    )


def drift(figures: Draw) -> Case:
    """Chat becomes long-context work in mid-run at the same request rate."""
    chat, tpot = _chat(figures), _tpot(figures)
    at, growth = figures.duration * figures.between(0.3, 0.45), figures.between(4, 8)
    longer = min(6000.0, chat.prompt.at(0.5) * growth)
    later = Mix(prompt=figures.lengths(longer, longer, tail=(1.4, 2.0)), output=chat.output)
    replicas = figures.few(2)
    rate = figures.carried(means_of(chat), tpot=tpot) * replicas * figures.between(0.6, 0.8)
    needed = rate / figures.carried(means_of(later), tpot=tpot)
    return Case(
        story=f"prompts grow from {means_of(chat).prompt:.0f} to {means_of(later).prompt:.0f} tokens after "
        f"{at / 60:.0f} min: then {needed:.1f} replicas' worth of load",
        levels=[(0.0, rate)],
        content=Content(chat, changes=(Change(at=at, mix=later, over=figures.between(60, 600)),)),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=min(MOST_REPLICAS, max(replicas + 1, math.ceil(needed) + 2)),
        moments=(at,),
    )


def bad_upgrade(figures: Draw) -> Case:
    """A new image in mid-run: slower steps, a smaller pool, or no start at all."""
    mix, tpot = _chat(figures), _tpot(figures)
    at, replicas, kind = figures.duration * figures.between(0.25, 0.35), figures.few(3), figures.whole(0, 2)
    step = figures.between(1.15, 1.4) if kind == 0 else 1.0
    pool = figures.between(0.15, 0.3) if kind == 1 else 0.0 if kind == 2 else 1.0
    what = (
        f"its steps take {step:.2f} times as long",
        f"its KV pool is {pool:.0%} of the old one",
        "it does not start",
    )
    return Case(
        story=f"a new image after {at / 60:.0f} min: {what[kind]}",
        levels=[(0.0, figures.carried(means_of(mix), tpot=tpot) * replicas * figures.between(0.55, 0.75))],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        disturbances=(Upgrade(at=at, image="vllm/vllm-openai:v0.33.0", step_factor=step, pool_factor=pool),),
        moments=(at,),
    )


def wedge(figures: Draw) -> Case:
    """One engine stops computing while its health check stays green; a person replaces the pod later."""
    mix, tpot = _chat(figures), _tpot(figures)
    at, replicas = figures.duration * figures.between(0.3, 0.4), figures.few(3)
    lasting = figures.between(360, 720) if figures.pace is QUICK else figures.between(900, 2400)
    return Case(
        story=f"one of {replicas} engine(s) hangs after {at / 60:.0f} min for {lasting / 60:.0f} min",
        levels=[(0.0, figures.carried(means_of(mix), tpot=tpot) * replicas * figures.between(0.4, 0.65))],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        disturbances=(Wedge(at=at, repaired=at + lasting),),
        moments=(at,),
    )


def metrics_outage(figures: Draw) -> Case:
    """Metrics go missing, and the load rises meanwhile."""
    mix, tpot = _chat(figures), _tpot(figures)
    at, replicas = figures.duration * figures.between(0.25, 0.35), figures.few(2)
    lasting, growth = figures.between(480, 900 if figures.pace is QUICK else 1800), figures.between(1.4, 1.9)
    rises = at + lasting * figures.between(0.2, 0.6)
    before = figures.carried(means_of(mix), tpot=tpot) * replicas * figures.between(0.5, 0.65)
    return Case(
        story=f"no metrics from {at / 60:.0f} min for {lasting / 60:.0f} min; load grows {growth:.1f} times within",
        levels=[(0.0, before), (rises, before * growth)],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        disturbances=(MetricsOutage(at=at, until=at + lasting),),
        moments=(rises,),
    )


def flapping(figures: Draw) -> Case:
    """The load crosses what the replicas carry, up and down, every few minutes."""
    mix, tpot = _chat(figures), _tpot(figures)
    replicas, half_period = figures.few(3), figures.between(60, 210)
    low, high = figures.between(0.6, 0.85), figures.between(1.05, 1.3)
    carried = figures.carried(means_of(mix), tpot=tpot) * replicas
    times = np.arange(0.0, figures.duration, half_period)
    return Case(
        story=f"load swings between {low:.0%} and {high:.0%} of {replicas} replica(s) every {half_period / 30:.1f} min",
        levels=[(float(at), carried * (low if index % 2 else high)) for index, at in enumerate(times)],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
    )


SCENARIOS: Final[Mapping[str, Callable[[Draw], Case]]] = {
    "kv-bound": kv_bound,
    "cap-bound": cap_bound,
    "past-knee-20ms": past_knee_20,
    "past-knee-50ms": past_knee_50,
    "prefill-bound": prefill_bound,
    "bursty": bursty,
    "diurnal": diurnal,
    "length-drift": drift,
    "bad-upgrade": bad_upgrade,
    "wedge": wedge,
    "metrics-outage": metrics_outage,
    "flapping": flapping,
}
"""By the name that `--scenario` takes."""
