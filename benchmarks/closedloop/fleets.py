"""Fleets that serve most requests well and still give the product something to try, on replicas that do not change.

Apart from `scenarios`, which are about what tuning gains: these are about what it costs, so they start from a service
that has something to lose. Ranges are our choice, placed against the drawn engine like there; outputs are longer than
chat's, so that a fleet has fewer requests at the same load. Must not: tell anybody what was drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from benchmarks.closedloop.capacity import kv_batch, means_of, rate_at, step_seconds
from benchmarks.closedloop.drawing import MOST_SEATS, SMALLEST_BATCH, Draw, Pace, TooSlow
from benchmarks.closedloop.scenario import Hardware, Objectives, Rhythm, Scenario
from benchmarks.closedloop.scenarios import Case, cast
from vllm_autotuner.simulation.traffic import Content, Mix

__all__ = ["FLEETS", "draw_fleet"]

FLEET: Final = Pace(seconds=(3300.0, 3600.0), startup=(60.0, 90.0), fewest=3)
"""Time for one change to the end of its bake, or for as many failures as the circuit lets through. From three replicas
on a canary has a fresh pod to be compared with."""

RHYTHM: Final = Rhythm(cooldown="5m", changes_per_day=12)
"""The product's own bake: a bad value that passed the canary is to be found there."""


def draw_fleet(name: str, *, seed: int, hardware: Sequence[Hardware], bad: float) -> Scenario:
    """Draw one case. Raises KeyError for a name that does not exist, TooSlow without an engine for it."""
    drawn = cast(FLEETS[name], name, seed=seed, hardware=hardware, pace=FLEET)
    return replace(drawn, scales=False, bad=bad, rhythm=RHYTHM)


def _work(figures: Draw) -> Mix:
    return Mix(prompt=figures.lengths(300, 1000, tail=(1.6, 2.5)), output=figures.lengths(400, 900, tail=(1.5, 2.0)))


def capped(figures: Draw) -> Case:
    """max-num-seqs is a little too low: at times requests queue for a seat, while there is room in the pool."""
    mix = _work(figures)
    seats, replicas = figures.whole(6, 14), figures.few(2)
    return _seated(figures, mix, seats=seats, replicas=replicas, load=figures.between(0.80, 0.98))


def past_knee(figures: Draw) -> Case:
    """Seats beyond what the TPOT objective allows: tokens are late for some. A larger tensor parallel size is allowed.

    Fewer seats would only make requests wait: without that size nothing was tried in ten of ten cases.
    """
    mix, start = _work(figures), figures.hardware.tensor_parallel_size
    means, knee, replicas = means_of(mix), figures.whole(8, 18), figures.few(2)
    load = figures.between(0.85, 1.0)
    return Case(
        story=f"{replicas} replicas at {load:.0%} of what tokens in time allow, {knee} running each",
        levels=[(0.0, replicas * load * rate_at(figures.engine, means, batch=knee))],
        content=Content(mix),
        objectives=Objectives(
            ttft=round(figures.between(1.0, 3.0), 1), tpot=round(step_seconds(figures.engine, means, batch=knee), 4)
        ),
        replicas=replicas,
        max_replicas=replicas,
        seats=figures.whole(4 * knee, MOST_SEATS),
        tensor_parallel_sizes=(start, 2 * start),
    )


def kv(figures: Draw) -> Case:
    """The KV cache is nearly full, at times requests queue for it, and the user accepts fp8 for twice the room."""
    mix = Mix(prompt=figures.lengths(300, 1000, tail=(1.6, 2.5)), output=figures.lengths(1000, 2000, tail=(1.5, 2.0)))
    means, size = means_of(mix), max(1, figures.hardware.tensor_parallel_size // 2)
    engine = figures.with_flags(tensor_parallel_size=size)
    held, replicas, load = kv_batch(engine, means), figures.few(2), figures.between(0.85, 1.0)
    if held < SMALLEST_BATCH:
        raise TooSlow(f"{figures.name}: {figures.hardware.name} has hardly any KV cache at TP {size}")
    return Case(
        story=f"{replicas} replicas at {load:.0%} of what their KV cache holds, {held:.0f} sequences each; fp8 allowed",
        levels=[(0.0, replicas * load * rate_at(engine, means, batch=held))],
        content=Content(mix),
        objectives=Objectives(
            ttft=round(figures.between(1.0, 3.0), 1), tpot=round(1.5 * step_seconds(engine, means, batch=held), 3)
        ),
        replicas=replicas,
        max_replicas=replicas,
        kv_cache_dtypes=("auto", "fp8"),
        tensor_parallel_size=size,
    )


def bursty(figures: Draw) -> Case:
    """Seats that do on average, and not in a burst."""
    mix = _work(figures)
    seats, replicas = figures.whole(8, 16), figures.few(2)
    burstiness, load = figures.between(2.0, 4.0), figures.between(0.55, 0.75)
    case = _seated(figures, mix, seats=seats, replicas=replicas, load=load)
    return replace(case, story=f"{case.story}, bursts of {burstiness:.1f}", burstiness=burstiness)


def _seated(figures: Draw, mix: Mix, *, seats: int, replicas: int, load: float) -> Case:
    """As much load as that part of these seats carries, and objectives that far more seats would still meet."""
    means = means_of(mix)
    tpot = round(step_seconds(figures.engine, means, batch=4 * seats) * figures.between(1.1, 1.6), 3)
    return Case(
        story=f"{replicas} replicas with {seats} seats each, {load:.0%} taken on average",
        levels=[(0.0, replicas * load * rate_at(figures.engine, means, batch=seats))],
        content=Content(mix),
        objectives=Objectives(ttft=round(figures.between(1.0, 3.0), 1), tpot=tpot),
        replicas=replicas,
        max_replicas=replicas,
        seats=seats,
    )


FLEETS: Final[Mapping[str, Callable[[Draw], Case]]] = {
    "capped": capped,
    "past-knee": past_knee,
    "bursty": bursty,
    "kv": kv,
}
"""By the name that `--scenario` takes with `--bad`."""
