"""A service whose seats are all taken while its KV cache is half empty, but for what a test names."""

import math
from collections.abc import Sequence
from dataclasses import replace

from tests.builders import INTERVAL, NOW, SCRAPES, WINDOW, engine, latency, named, observation, targets

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.api.spec import IntBounds, ScaleIn, ScaleOut, Scaling, Tuning
from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import Contribution, Diagnosis
from vllm_autotuner.diagnosis.objectives import Targets
from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.observation.distribution import Distribution
from vllm_autotuner.observation.engine_window import KVPool
from vllm_autotuner.observation.observation import Observation, StepPoint
from vllm_autotuner.observation.reading import Measured
from vllm_autotuner.planning.platform import Platform, platform_named
from vllm_autotuner.planning.situation import Situation

SEATS = 64
WINDOW_OF_SAMPLES = INTERVAL * (SCRAPES - 1)
"""Seconds between the first and the last scrape of an engine's window."""

CAPPED = observation(engine(running=64.0, waiting=100.0, kv=0.32))
"""64 sequences take 32 % of the pool: with a tenth left free it holds 180."""
SLOW = observation(engine(running=64.0, kv=0.32), tpot=latency(0.08), itl=latency(0.08))
"""Tokens come at 80 ms; the default objective is 50 ms."""


def line(*batches: float, base: float, per_sequence: float) -> tuple[StepPoint, ...]:
    """Windows that lie exactly on a line (seconds), with as many tokens as so many sequences make in them.

    In steps of no time they make a thousand: a counter does not grow without end.
    """
    itls = ((batch, base + per_sequence * batch) for batch in batches)
    return tuple(
        StepPoint(running=batch, itl=itl, tokens=WINDOW * batch / itl if itl > 1e-9 else 1000.0) for batch, itl in itls
    )


def bounds(low: int, high: int) -> Tuning:
    return Tuning(max_num_seqs=IntBounds(min=low, max=high))


def scaling(low: int = 1, high: int = 4) -> Scaling:
    return Scaling(min_replicas=low, max_replicas=high, scale_out=ScaleOut(), scale_in=ScaleIn())


def diagnosis(primary: DiagnosisClass, *, confidence: Confidence = Confidence.HIGH, since: float = 0.0) -> Diagnosis:
    return Diagnosis(primary=primary, confidence=confidence, since=since, message="A sentence.")


def situation(
    seen: Observation = CAPPED,
    *,
    primary: DiagnosisClass | None = None,
    seats: int | None = SEATS,
    tuning: Tuning | None = None,
    failed: Sequence[int] = (),
    against: Targets | None = None,
    replicas: int = 1,
    scale: Scaling | None = None,
    knobs: EngineKnobs | None = None,
    platform: Platform | None = None,
    failed_values: Sequence[tuple[str, str]] = (),
    infeasible: Sequence[EngineKnobs] = (),
    contributing: Sequence[DiagnosisClass] = (),
) -> Situation:
    """With the diagnosis that the observation gets, or the one that is named."""
    wanted = against or targets()
    found = named(seen, seats=seats, against=wanted) if primary is None else diagnosis(primary)
    if contributing:
        found = replace(found, contributing=tuple(Contribution(diagnosis=each, message="") for each in contributing))
    return Situation(
        case=Case(
            observation=seen,
            targets=wanted,
            knobs=knobs if knobs is not None else EngineKnobs(max_num_seqs=seats),
        ),
        diagnosis=found,
        tuning=tuning if tuning is not None else bounds(1, 4096),
        replicas=replicas,
        scaling=scale,
        failed=(*((Knob.MAX_NUM_SEQS.value, str(seats)) for seats in failed), *failed_values),
        infeasible=tuple(infeasible),
        platform=platform if platform is not None else Platform(),
    )


def with_steps(seen: Observation, steps: tuple[StepPoint, ...]) -> Observation:
    return replace(seen, steps=steps)


IN_BURSTS = [64.0 if scrape % 5 == 0 else 24.0 for scrape in range(SCRAPES)]
"""32 on average; tokens are of a batch of 40."""
LOWERABLE = with_steps(
    observation(
        engine(running=IN_BURSTS, kv=0.32, finished=300.0),
        tpot=latency(0.0612, count=400),
        itl=latency(0.042),
    ),
    line(16, 32, 64, 128, base=0.010, per_sequence=0.0008),
)
"""As slow in its bursts as its line says; 45 ms at a batch of 43. Answers of 50 tokens: 21 wait for a second."""


QWEN_32B = platform_named("Qwen/Qwen3-32B", gpu="NVIDIA-H100-80GB-HBM3", catalogue=Catalogue())
"""64 layers, 64 heads, 8 KV heads, 16 bit; nobody looked for free GPUs."""


def lengths(tokens: float, *, longest: float | None = None, count: float = 1000.0) -> Distribution:
    """Requests of `tokens`, one in a thousand of `longest`."""
    edges = {tokens * 0.98: 0.0, tokens: count * (1.0 if longest is None else 0.999), math.inf: count}
    return Distribution(buckets=dict(sorted({**edges, **({} if longest is None else {longest: count})}.items())))


def served(
    seen: Observation,
    *,
    steps: tuple[StepPoint, ...] = (),
    pool: KVPool | None = None,
    prompt: float = 1024.0,
    output: float = 256.0,
    prefill: float | None = 0.1,
    longest: float | None = None,
) -> Observation:
    """The same with everything that a forecast needs: lengths, prefill time, the pool of each engine."""
    engines = tuple(
        replace(
            each,
            pool=pool if pool is not None else KVPool(tokens=282_496, cache_dtype="auto", max_model_len=16_384),
            finished=60.0,
            prompt_tokens=60.0 * prompt,
            generation_tokens=60.0 * output,
        )
        for each in seen.engines
    )
    return replace(
        seen,
        engines=engines,
        steps=steps or seen.steps,
        prompt_length=lengths(prompt, longest=longest),
        output_length=lengths(output),
        prefill_time=Distribution(missing="not exported") if prefill is None else latency(prefill),
    )


def steady(
    *batches: float,
    base: float,
    per_sequence: float,
    pods: int = 2,
    kv_each: float = 0.005,
    minutes: float = 30.0,
    tail: float = 1.1,
    prompt: float = 1024.0,
    output: float = 256.0,
    prefill: float = 0.02,
    waiting: float = 0.0,
    ttft: float = 0.2,
    pool: KVPool | None = None,
) -> Observation:
    """Engines that have gone through these batches again and again, and are at the last of them; all figures agree."""
    windows = int(minutes * 60 / WINDOW)
    levels = [batches[(number - windows) % len(batches)] for number in range(windows)]
    steps = tuple(
        replace(step, time=NOW - WINDOW * (windows - 1 - number))
        for number, level in enumerate(levels)
        for step in line(level, base=base, per_sequence=per_sequence) * pods
    )
    running, itl = batches[-1], base + per_sequence * batches[-1]
    tokens = WINDOW_OF_SAMPLES * running / itl
    engines = (
        engine(pod=f"chat-{pod}", running=running, waiting=waiting, kv=kv_each * running, itl=Measured(itl))
        for pod in range(pods)
    )
    late = latency(itl * tail, count=400)
    seen = served(
        observation(*engines, ttft=latency(ttft), tpot=late, itl=latency(itl, count=20_000)),
        steps=steps, prompt=prompt, output=output, prefill=prefill, pool=pool,
    )  # fmt: skip
    finished = tokens / output
    return replace(
        seen,
        engines=tuple(
            replace(
                each, generation_tokens=tokens, finished=finished, prompt_tokens=finished * prompt,
                prefill_seconds=finished * prefill,
            )
            for each in seen.engines
        ),
        recent_prompt_length=latency(prompt),
        recent_output_length=latency(output),
    )  # fmt: skip
