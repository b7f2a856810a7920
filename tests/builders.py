"""A healthy service but for what is named: one engine, scraped every 2 s for 30 s, 39 running, KV at 69 % (row F3)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.spec import Objectives, Profile
from vllm_autotuner.diagnosis.diagnose import Diagnosis, History, case_of, diagnose
from vllm_autotuner.diagnosis.objectives import Target, Targets, targets_of
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.observation import EngineWindow, KVPool, Moment, Observation, StepPoint
from vllm_autotuner.observation.reading import Absence, Measured, NoData, Reading
from vllm_autotuner.observation.snapshot import EngineKey

NOW = 1_795_000_000.0
WINDOW = 30.0
INTERVAL = 2.0
SCRAPES = 15

Levels = float | Sequence[float] | None
"""One level for the whole window, one per scrape, or None for not exported."""

NOT_MEASURED = Distribution(missing="not exported")


def latency(seconds: float, *, count: float = 100.0, tail: float | None = None) -> Distribution:
    """A histogram whose quantiles are `seconds` (within 2 %), or `tail` from p90 on where one is given."""
    buckets = {0.98 * seconds: 0.0, seconds: count, math.inf: count}
    if tail is not None:
        buckets |= {seconds: 0.9 * count, 0.98 * tail: 0.9 * count, tail: count}
    return Distribution(buckets=dict(sorted(buckets.items())), total=seconds * count, count=count)


def engine(
    *,
    pod: str = "chat-0",
    running: Levels = 39.0,
    waiting: Levels = 0.0,
    deferred: Levels = None,
    kv: Levels = 0.689,
    preemptions: float | None = 0.0,
    finished: float | None = 60.0,
    prompt_tokens: float | None = 30_000.0,
    generation_tokens: float | None = 15_000.0,
    stalled_for: float | None = INTERVAL,
    itl: Reading | None = None,
    scrapes: int = SCRAPES,
    labels: Mapping[str, str] | None = None,
    **rest: Any,
) -> EngineWindow:
    """One engine over the state window; `rest`: fields of EngineWindow that are unremarkable otherwise."""

    def level(levels: Levels, scrape: int) -> float | None:
        if levels is None or isinstance(levels, int | float):
            return levels
        return levels[scrape]

    def known(levels: Levels, scrape: int) -> float:
        value = level(levels, scrape)
        assert value is not None, "an engine without running or waiting does not report"
        return value

    moments = [
        Moment(
            time=NOW - INTERVAL * (scrapes - 1 - scrape),
            running=known(running, scrape),
            waiting=known(waiting, scrape),
            deferred=level(deferred, scrape),
            kv=level(kv, scrape),
        )
        for scrape in range(scrapes)
    ]
    return EngineWindow(
        key=EngineKey(namespace="demo", pod=pod, engine="0"),
        moments=tuple(moments),
        preemptions=preemptions,
        finished=finished,
        prompt_tokens=prompt_tokens,
        generation_tokens=generation_tokens,
        stalled_for=stalled_for,
        itl=itl if itl is not None else Measured(0.0182),
        labels=labels or {},
        **{"pool": KVPool(), **rest},
    )


def observation(
    *engines: EngineWindow,
    ttft: Distribution | None = None,
    tpot: Distribution | None = None,
    itl: Distribution | None = None,
    silent: tuple[str, ...] = (),
    expected: int | None = None,
    problem: NoData | None = None,
    steps: tuple[StepPoint, ...] = (),
    at: float = NOW,
    **rest: Any,
) -> Observation:
    """A service of `engines`, of one healthy one when none is given; `rest`: other fields of Observation."""
    return Observation(
        at=at,
        window=WINDOW,
        engines=() if problem is not None else (engines or (engine(),)),
        silent=silent,
        expected=expected,
        problem=problem,
        ttft=ttft or latency(0.196),
        itl=itl or latency(0.0182, count=2000),
        tpot=tpot or latency(0.0182),
        steps=steps,
        **rest,
    )


def nobody(**rest: Any) -> Observation:
    """A service of which no engine reports."""
    return replace(observation(), engines=(), **rest)


def targets(*, ttft: float | None = None, tpot: float | None = None, profile: Profile = Profile.LATENCY) -> Targets:
    """The defaults of a profile but for what is named, at p95 (seconds)."""
    found = targets_of(Objectives(profile=profile))
    return Targets(
        profile=profile,
        ttft=found.ttft if ttft is None else Target(quantile=0.95, seconds=ttft),
        tpot=found.tpot if tpot is None else Target(quantile=0.95, seconds=tpot),
    )


def diagnosed(
    seen: Observation, *, targets: Targets, knobs: EngineKnobs, history: History
) -> tuple[Diagnosis, History]:
    """What is said of `seen` after what the history tells, and the next history."""
    return diagnose(case_of(seen, targets=targets, knobs=knobs, history=history), history=history)


def named(
    seen: Observation, *, seats: int | None = 64, against: Targets | None = None, history: History | None = None
) -> Diagnosis:
    """What is said of `seen` the first time, with max-num-seqs `seats`."""
    found, _ = diagnosed(
        seen,
        targets=against or targets(),
        knobs=EngineKnobs(max_num_seqs=seats),
        history=history or History(),
    )
    return found


def no_answer(why: str = "connection refused") -> NoData:
    """A metrics source that failed."""
    return NoData(Absence.PROVIDER_ERROR, why)
