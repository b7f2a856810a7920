"""One kind of trouble at a time, drawn from ranges by seed: the engine, its load, its objectives, and what is true.

What is true follows from how the load is built against the step-time law and the pool, never from what a rule says:
a cap binds because more comes than that many seats serve while the pool holds three times as many.
Apart from playing. Must not: read a threshold of a rule.

| drawn | range |
|---|---|
| step time | 8-20 ms, 0.03-0.08 ms per sequence, 0.03-0.08 ms per 1,000 tokens, 0.02-0.05 ms per prompt token |
| noise on steps (standard deviation of the logarithm) | 0-0.15 |
| scrape interval | 5, 10 or 15 s; each scrape is lost with 0-10 %, never two in a row |
| restart of the engine (counters fall to 0, its requests are lost) | every second time, before the scored part |
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from vllm_autotuner.simulation.configuration import EngineConfig
from vllm_autotuner.simulation.faults import Faults
from vllm_autotuner.simulation.sequence import Request
from vllm_autotuner.simulation.step_duration import StepLaw

__all__ = ["KINDS", "Mix", "Scene", "Stage", "draw", "requests_of"]

SETTLED: Final = 300.0
"""Seconds after which windows are scored: the load stands for ten state windows."""
SCORED: Final = 150.0
"""Seconds of windows that are scored."""
ROOM: Final = 4.0
"""The pool over what a load holds, where the pool must not bind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Lengths in tokens, drawn evenly, ends included."""

    prompt: tuple[int, int]
    output: tuple[int, int]
    huge_share: float = 0.0
    """Part of the requests whose prompt is from `huge` instead."""
    huge: tuple[int, int] = (0, 0)
    eos: bool = True
    """Requests end by themselves; otherwise at `max_tokens`."""

    @property
    def held(self) -> float:
        """Tokens that a sequence holds on average."""
        return sum(self.prompt) / 2 + sum(self.output) / 4

    @property
    def at_most(self) -> int:
        """Tokens that a sequence ends with at most."""
        return max(self.prompt[1], self.huge[1]) + self.output[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Requests from `start` on (seconds), at random times."""

    start: float
    rate: float
    """Per second and pod."""
    mix: Mix


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A service whose limit is known."""

    truth: str
    """Name of the class. Of a full pool only its milder form: `naming.truth_of` looks at how many were evicted."""
    config: EngineConfig
    stages: tuple[Stage, ...]
    faults: Faults = field(default_factory=Faults)
    ttft: float | None = None
    tpot: float | None = None
    """Objectives, seconds; None for the profile's default."""
    pods: int = 1
    deferred: int = 0
    """Requests that wait for something else than capacity, reported by the engine beside its own queue."""
    blind_after: float | None = None
    """Nothing is scraped from then on."""
    interval: float = 5.0
    lost: float = 0.0
    """Part of the scrapes that fail."""
    restarted: float | None = None
    """When each engine is replaced by a fresh one."""
    scored_from: float = SETTLED
    seconds: float = SETTLED + SCORED


def draw(kind: str, *, seed: int) -> Scene:
    """Return the scene of this kind and seed."""
    dice = random.Random(f"{kind} {seed}")
    scene = KINDS[kind](dice)
    may_restart = scene.blind_after is None and scene.faults.wedge_after is None
    return replace(
        scene,
        interval=dice.choice((5.0, 10.0, 15.0)),
        lost=dice.uniform(0, 0.1),
        restarted=dice.uniform(30, 120) if may_restart and dice.random() < 0.5 else None,
    )


def _law(dice: random.Random) -> StepLaw:
    return StepLaw(
        base=dice.uniform(8, 20) / 1e3,
        per_sequence=dice.uniform(0.03, 0.08) / 1e3,
        per_held_token=dice.uniform(0.03, 0.08) / 1e6,
        per_prefill_token=dice.uniform(0.02, 0.05) / 1e3,
    )


def _config(dice: random.Random, law: StepLaw, *, seats: int, tokens: float, longest: int) -> EngineConfig:
    """An engine with a pool of so many tokens, at least one longest sequence and the reserved block."""
    return EngineConfig(
        max_num_seqs=seats,
        max_model_len=longest,
        num_gpu_blocks=1 + -(-int(max(tokens, longest)) // 16),
        law=law,
        jitter=dice.uniform(0, 0.15),
        prefix_hit_ratio=0.0,
    )


def _step(law: StepLaw, mix: Mix, *, batch: float) -> float:
    """Return the mean step in steady state: each sequence brings its share of a prompt with every token."""
    prompts = sum(mix.prompt) / sum(mix.output)
    return (
        law.base + batch * law.per_sequence + batch * mix.held * law.per_held_token
        + batch * prompts * law.per_prefill_token
    )  # fmt: skip


def _rate(law: StepLaw, mix: Mix, *, batch: float) -> float:
    """Return the requests per second that keep so many running."""
    return batch / (_step(law, mix, batch=batch) * sum(mix.output) / 2)


def _chat(dice: random.Random) -> Mix:
    prompt, output = dice.randint(100, 800), dice.randint(100, 300)
    return Mix(prompt=(prompt // 2, prompt * 3 // 2), output=(output // 2, output * 3 // 2))


def _at_ease(dice: random.Random, *, truth: str) -> Scene:
    """4-16 running, a pool and seats for many more: steps of 10 to 25 ms, prompts in tens of ms."""
    law, mix = _law(dice), _chat(dice)
    batch = dice.uniform(4, 16)
    tokens = ROOM * 2 * batch * mix.at_most
    config = _config(dice, law, seats=dice.choice((64, 128, 256)), tokens=tokens, longest=8192)
    return Scene(truth=truth, config=config, stages=(Stage(start=0.0, rate=_rate(law, mix, batch=batch), mix=mix),))


def _healthy(dice: random.Random) -> Scene:
    return _at_ease(dice, truth="Healthy")


def _idle(dice: random.Random) -> Scene:
    scene = _at_ease(dice, truth="Idle")
    (stage,) = scene.stages
    return replace(scene, stages=(stage, replace(stage, start=dice.uniform(60, 180), rate=0.0)))


def _underutilized(dice: random.Random) -> Scene:
    """Two or three pods with one or two sequences each."""
    scene = _at_ease(dice, truth="Underutilized")
    (stage,) = scene.stages
    light = replace(stage, rate=_rate(scene.config.law, stage.mix, batch=dice.uniform(0.5, 2)))
    return replace(scene, stages=(light,), pods=dice.choice((2, 3)))


def _just_enough(dice: random.Random) -> Scene:
    """Two or three pods with 8-40 running; on one fewer tokens would take 1.05-1.3 times the objective."""
    # With a step of a + c * batch, what arrives fixes batch / step: s' = a + m * (s - a) * s' / s on 1/m of the pods.
    # Solved for what the batch adds to the step now.
    then = dice.uniform(1.05, 1.3)
    mix, pods = Mix(prompt=(100, 300), output=(200, 400)), dice.choice((2, 3))
    objective, batch, alone = dice.choice((0.025, 0.050)), dice.uniform(8, 40), dice.uniform(0.25, 0.4)
    more = pods / (pods - 1)
    added = alone * (then - alone) / (alone + (more - 1) * then)
    plain = StepLaw(base=alone * objective, per_sequence=0.0, per_held_token=0.03e-6, per_prefill_token=0.02e-3)
    slope = ((alone + added) * objective - _step(plain, mix, batch=batch)) / batch
    law = replace(plain, per_sequence=max(0.0, slope))
    config = _config(dice, law, seats=512, tokens=ROOM * more * batch * mix.at_most, longest=8192)
    stage = Stage(start=0.0, rate=_rate(law, mix, batch=batch), mix=mix)
    return Scene(truth="Healthy", config=config, stages=(stage,), tpot=objective, pods=pods)


def _kv_bound(dice: random.Random) -> Scene:
    """Prompts are most of what a sequence holds, so few are evicted: the queue waits for blocks."""
    law = replace(_law(dice), per_prefill_token=dice.uniform(0.02, 0.03) / 1e3)
    prompt, output = dice.randint(800, 1500), dice.randint(40, 60)
    mix = Mix(prompt=(prompt, prompt), output=(output, output))
    return _short_of_blocks(dice, law=law, mix=mix, held=prompt + output)


def _thrash(dice: random.Random) -> Scene:
    """Outputs are most of what a sequence holds, so those that were let in outgrow the pool."""
    prompt, output = dice.randint(50, 150), dice.randint(300, 600)
    mix = Mix(prompt=(prompt, prompt), output=(output // 2, output * 3 // 2))
    return _short_of_blocks(dice, law=_law(dice), mix=mix, held=mix.held)


def _short_of_blocks(dice: random.Random, *, law: StepLaw, mix: Mix, held: float) -> Scene:
    """A pool for 6-16 sequences, seats for 8 times as many, and 1.15-1.4 times what that pool serves."""
    fits = dice.uniform(6, 16)
    config = _config(dice, law, seats=int(8 * fits), tokens=fits * held, longest=min(int(fits * held), mix.at_most))
    rate = dice.uniform(1.15, 1.4) * _rate(law, mix, batch=fits)
    return Scene(truth="KVCacheSaturated", config=config, stages=(Stage(start=0.0, rate=rate, mix=mix),))


def _capped(dice: random.Random) -> Scene:
    """1.15-1.4 times what 8-32 seats serve, and a pool for four times as many."""
    law, mix = _law(dice), _chat(dice)
    seats = dice.choice((8, 12, 16, 24, 32))
    config = _config(dice, law, seats=seats, tokens=ROOM * seats * mix.at_most, longest=8192)
    rate = dice.uniform(1.15, 1.4) * _rate(law, mix, batch=seats)
    return Scene(truth="ConcurrencyCapped", config=config, stages=(Stage(start=0.0, rate=rate, mix=mix),))


def _past_knee(dice: random.Random) -> Scene:
    """A batch whose steps take 1.25-1.6 times the objective, after a time with a batch that met it."""
    mix = Mix(prompt=(100, 300), output=(200, 400))
    objective = dice.choice((0.020, 0.025, 0.050))
    batch, base = dice.uniform(40, 120), dice.uniform(0.3, 0.45) * objective
    plain = StepLaw(base=base, per_sequence=0.0, per_held_token=0.03e-6, per_prefill_token=0.02e-3)
    slope = (objective * dice.uniform(1.25, 1.6) - _step(plain, mix, batch=batch)) / batch
    law = replace(plain, per_sequence=max(0.0, slope))
    config = _config(dice, law, seats=512, tokens=ROOM * batch * mix.at_most, longest=8192)
    before = Stage(start=0.0, rate=_rate(law, mix, batch=batch / 4), mix=mix)
    return Scene(
        truth="PastTPOTKnee",
        config=config,
        stages=(before, Stage(start=180.0, rate=_rate(law, mix, batch=batch), mix=mix)),
        tpot=objective,
        scored_from=SETTLED + 60,
        seconds=SETTLED + 60 + SCORED,
    )


def _slow_steps(dice: random.Random) -> Scene:
    """Half a sequence to one and a half, and a step of 1.2-1.6 times the objective for one alone."""
    objective = dice.choice((0.020, 0.025, 0.050))
    law = replace(_law(dice), base=objective * dice.uniform(1.2, 1.6))
    mix = Mix(prompt=(50, 150), output=(100, 300))
    config = _config(dice, law, seats=128, tokens=65_536, longest=8192)
    rate = _rate(law, mix, batch=dice.uniform(0.7, 1.5))
    return Scene(
        truth="DecodeBandwidthBound", config=config, stages=(Stage(start=0.0, rate=rate, mix=mix),), tpot=objective
    )


def _prefill_bound(dice: random.Random) -> Scene:
    """More prompt tokens than the engine computes (1.03-1.2 times), next to no output, and blocks for all in a step."""
    law = replace(_law(dice), per_prefill_token=dice.uniform(0.03, 0.08) / 1e3)
    prompt = dice.randint(4000, 16_000)
    mix = Mix(prompt=(prompt * 3 // 4, prompt * 5 // 4), output=(5, 20))
    config = _config(dice, law, seats=128, tokens=40 * mix.at_most, longest=32_768)
    rate = dice.uniform(1.03, 1.2) / (prompt * law.per_prefill_token)
    return Scene(truth="PrefillBound", config=config, stages=(Stage(start=0.0, rate=rate, mix=mix),))


def _deferred(dice: random.Random) -> Scene:
    return replace(_at_ease(dice, truth="DeferredQueue"), deferred=dice.randint(2, 40))


def _wedged(dice: random.Random) -> Scene:
    at = dice.uniform(60, 150)
    scene = _at_ease(dice, truth="Wedged")
    # Two minutes without a token are what tells it from a long step; a state window more for the evaluation.
    return replace(scene, faults=Faults(wedge_after=at), scored_from=at + 180, seconds=at + 180 + SCORED)


def _blind(dice: random.Random) -> Scene:
    at = dice.uniform(120, 240)
    scene = _at_ease(dice, truth="MetricsBlind")
    return replace(scene, blind_after=at, scored_from=at + 90, seconds=at + 90 + SCORED)


def _runaway(dice: random.Random) -> Scene:
    """No stop token: every output fills what max-model-len leaves. 4-12 running, nothing waits."""
    longest = dice.choice((2048, 3072, 4096))
    prompt = dice.randint(50, 200)
    law = replace(_law(dice), base=dice.uniform(8, 14) / 1e3)
    mix = Mix(prompt=(prompt, prompt), output=(longest - prompt, longest - prompt), eos=False)
    batch = dice.uniform(4, 12)
    config = _config(dice, law, seats=128, tokens=ROOM * batch * longest, longest=longest)
    return Scene(
        truth="RunawayOutputs",
        config=config,
        stages=(Stage(start=0.0, rate=_rate(law, mix, batch=batch), mix=mix),),
    )


def _head_of_line(dice: random.Random) -> Scene:
    """Chat, and prompts of 2.5-4 s that take 20-30 % of the time, two or three in every window: 1.5-3 % of requests."""
    law = replace(_law(dice), per_prefill_token=dice.uniform(0.05, 0.07) / 1e3)
    huge = int(dice.uniform(2.5, 4) / law.per_prefill_token)
    share = dice.uniform(0.015, 0.03)
    mix = Mix(prompt=(50, 150), output=(20, 60), huge_share=share, huge=(huge * 9 // 10, huge * 11 // 10))
    rate = dice.uniform(0.2, 0.3) / (huge * law.per_prefill_token) / share
    config = _config(dice, law, seats=256, tokens=ROOM * 2 * huge, longest=huge * 3 // 2)
    return Scene(truth="HeadOfLineBlocking", config=config, stages=(Stage(start=0.0, rate=rate, mix=mix),), ttft=1.0)


KINDS: Final[Mapping[str, Callable[[random.Random], Scene]]] = {
    "healthy": _healthy,
    "idle": _idle,
    "underutilized": _underutilized,
    "just enough": _just_enough,
    "KV-bound": _kv_bound,
    "thrash": _thrash,
    "capped": _capped,
    "past the knee": _past_knee,
    "slow steps": _slow_steps,
    "prefill-bound": _prefill_bound,
    "deferred": _deferred,
    "wedged": _wedged,
    "blind": _blind,
    "runaway": _runaway,
    "head of line": _head_of_line,
}


def requests_of(scene: Scene, *, pod: int, seed: int) -> list[Request]:
    """Return what comes to one pod, in order."""
    dice = random.Random(f"requests {pod} {seed}")
    found: list[Request] = []
    for index, stage in enumerate(scene.stages):
        end = scene.stages[index + 1].start if index + 1 < len(scene.stages) else scene.seconds
        at = stage.start
        while stage.rate > 0 and (at := at + dice.expovariate(stage.rate)) < end:
            found.append(_request(stage.mix, at=at, longest=scene.config.max_model_len, dice=dice))
    return found


def _request(mix: Mix, *, at: float, longest: int, dice: random.Random) -> Request:
    lengths = mix.huge if dice.random() < mix.huge_share else mix.prompt
    prompt = dice.randint(*lengths)
    output = min(dice.randint(*mix.output), longest - prompt)
    if not mix.eos:
        return Request(arrival=at, prompt_tokens=prompt, max_tokens=output)
    return Request(arrival=at, prompt_tokens=prompt, max_tokens=longest - prompt, eos_after=output)
