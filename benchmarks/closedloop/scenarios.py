"""The scenarios: each is a set of ranges from which a seed draws one case.

The ranges are written where they are used and are the whole knowledge in this file: nobody, neither the product nor a
rival, is told what was drawn. Loads are placed against what the drawn engine can carry (`capacity`), so that another
profile or seed is another case of the same kind and not an accident. Sources of ranges: lengths and burstiness of the
Azure and ServeGen traces, cold starts of 1 to 4 minutes as reported to peers; everything else is our choice.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.closedloop.capacity import Mix, engine_of, knee_batch, kv_batch, rate_at
from benchmarks.closedloop.scenario import (
    Disturbance,
    Hardware,
    MetricsOutage,
    Objectives,
    Scenario,
    Traffic,
    Upgrade,
    Wedge,
)
from benchmarks.closedloop.traffic import Lengths, Stretch, draw_traffic

__all__ = ["SCENARIOS", "draw"]

MOST_SEATS: Final = 1024
"""Upper bound of max-num-seqs that every user grants: vLLM's own default on these GPUs."""
FULL: Final = (7200.0, 10_800.0)
QUICK: Final = (2700.0, 3000.0)
"""Seconds of a run, drawn from this range: hours for the real figures; `--quick` just lets two changes happen."""

Rate = Callable[[float], float]


class Draw:
    """A seeded source of figures, with the engine that they are placed against."""

    def __init__(self, name: str, *, seed: int, hardware: Sequence[Hardware], quick: bool) -> None:
        digest = hashlib.sha256(f"{name}/{seed}".encode()).digest()
        self.source = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        self.name, self.seed, self.quick = name, seed, quick
        self.hardware = hardware[int(self.source.integers(len(hardware)))]
        self.engine = engine_of(self.hardware)
        self.duration = round(self.between(*(QUICK if quick else FULL)) / 60) * 60.0

    def between(self, low: float, high: float) -> float:
        """Return a number from the range, evenly."""
        return float(self.source.uniform(low, high))

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from the range, ends included."""
        return int(self.source.integers(low, high + 1))

    def maybe(self) -> bool:
        """Return a coin's side."""
        return bool(self.source.integers(2))

    def lengths(self, low: float, high: float, *, sigma: tuple[float, float]) -> Lengths:
        """Return lengths whose median is in the range; half of what the model takes is the longest."""
        return Lengths(
            median=self.between(low, high), sigma=self.between(*sigma), longest=self.hardware.max_model_len // 2 - 1
        )

    def useful_batch(self, mix: Mix, *, tpot: float) -> float:
        """The largest batch that an engine can run inside the TPOT objective and its pool."""
        found = min(knee_batch(self.engine, mix, tpot=tpot), 0.9 * kv_batch(self.engine, mix), float(MOST_SEATS))
        if found < 1:
            raise ValueError(f"{self.name}: {self.hardware.name} cannot meet {tpot * 1000:.0f} ms per token at all")
        return found

    def carried(self, mix: Mix, *, tpot: float) -> float:
        """Requests per second that one replica serves well."""
        return rate_at(self.engine, mix, batch=self.useful_batch(mix, tpot=tpot))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What a scenario's own function decides; the rest is the same for all."""

    story: str
    rate: Rate
    stretches: tuple[Stretch, ...]
    objectives: Objectives
    replicas: int
    max_replicas: int
    seats: int | None = None
    variation: float = 1.0
    disturbances: tuple[Disturbance, ...] = ()
    moments: tuple[float, ...] = (0.0,)
    kv_cache_dtypes: tuple[str, ...] = ("auto",)


def draw(name: str, *, seed: int, hardware: Sequence[Hardware], quick: bool) -> Scenario:
    """Draw one case. Raises KeyError for a name that does not exist."""
    figures = Draw(name, seed=seed, hardware=hardware, quick=quick)
    case = SCENARIOS[name](figures)
    longest = max(stretch.output.median * math.exp(2 * stretch.output.sigma) for stretch in case.stretches)
    return Scenario(
        name=name,
        seed=seed,
        story=case.story,
        duration=figures.duration,
        hardware=figures.hardware,
        traffic=_traffic(case, figures),
        objectives=case.objectives,
        seats=case.seats,
        replicas=case.replicas,
        min_replicas=1,
        max_replicas=case.max_replicas,
        seat_bounds=(8, MOST_SEATS),
        startup=figures.between(60, 90) if quick else figures.between(60, 240),
        patience=figures.between(30, 90),
        # Long answers need a long goodbye: twice the objective's pace for all but the longest of them.
        grace=int(max(65, longest * case.objectives.tpot * 2)),
        kv_cache_dtypes=case.kv_cache_dtypes,
        disturbances=case.disturbances,
        moments=case.moments,
    )


def _traffic(case: _Case, figures: Draw) -> Traffic:
    return draw_traffic(
        case.rate,
        variation=case.variation,
        stretches=case.stretches,
        duration=figures.duration,
        source=figures.source,
    )


def _chat(figures: Draw) -> Stretch:
    """Chat as in the Azure conversation trace: median prompt 1,020, output 129, wide tails; a little of either side."""
    prompt = figures.lengths(300, 1200, sigma=(0.5, 0.9))
    return Stretch(start=0.0, prompt=prompt, output=figures.lengths(120, 400, sigma=(0.4, 0.8)))


def _mix(stretch: Stretch) -> Mix:
    return Mix(prompt=stretch.prompt.mean, output=stretch.output.mean)


def _tpot(figures: Draw) -> float:
    """An objective that the engine can meet with some batch: 1.6 to 3 times its fastest step."""
    return round(figures.engine.law.base * figures.between(1.6, 3.0), 3)


def _ttft(figures: Draw) -> float:
    return round(figures.between(1.0, 4.0), 1)


def _constant(rate: float) -> Rate:
    return lambda at: rate


def kv_bound(figures: Draw) -> _Case:
    """Long outputs fill the pool long before tokens come slowly."""
    stretch = Stretch(
        start=0.0,
        prompt=figures.lengths(400, 1500, sigma=(0.3, 0.6)),
        output=figures.lengths(1200, 2500, sigma=(0.3, 0.5)),
    )
    mix = _mix(stretch)
    held = kv_batch(figures.engine, mix)
    tpot = round(1.5 * held / rate_at(figures.engine, mix, batch=held) / mix.output / held, 3)
    replicas = figures.whole(1, 2)
    rate = rate_at(figures.engine, mix, batch=held) * replicas * figures.between(1.05, 1.4)
    fp8 = figures.maybe()
    return _Case(
        story=f"outputs of {stretch.output.mean:.0f} tokens fill the KV cache of {replicas} replica(s)"
        + ("; fp8 KV is allowed" if fp8 else ""),
        rate=_constant(rate),
        stretches=(stretch,),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas * 2 + 1,
        seats=None if figures.maybe() else MOST_SEATS,
        kv_cache_dtypes=("auto", "fp8") if fp8 else ("auto",),
    )


def cap_bound(figures: Draw) -> _Case:
    """max-num-seqs was set too low: there is room in the pool and in the objective."""
    stretch, tpot = _chat(figures), _tpot(figures)
    mix = _mix(stretch)
    useful = figures.useful_batch(mix, tpot=tpot)
    seats = max(8, int(useful * figures.between(0.25, 0.5)))
    replicas = figures.whole(1, 2)
    wanted = min(rate_at(figures.engine, mix, batch=seats * figures.between(1.15, 1.7)), 0.8 * figures.carried(mix, tpot=tpot))
    return _Case(
        story=f"max-num-seqs {seats} where {useful:.0f} would do, on {replicas} replica(s)",
        rate=_constant(wanted * replicas),
        stretches=(stretch,),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        seats=seats,
    )


def _past_knee(figures: Draw, tpot: float) -> _Case:
    stretch = _chat(figures)
    mix = _mix(stretch)
    knee = figures.useful_batch(mix, tpot=tpot)
    replicas, load = figures.whole(1, 2), figures.between(1.1, 1.5)
    return _Case(
        story=f"{load:.2f} times what {replicas} replica(s) serve inside {tpot * 1000:.0f} ms per token (batch {knee:.0f})",
        rate=_constant(figures.carried(mix, tpot=tpot) * replicas * load),
        stretches=(stretch,),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas * 2 + 1,
        seats=None if figures.maybe() else figures.whole(256, MOST_SEATS),
    )


def past_knee_20(figures: Draw) -> _Case:
    """Tokens within 20 ms: the batch must stay small."""
    return _past_knee(figures, 0.020)


def past_knee_50(figures: Draw) -> _Case:
    """Tokens within 50 ms: a large batch, then more replicas."""
    return _past_knee(figures, 0.050)


def prefill_bound(figures: Draw) -> _Case:
    """Long prompts, short answers: first tokens are late while KV cache and seats are free."""
    stretch = Stretch(
        start=0.0,
        prompt=figures.lengths(2500, 5000, sigma=(0.2, 0.5)),
        output=figures.lengths(20, 60, sigma=(0.2, 0.4)),
    )
    mix = _mix(stretch)
    whole_step = figures.engine.law.base + figures.engine.law.per_prefill_token * figures.engine.max_num_batched_tokens
    replicas = figures.whole(1, 2)
    limit = 1 / (mix.prompt * figures.engine.law.per_prefill_token)
    load = figures.between(0.85, 1.2)
    return _Case(
        story=f"{load:.2f} times the prompts that {replicas} replica(s) can compute",
        rate=_constant(limit * replicas * load),
        stretches=(stretch,),
        objectives=Objectives(ttft=_ttft(figures), tpot=round(1.2 * whole_step, 3)),
        replicas=replicas,
        max_replicas=replicas * 2 + 1,
    )


def bursty(figures: Draw) -> _Case:
    """Quiet on average, with bursts of many requests at once."""
    stretch, tpot = _chat(figures), _tpot(figures)
    variation = figures.between(3.0, 6.0)
    replicas, load = figures.whole(1, 3), figures.between(0.5, 0.75)
    return _Case(
        story=f"gaps with a coefficient of variation of {variation:.1f} at {load:.0%} load",
        rate=_constant(figures.carried(_mix(stretch), tpot=tpot) * replicas * load),
        stretches=(stretch,),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        variation=variation,
        seats=None if figures.maybe() else figures.whole(64, 512),
    )


def diurnal(figures: Draw) -> _Case:
    """Two days, squeezed: trough to peak 2 to 5 times, as in ServeGen's language models."""
    stretch, tpot = _chat(figures), _tpot(figures)
    ratio, peak = figures.between(2.0, 5.0), figures.between(2.2, 3.8)
    carried = figures.carried(_mix(stretch), tpot=tpot)
    middle, swing = carried * peak * (1 + 1 / ratio) / 2, carried * peak * (1 - 1 / ratio) / 2
    period = figures.duration / 2
    return _Case(
        story=f"waves of {period / 60:.0f} min between {peak / ratio:.1f} and {peak:.1f} replicas' worth of load",
        rate=lambda at: middle - swing * math.cos(2 * math.pi * at / period),
        stretches=(stretch,),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=max(1, math.ceil(peak / ratio)),
        max_replicas=math.ceil(peak) + 2,
    )


def drift(figures: Draw) -> _Case:
    """Chat becomes long-context work in mid-run at the same request rate."""
    chat, tpot = _chat(figures), _tpot(figures)
    at, growth = figures.duration * figures.between(0.3, 0.45), figures.between(4, 8)
    longer = Lengths(
        median=min(chat.prompt.median * growth, 6000.0), sigma=chat.prompt.sigma / 2, longest=chat.prompt.longest
    )
    later = Stretch(start=at, prompt=longer, output=chat.output)
    replicas = figures.whole(1, 2)
    rate = figures.carried(_mix(chat), tpot=tpot) * replicas * figures.between(0.6, 0.8)
    needed = rate / figures.carried(_mix(later), tpot=tpot)
    return _Case(
        story=f"prompts grow {longer.median / chat.prompt.median:.1f} times after {at / 60:.0f} min: "
        f"then {needed:.1f} replicas' worth of load",
        rate=_constant(rate),
        stretches=(chat, later),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=max(replicas + 1, math.ceil(needed) + 2),
        moments=(at,),
    )


def bad_upgrade(figures: Draw) -> _Case:
    """A new image in mid-run: slower steps, a smaller pool, or no start at all."""
    stretch, tpot = _chat(figures), _tpot(figures)
    at, replicas = figures.duration * figures.between(0.25, 0.35), figures.whole(1, 3)
    kind = figures.whole(0, 2)
    step = figures.between(1.15, 1.4) if kind == 0 else 1.0
    pool = figures.between(0.1, 0.3) if kind == 1 else 0.0 if kind == 2 else 1.0
    upgrade = Upgrade(at=at, image="vllm/vllm-openai:v0.33.0", step_factor=step, pool_factor=pool)
    what = f"its steps take {step:.2f} times as long" if kind == 0 else f"its KV pool is {pool:.0%} of the old one"
    return _Case(
        story=f"a new image after {at / 60:.0f} min: {what if kind < 2 else 'it does not start'}",
        rate=_constant(figures.carried(_mix(stretch), tpot=tpot) * replicas * figures.between(0.55, 0.75)),
        stretches=(stretch,),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        disturbances=(upgrade,),
        moments=(at,),
    )


def wedge(figures: Draw) -> _Case:
    """One engine stops computing while its health check stays green; a person replaces the pod later."""
    stretch, tpot = _chat(figures), _tpot(figures)
    at, replicas = figures.duration * figures.between(0.3, 0.4), figures.whole(1, 3)
    lasting = figures.between(360, 720) if figures.quick else figures.between(900, 2400)
    return _Case(
        story=f"one of {replicas} engine(s) hangs after {at / 60:.0f} min for {lasting / 60:.0f} min",
        rate=_constant(figures.carried(_mix(stretch), tpot=tpot) * replicas * figures.between(0.4, 0.65)),
        stretches=(stretch,),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        disturbances=(Wedge(at=at, repaired=at + lasting),),
        moments=(at,),
    )


def metrics_outage(figures: Draw) -> _Case:
    """Metrics go missing, and the load rises meanwhile."""
    stretch, tpot = _chat(figures), _tpot(figures)
    at, replicas = figures.duration * figures.between(0.25, 0.35), figures.whole(1, 2)
    lasting, growth = figures.between(480, 900 if figures.quick else 1800), figures.between(1.4, 1.9)
    rises = at + lasting * figures.between(0.2, 0.6)
    before = figures.carried(_mix(stretch), tpot=tpot) * replicas * figures.between(0.5, 0.65)
    return _Case(
        story=f"no metrics from {at / 60:.0f} min for {lasting / 60:.0f} min; load grows {growth:.1f} times within",
        rate=lambda now: before * (growth if now >= rises else 1.0),
        stretches=(stretch,),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
        disturbances=(MetricsOutage(at=at, until=at + lasting),),
        moments=(rises,),
    )


def flapping(figures: Draw) -> _Case:
    """The load crosses what the replicas carry, up and down, every few minutes."""
    stretch, tpot = _chat(figures), _tpot(figures)
    replicas, period = figures.whole(1, 3), figures.between(120, 420)
    low, high = figures.between(0.6, 0.85), figures.between(1.05, 1.3)
    carried = figures.carried(_mix(stretch), tpot=tpot) * replicas
    return _Case(
        story=f"load swings between {low:.0%} and {high:.0%} of {replicas} replica(s) every {period / 60:.1f} min",
        rate=lambda at: carried * (high if at % period < period / 2 else low),
        stretches=(stretch,),
        objectives=Objectives(ttft=_ttft(figures), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas + 3,
    )


SCENARIOS: Final[Mapping[str, Callable[[Draw], _Case]]] = {
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
