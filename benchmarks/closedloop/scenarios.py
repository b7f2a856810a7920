"""The scenarios: each is a set of ranges from which a seed draws one case.

The ranges are written where they are used and are the whole knowledge in this file: nobody, neither the product nor a
rival, is told what was drawn. Loads are placed against what the drawn engine can carry (`capacity`), so that another
profile or seed is another case of the same kind and not an accident. Sources of ranges: lengths and burstiness of the
Azure and ServeGen traces, cold starts of 1 to 4 minutes as reported to peers; everything else is our choice.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmarks.closedloop.capacity import Means, kv_batch, means_of, rate_at, step_seconds
from benchmarks.closedloop.drawing import (
    FULL,
    MOST_REPLICAS,
    MOST_SEATS,
    QUICK,
    SMALLEST_BATCH,
    Draw,
    Modes,
    Pace,
    TooSlow,
)
from benchmarks.closedloop.noise import QUIET, drawn_noise
from benchmarks.closedloop.scenario import (
    COMPRESSED,
    DEFAULTS,
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
    tensor_parallel_sizes: tuple[int, ...] = ()
    steady_from: float | None = 0.0
    """See Scenario; None for a load that moves all day long."""
    startup: float | None = None
    """Seconds, where the scenario is about it."""
    tensor_parallel_size: int | None = None
    """Of the start, where it is another than the one that the engine was measured at."""
    lengths: tuple[int, int] | None = None
    """Bounds of max-model-len, of which the start is the upper; None: it stays as everybody has it."""


def draw(name: str, *, seed: int, hardware: Sequence[Hardware], quick: bool, noise: bool = True) -> Scenario:
    """Draw one case. Raises KeyError for a name that does not exist, TooSlow without an engine for it."""
    return cast(SCENARIOS[name], name, seed=seed, hardware=hardware, pace=QUICK if quick else FULL, noise=noise)


def cast(
    story: Callable[[Draw], Case],
    name: str,
    *,
    seed: int,
    hardware: Sequence[Hardware],
    pace: Pace,
    noise: bool = False,
) -> Scenario:
    """Draw one case of a story. Raises TooSlow without an engine for it."""
    figures, case = _case(story, name, seed=seed, hardware=hardware, pace=pace)
    duration = figures.duration if case.steady_from is not None else pace.day
    hardware_drawn = figures.hardware
    if case.tensor_parallel_size is not None:
        hardware_drawn = hardware_drawn.at(case.tensor_parallel_size)
    if case.lengths is not None:
        hardware_drawn = replace(hardware_drawn, max_model_len=case.lengths[1])
    mixes = (case.content.first, *(change.mix for change in case.content.changes))
    longest = max(mix.output.at(0.999) for mix in mixes) * case.objectives.tpot
    return Scenario(
        name=name,
        seed=seed,
        story=case.story,
        duration=duration,
        hardware=hardware_drawn,
        rate=RateCurve.steps([*case.levels, (duration, 0.0)]),
        content=case.content,
        burstiness=case.burstiness,
        objectives=case.objectives,
        seats=case.seats,
        replicas=case.replicas,
        min_replicas=1,
        max_replicas=case.max_replicas,
        # A user who has fewer allows them.
        seat_bounds=(min(8, case.seats or 8), MOST_SEATS),
        startup=case.startup or figures.between(*pace.startup),
        # A client waits for the longest answers at twice the objective's pace, and half a minute or more on top.
        patience=figures.between(30, 90) + 2 * longest,
        routing=Routing.RANDOM if figures.maybe() else Routing.LEAST_OUTSTANDING,
        # Long answers need a long goodbye.
        grace=math.ceil(max(65.0, 2 * longest)),
        kv_cache_dtypes=case.kv_cache_dtypes,
        tensor_parallel_sizes=case.tensor_parallel_sizes,
        length_bounds=case.lengths,
        rhythm=COMPRESSED if pace is QUICK else DEFAULTS,
        noise=drawn_noise(seed, name=name) if noise else QUIET,
        steady_from=case.steady_from,
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
    """Chat with the prompts of the Azure conversation trace (median 1,020) and the longer answers of today's models."""
    return Mix(prompt=figures.lengths(300, 1200, tail=(2.5, 4.5)), output=figures.lengths(400, 900, tail=(2.0, 3.0)))


def _tpot(figures: Draw) -> float:
    """An objective that the engine can meet with some batch: 1.6 to 3 times its fastest step."""
    return round(figures.engine.law.base * figures.between(1.6, 3.0), 3)


def _ttft(figures: Draw) -> float:
    return round(figures.between(1.0, 4.0), 1)


def _seats(figures: Draw, means: Means, *, tpot: float) -> int | None:
    """As users write them: two in three copied a value that is a quarter to two fifths of what would do."""
    if figures.whole(0, 2) == 0:
        return None
    return max(8, int(figures.useful_batch(means, tpot=tpot) * figures.between(0.25, 0.4)))


def _told(seats: int | None) -> str:
    return f"; max-num-seqs {seats}" if seats else ""


def _reports(figures: Draw) -> Mix:
    return Mix(prompt=figures.lengths(400, 1500, tail=(1.6, 2.5)), output=figures.lengths(1200, 2500, tail=(1.6, 2.2)))


def kv_bound(figures: Draw) -> Case:
    """Long outputs fill the pool long before tokens come slowly."""
    mix = _reports(figures)
    means = means_of(mix)
    held = kv_batch(figures.engine, means)
    replicas, load, fp8 = figures.few(2), figures.between(1.05, 1.4), figures.maybe()
    return Case(
        story=f"outputs of {means.output:.0f} tokens at {load:.2f} times what {replicas} KV cache(s) hold"
        + ("; fp8 KV is allowed" if fp8 else ""),
        levels=[(0.0, rate_at(figures.engine, means, batch=held) * replicas * load)],
        content=Content(mix),
        objectives=Objectives(
            ttft=_ttft(figures), tpot=round(1.5 * step_seconds(figures.engine, means, batch=held), 3)
        ),
        replicas=replicas,
        max_replicas=replicas * 2 + 1,
        seats=None if figures.maybe() else MOST_SEATS,
        kv_cache_dtypes=("auto", "fp8") if fp8 else ("auto",),
    )


def kv_fp8(figures: Draw) -> Case:
    """The weights leave little KV cache, and the user accepts fp8 for it: twice the sequences on the same GPUs."""
    mix = _reports(figures)
    means, measured = means_of(mix), figures.hardware.tensor_parallel_size
    size = max(1, measured // 2)
    small = figures.with_flags(tensor_parallel_size=size)
    large = figures.with_flags(tensor_parallel_size=size, kv_cache_dtype="fp8")
    held = kv_batch(small, means)
    carried, more = (rate_at(one, means, batch=kv_batch(one, means)) for one in (small, large))
    replicas, load = figures.few(2), figures.between(0.72, 0.8)
    if load * more < FULL_POOL * carried or held < SMALLEST_BATCH:
        raise TooSlow(f"{figures.name}: twice the sequences on {figures.hardware.name} are hardly more requests")
    tpot = round(figures.between(1.3, 1.6) * step_seconds(large, means, batch=2 * held), 3)
    return Case(
        story=f"outputs of {means.output:.0f} tokens at {load * more / carried:.2f} times what {replicas} KV cache(s) "
        f"of 16 bit hold, {load:.2f} times those of 8 bit; fp8 KV is allowed",
        levels=[(0.0, load * more * replicas)],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas * 2 + 1,
        seats=None if figures.maybe() else MOST_SEATS,
        kv_cache_dtypes=("auto", "fp8"),
        tensor_parallel_size=size,
    )


FULL_POOL: Final = 0.93
"""Part of what a full pool carries from which on requests queue for it."""


def cap_bound(figures: Draw) -> Case:
    """max-num-seqs was set too low: there is room in the pool and in the objective."""
    mix, tpot = _chat(figures), _tpot(figures)
    means = means_of(mix)
    useful = figures.useful_batch(means, tpot=tpot)
    seats, replicas = max(8, int(useful * figures.between(0.25, 0.5))), figures.few(2)
    wanted = rate_at(figures.engine, means, batch=seats * figures.between(1.15, 1.7))
    return Case(
        story=f"max-num-seqs {seats} where {useful:.0f} would do, on {replicas} replica(s)",
        levels=[(0.0, replicas * min(wanted, 0.7 * figures.carried(means, tpot=tpot)))],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        seats=seats,
    )


def _past_knee(figures: Draw, tpot: float, *, sizes: tuple[int, ...] = ()) -> Case:
    mix = _chat(figures)
    means = means_of(mix)
    knee, replicas, load = figures.useful_batch(means, tpot=tpot), figures.few(2), figures.between(1.1, 1.5)
    return Case(
        story=f"{load:.2f} times what {replicas} replica(s) serve at {tpot * 1000:.0f} ms per token, batch {knee:.0f}"
        + (f"; TP {' or '.join(map(str, sizes))} is allowed" if sizes else ""),
        levels=[(0.0, figures.carried(means, tpot=tpot) * replicas * load)],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas * 2 + 1,
        seats=None if figures.maybe() else figures.whole(256, MOST_SEATS),
        tensor_parallel_sizes=sizes,
    )


def past_knee_20(figures: Draw) -> Case:
    """Tokens within 20 ms: the batch must stay small, or the tensor parallel size become larger."""
    start = figures.hardware.tensor_parallel_size
    return _past_knee(figures, 0.020, sizes=(start, 2 * start))


def past_knee_50(figures: Draw) -> Case:
    """Tokens within 50 ms: a large batch, then more replicas."""
    return _past_knee(figures, 0.050)


def prefill_bound(figures: Draw) -> Case:
    """Long prompts, short answers: first tokens are late while KV cache and seats are free."""
    mix = Mix(prompt=figures.lengths(2500, 5000, tail=(1.4, 2.0)), output=figures.lengths(40, 120, tail=(1.4, 2.0)))
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


def kv_and_prefill(figures: Draw) -> Case:
    """Documents are read and reports written: long prompts and long answers, so that pool and prompts bind together."""
    mix = Mix(prompt=figures.lengths(2500, 4500, tail=(1.4, 1.8)), output=figures.lengths(500, 1100, tail=(1.5, 2.0)))
    means, fp8 = means_of(mix), figures.maybe()
    held, replicas = kv_batch(figures.engine, means), figures.few(2)
    load, slack = figures.between(0.75, 1.05), figures.between(1.3, 1.7)
    seats = None if figures.maybe() else max(8, int(held * figures.between(0.3, 0.5)))
    engine = figures.with_flags(kv_cache_dtype="fp8") if fp8 else figures.engine
    tpot = round(slack * step_seconds(engine, means, batch=0.8 * kv_batch(engine, means)), 3)
    return Case(
        story=f"prompts of {means.prompt:.0f} and answers of {means.output:.0f} tokens at {load:.2f} times "
        f"{replicas} replica(s)" + ("; fp8 KV is allowed" if fp8 else "") + _told(seats),
        levels=[(0.0, load * replicas * rate_at(figures.engine, means, batch=min(held, seats or held)))],
        content=Content(mix),
        objectives=Objectives(ttft=round(figures.between(2.0, 5.0), 1), tpot=tpot),
        replicas=replicas,
        max_replicas=min(MOST_REPLICAS, replicas * 2 + 2),
        seats=seats,
        kv_cache_dtypes=("auto", "fp8") if fp8 else ("auto",),
    )


def bursty(figures: Draw) -> Case:
    """Bursts, a tight TPOT and no bound on the seats: whoever comes in a burst slows down everybody."""
    mix, tpot = _chat(figures), _tpot(figures)
    means = means_of(mix)
    burstiness, replicas, load = figures.between(3.0, 6.0), figures.few(3), figures.between(0.5, 0.75)
    return Case(
        story=f"gaps with a coefficient of variation of {burstiness:.1f} at {load:.0%} load, max-num-seqs unset",
        levels=[(0.0, figures.carried(means, tpot=tpot) * replicas * load)],
        content=Content(mix),
        # Whoever waits for a seat instead still begins in time.
        objectives=Objectives(ttft=round(figures.between(8.0, 25.0), 1), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        burstiness=burstiness,
    )


def two_modes(figures: Draw) -> Case:
    """Chat and retrieval on one service: most prompts are short, the others ten times as long."""
    chat, tpot = _chat(figures), _tpot(figures)
    share, long = figures.between(0.15, 0.4), figures.lengths(3000, 5500, tail=(1.3, 1.6))
    mix = Mix(prompt=Modes(chat.prompt, long, share), output=chat.output)
    means = means_of(mix)
    seats, replicas = _seats(figures, means, tpot=tpot), figures.few(2)
    return Case(
        story=f"{share:.0%} of the prompts have {long.p50:.0f} tokens, the others {chat.prompt.at(0.5)}" + _told(seats),
        levels=[(0.0, figures.carried(means, tpot=tpot) * replicas * figures.between(0.5, 0.75))],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=min(MOST_REPLICAS, replicas * 2 + 2),
        seats=seats,
    )


def diurnal(figures: Draw) -> Case:
    """A day: trough to peak 2 to 5 times, as in ServeGen's language models."""
    mix, tpot = _chat(figures), _tpot(figures)
    ratio, peak = figures.between(2.0, 5.0), figures.between(1.5, 3.0)
    means, period = means_of(mix), figures.pace.day
    seats, carried = _seats(figures, means, tpot=tpot), figures.carried(means, tpot=tpot)
    middle, swing = carried * peak * (1 + 1 / ratio) / 2, carried * peak * (1 - 1 / ratio) / 2
    times = np.arange(0.0, period, period / 96)
    return Case(
        story=f"a day between {peak / ratio:.1f} and {peak:.1f} replicas' worth of load" + _told(seats),
        levels=[(float(at), float(middle - swing * np.cos(2 * np.pi * at / period))) for at in times],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=max(1, math.ceil(peak / ratio)),
        max_replicas=MOST_REPLICAS,
        seats=seats,
        steady_from=None,
    )


OFFICE: Final = (0.12, 0.1, 0.1, 0.1, 0.12, 0.15, 0.25, 0.45, 0.75, 0.95, 1.0, 0.95, 0.8, 0.85, 0.95, 0.9, 0.8, 0.65,
                 0.45, 0.35, 0.3, 0.25, 0.2, 0.15)  # fmt: skip
"""Share of the peak by hour of a working day: a wall in the morning, a dip at noon, an evening. Our choice of shape."""


def weekday(figures: Draw) -> Case:
    """An office: nearly nobody at night, a wall in the morning, a dip at noon."""
    mix, tpot = _chat(figures), _tpot(figures)
    peak, means = figures.between(1.5, 3.0), means_of(mix)
    seats, carried = _seats(figures, means, tpot=tpot), figures.carried(means, tpot=tpot)
    hour = figures.pace.day / 24
    ends = [*OFFICE[1:], OFFICE[0]]
    quarters = [
        (hour * (index + part / 4), carried * peak * (begin + (end - begin) * part / 4))
        for index, (begin, end) in enumerate(zip(OFFICE, ends, strict=True))
        for part in range(4)
    ]
    return Case(
        story=f"an office day with {peak:.1f} replicas' worth of load at its peak" + _told(seats),
        levels=quarters,
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=math.ceil(peak),
        max_replicas=MOST_REPLICAS,
        seats=seats,
        steady_from=None,
    )


def step_fivefold(figures: Draw) -> Case:
    """Five times the load within two minutes, on engines that take six minutes to start."""
    mix, tpot = _chat(figures), _tpot(figures)
    means, at = means_of(mix), figures.event()
    seats, carried = _seats(figures, means, tpot=tpot), figures.carried(means, tpot=tpot)
    after = figures.between(1.6, 2.8)
    rise = [(at + 15.0 * index, carried * after * (0.2 + 0.8 * index / 8)) for index in range(9)]
    return Case(
        story=f"from {after / 5:.1f} to {after:.1f} replicas' worth of load within two minutes, after "
        f"{at / 60:.0f} min" + _told(seats),
        levels=[(0.0, carried * after * 0.2), *rise],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=1,
        max_replicas=MOST_REPLICAS,
        seats=seats,
        steady_from=at + 120.0,
        startup=360.0,
        moments=(at,),
    )


def drift(figures: Draw) -> Case:
    """Chat becomes long-context work in mid-run at the same request rate."""
    chat, tpot = _chat(figures), _tpot(figures)
    at, growth, over = figures.event(), figures.between(4, 8), figures.between(60, 600)
    longer = min(6000.0, chat.prompt.at(0.5) * growth)
    later = Mix(prompt=figures.lengths(longer, longer, tail=(1.4, 2.0)), output=chat.output)
    replicas, fp8 = figures.few(2), figures.maybe()
    rate = figures.carried(means_of(chat), tpot=tpot) * replicas * figures.between(0.5, 0.7)
    needed = rate / figures.carried(means_of(later), tpot=tpot)
    return Case(
        story=f"prompts grow from {means_of(chat).prompt:.0f} to {means_of(later).prompt:.0f} tokens after "
        f"{at / 60:.0f} min: then {needed:.1f} replicas' worth of load" + ("; fp8 KV is allowed" if fp8 else ""),
        levels=[(0.0, rate)],
        content=Content(chat, changes=(Change(at=at, mix=later, over=over),)),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=min(MOST_REPLICAS, max(replicas + 1, math.ceil(needed) + 2)),
        kv_cache_dtypes=("auto", "fp8") if fp8 else ("auto",),
        steady_from=at + over,
        moments=(at,),
    )


def bad_upgrade(figures: Draw) -> Case:
    """A new image in mid-day: slower steps, a smaller pool, or no start at all."""
    mix, tpot = _chat(figures), _tpot(figures)
    means, at = means_of(mix), figures.event()
    replicas, kind, seats = figures.few(2), figures.whole(0, 2), _seats(figures, means, tpot=tpot)
    step = figures.between(1.15, 1.4) if kind == 0 else 1.0
    pool = figures.between(0.15, 0.3) if kind == 1 else 0.0 if kind == 2 else 1.0
    what = (
        f"its steps take {step:.2f} times as long",
        f"its KV pool is {pool:.0%} of the old one",
        "it does not start",
    )
    return Case(
        story=f"a new image after {at / 60:.0f} min: {what[kind]}" + _told(seats),
        levels=[(0.0, figures.carried(means, tpot=tpot) * replicas * figures.between(0.4, 0.6))],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        seats=seats,
        disturbances=(Upgrade(at=at, image="vllm/vllm-openai:v0.33.0", step_factor=step, pool_factor=pool),),
        steady_from=at,
        moments=(at,),
    )


def wedge(figures: Draw) -> Case:
    """One engine stops computing while its health check stays green; a person replaces the pod later."""
    mix, tpot = _chat(figures), _tpot(figures)
    means, at, replicas = means_of(mix), figures.event(), figures.few(3)
    seats, lasting = _seats(figures, means, tpot=tpot), figures.between(900, 2400)
    return Case(
        story=f"one of {replicas} engine(s) hangs after {at / 60:.0f} min for {lasting / 60:.0f} min" + _told(seats),
        levels=[(0.0, figures.carried(means, tpot=tpot) * replicas * figures.between(0.4, 0.65))],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        seats=seats,
        disturbances=(Wedge(at=at, repaired=at + lasting),),
        steady_from=at + lasting,
        moments=(at,),
    )


def metrics_outage(figures: Draw) -> Case:
    """Metrics go missing, and the load rises meanwhile."""
    mix, tpot = _chat(figures), _tpot(figures)
    means, at, replicas = means_of(mix), figures.event(), figures.few(2)
    seats, lasting, growth = _seats(figures, means, tpot=tpot), figures.between(480, 1800), figures.between(1.4, 1.9)
    rises = at + lasting * figures.between(0.2, 0.6)
    before = figures.carried(means, tpot=tpot) * replicas * figures.between(0.5, 0.65)
    return Case(
        story=f"no metrics from {at / 60:.0f} min for {lasting / 60:.0f} min; load grows {growth:.1f} times within"
        + _told(seats),
        levels=[(0.0, before), (rises, before * growth)],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=min(MOST_REPLICAS, replicas * 3 + 2),
        seats=seats,
        disturbances=(MetricsOutage(at=at, until=at + lasting),),
        steady_from=at + lasting,
        moments=(rises,),
    )


def flapping(figures: Draw) -> Case:
    """The load crosses what the replicas carry, up and down, every few minutes."""
    mix, tpot = _chat(figures), _tpot(figures)
    means, replicas, half_period = means_of(mix), figures.few(3), figures.between(60, 210)
    low, high, seats = figures.between(0.5, 0.75), figures.between(0.95, 1.2), _seats(figures, means, tpot=tpot)
    carried = figures.carried(means, tpot=tpot) * replicas
    times = np.arange(0.0, figures.duration, half_period)
    return Case(
        story=f"load swings between {low:.0%} and {high:.0%} of {replicas} replica(s) every {half_period / 30:.1f} min"
        + _told(seats),
        levels=[(float(at), carried * (low if index % 2 else high)) for index, at in enumerate(times)],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=MOST_REPLICAS,
        seats=seats,
    )


def noisy_cycle(figures: Draw) -> Case:
    """A batch job comes every ten minutes, never quite as large: the load of a cron that is no forecast's friend."""
    mix, tpot = _chat(figures), _tpot(figures)
    means, mean, swing = means_of(mix), figures.between(0.8, 1.8), figures.between(0.2, 0.4)
    seats, carried = _seats(figures, means, tpot=tpot), figures.carried(means, tpot=tpot)
    times = np.arange(0.0, figures.duration, 30.0)
    noise = np.exp(figures.source.normal(0.0, 0.15, size=len(times)))
    rates = carried * mean * (1 + swing * np.sin(2 * np.pi * times / 600.0)) * noise
    return Case(
        story=f"{mean:.1f} replicas' worth of load, {swing:.0%} up and down every ten minutes, with noise"
        + _told(seats),
        levels=list(zip(times.tolist(), rates.tolist(), strict=True)),
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=math.ceil(mean),
        max_replicas=MOST_REPLICAS,
        seats=seats,
    )


def over_provisioned(figures: Draw) -> Case:
    """Twice the replicas that are needed, to be on the safe side: the commonest case in the field."""
    mix, tpot = _chat(figures), _tpot(figures)
    means = means_of(mix)
    seats, carried = _seats(figures, means, tpot=tpot), figures.carried(means, tpot=tpot)
    needed = 2 if seats is not None else figures.whole(1, 2)
    # What is needed is counted by what the seats of the start serve, as its owner has found them to do.
    served = carried if seats is None else rate_at(figures.engine, means, batch=seats)
    return Case(
        story=f"{2 * needed} replicas where {needed} would do" + _told(seats),
        levels=[(0.0, served * needed * figures.between(0.55, 0.75))],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=2 * needed,
        max_replicas=2 * needed + 2,
        seats=seats,
    )


def tp_too_high(figures: Draw) -> Case:
    """A tensor parallel size from a larger model's recipe: half of the GPUs would serve as well."""
    low = figures.hardware.tensor_parallel_size
    high = low * (4 if low == 1 and figures.maybe() else 2)
    mix = _chat(figures)
    means, tpot = means_of(mix), round(figures.engine.law.base * figures.between(2.0, 3.0), 3)
    figures.with_flags(tensor_parallel_size=high)
    replicas, load = 1, figures.between(0.4, 0.65)
    sizes = tuple(size for size in (1, 2, 4, 8) if low <= size <= high)
    return Case(
        story=f"TP {high} where TP {low} would do at {load:.0%} load, on {replicas} replica(s)",
        levels=[(0.0, figures.carried(means, tpot=tpot) * replicas * load)],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        tensor_parallel_sizes=sizes,
        tensor_parallel_size=high,
    )


def tp_starves(figures: Draw) -> Case:
    """The weights leave next to no KV cache: twice the GPUs in one replica serve more than twice the requests."""
    low = max(1, figures.hardware.tensor_parallel_size // 2)
    mix = Mix(prompt=figures.lengths(600, 1800, tail=(1.6, 2.5)), output=figures.lengths(600, 1400, tail=(1.6, 2.2)))
    means = means_of(mix)
    small, large = (figures.with_flags(tensor_parallel_size=size) for size in (low, 2 * low))
    carried, more = (rate_at(one, means, batch=kv_batch(one, means)) for one in (small, large))
    load = figures.between(0.4, 0.6)
    replicas = math.ceil(load * more / (STARVED * carried))
    if replicas < 3 or kv_batch(small, means) < SMALLEST_BATCH:
        raise TooSlow(f"{figures.name}: the weights leave {figures.hardware.name} enough of its memory")
    tpot = round(1.2 * step_seconds(large, means, batch=kv_batch(large, means)), 3)
    return Case(
        story=f"{load * more / carried:.2f} times the {kv_batch(small, means):.0f} sequences that a replica holds; "
        f"TP {2 * low} holds {kv_batch(large, means) / kv_batch(small, means):.1f} times as many",
        levels=[(0.0, load * more)],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=min(MOST_REPLICAS, replicas) - 1,
        max_replicas=MOST_REPLICAS,
        tensor_parallel_sizes=(low, 2 * low),
        tensor_parallel_size=low,
    )


def length_companion(figures: Draw) -> Case:
    """Half of the GPUs would do and are allowed, but with this max-model-len the engine does not start on them."""
    low = max(1, figures.hardware.tensor_parallel_size // 2)
    engine, mix = figures.with_flags(tensor_parallel_size=low), _chat(figures)
    means, tpot = means_of(mix), round(engine.law.base * figures.between(2.0, 3.0), 3)
    held = (engine.num_gpu_blocks - 1) * engine.block_size
    longest = int(held * figures.between(1.2, 1.8) / 1024) * 1024
    if longest > figures.hardware.profile.model_max_len:
        raise TooSlow(f"{figures.name}: the longest length of {figures.hardware.name} fits half of its GPUs")
    load = figures.between(0.4, 0.6)
    return Case(
        story=f"max-model-len {longest} needs TP {2 * low}; at TP {low} {held} fit, and the load would be {load:.0%}",
        levels=[(0.0, load * figures.carried(means, tpot=tpot, engine=engine))],
        content=Content(mix),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=1,
        max_replicas=4,
        tensor_parallel_sizes=(low, 2 * low),
        tensor_parallel_size=2 * low,
        lengths=(figures.hardware.max_model_len, longest),
    )


STARVED: Final = 0.9
"""Part of what a full pool carries that a replica is given."""


SCENARIOS: Final[Mapping[str, Callable[[Draw], Case]]] = {
    "kv-bound": kv_bound,
    "kv-fp8": kv_fp8,
    "cap-bound": cap_bound,
    "past-knee-20ms": past_knee_20,
    "past-knee-50ms": past_knee_50,
    "prefill-bound": prefill_bound,
    "kv-and-prefill": kv_and_prefill,
    "bursty": bursty,
    "two-modes": two_modes,
    "diurnal": diurnal,
    "weekday": weekday,
    "step-fivefold": step_fivefold,
    "length-drift": drift,
    "bad-upgrade": bad_upgrade,
    "wedge": wedge,
    "metrics-outage": metrics_outage,
    "flapping": flapping,
    "noisy-cycle": noisy_cycle,
    "over-provisioned": over_provisioned,
    "tp-too-high": tp_too_high,
    "tp-starves": tp_starves,
    "length-companion": length_companion,
}
"""By the name that `--scenario` takes."""
