"""Which services a recommendation is tried on: engine, flags, lengths, load, scrapes and objectives, drawn by seed.

Must not: play anything, or know a threshold of the product.

| drawn | from | why |
|---|---|---|
| model and GPU | every profile of the simulator, and a model of 1B parameters | short steps, too |
| TP | 1, 2, 4 or 8; 1 for 1B, at most 2 for 8B | measured sizes, and those that laws carry over to |
| slots | a third: the engine's default; else 4 to 1,024 in steps of twice | too few, enough, far too many |
| KV cache | two thirds: what the GPU leaves; else 5 to 40 % of its blocks, or 0.8 of the GPU | small pools |
| max-model-len | a third each: the model's, the longest request, that or 8,192 | what users leave or set |
| median prompt, output | half: 200 to 4,000, 50 to 800 tokens; half: 20 to 30,000, 1 to 8,000 | usual and odd mixes |
| lengths | a quarter: all equal; a quarter: even, half of the median to either side; half: log-normal | |
| p95 of log-normal lengths | 2, 3, 4, 6 or 10 times the median; cut at 20 times | measured mixes, and heavier tails |
| prefix cache | half: no hits; else 0.3, 0.6 or 0.9 of each prompt | |
| a beginning that all prompts share | a quarter: 0.5 to 2 times the median prompt | system prompts |
| `max_tokens` of requests | half: where the output ends; half: the longest output | do outputs end by themselves? |
| load | a quarter each: 0.05-0.5, 0.3-0.9, 0.7-1.1, 1-1.5 of what the replicas serve | idle to overloaded |
| burstiness | 0.3, 1, 1, 1.5, 2 or 4 | evened out, chat, retries |
| replicas | 1 to 6, a third 1 | |
| last replica | of several, a ninth each: slow, hangs, has just started; alone, a thirteenth: hangs | |
| routing | random, round robin, least outstanding | kube-proxy, ingress, inference gateway |
| scrapes | every 5, 10, 15, 30 or 60 s; half: 10 or 30 % are lost, never two in a row | |
| seen before the diagnosis | 15 to 60 min, six times a request in between; 15 %: 3, 5 or 7 min | settled, and young |
| judged after it | 10 to 30 min, three times a request in between | |
| objectives (p95) | two fifths: the defaults; a fifth each: strict, middling, loose for this engine | |
| flags known | 70 % | `--engine-args` |
| model and GPU known | 60 % | `--model`, `--gpu` |

A service whose engine does not start is drawn again, and one of more than 25 requests/s, which takes long to play.
"""

import math
import random
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from typing import Final

from benchmarks.closedloop.capacity import Means, means_of
from vllm_autotuner.cli.options.objective_options import ObjectiveOptions
from vllm_autotuner.engine.flags import EngineFlags, render_flags
from vllm_autotuner.simulation.configuration import (
    EngineConfig,
    GpuMemory,
    Profile,
    StartupRefused,
    configure,
)
from vllm_autotuner.simulation.lengths import Fixed, Lengths, LogNormal, Uniform
from vllm_autotuner.simulation.profiles import profile_document, profile_names
from vllm_autotuner.simulation.routing import Routing
from vllm_autotuner.simulation.step_duration import StepTimes
from vllm_autotuner.simulation.traffic import Mix

__all__ = ["Odd", "Service", "draw_service", "engine_args"]

MOST_RATE: Final = 25.0
"""Requests per second of one service."""
MOST_REQUESTS: Final = 7000.0
"""Requests before the diagnosis, at most; and in the time after it."""
LONGEST_PROMPT: Final = 31_000
LONGEST_OUTPUT: Final = 9_000
"""Tokens. Together they fit the shortest context of the models."""
LONGEST_TIMES: Final = 20
"""Lengths are cut at so many times their median."""
MOST_GPUS: Final = {"1b": 1, "llama-3.1-8b-h100": 2}
"""Per replica; of all others eight."""
SMALL: Final = Profile(
    step=StepTimes(base_ms=2.2, per_sequence_ms=0.02, per_ktoken_ms=0.014, prefill_per_token_ms=0.0045),
    memory=GpuMemory(total_gib=79.18, weights_gib=2.4),
    attention_heads=32,
    kv_heads=8,
    kv_bytes_per_token=32_768,
)
"""A model of 1B parameters on an H100, by its bytes; not measured."""
ROUTINGS: Final = (Routing.RANDOM, Routing.ROUND_ROBIN, Routing.LEAST_OUTSTANDING)


class Odd(StrEnum):
    """What is the matter with the last replica."""

    NONE = "none"
    SLOW = "slow"
    """Its steps take two and a half times as long."""
    HANGS = "hangs"
    """It hangs after three quarters of the time before the diagnosis."""
    COLD = "cold"
    """It has become ready 100 s before the diagnosis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service under one load."""

    seed: int
    name: str
    """Of the model and GPU."""
    profile: Profile
    model: str
    gpu: str
    flags: EngineFlags
    mix: Mix
    rate: float
    """Requests per second over all replicas."""
    load: float
    """The rate over what the replicas serve."""
    burstiness: float
    replicas: int
    odd: Odd
    routing: Routing
    interval: float
    """Seconds between scrapes."""
    lost: float
    """Share of the scrapes."""
    seen: float
    """Seconds of load before the diagnosis."""
    judged: float
    """Seconds after it, in which the service is compared with the changed one."""
    objectives: ObjectiveOptions
    flags_known: bool
    platform_known: bool

    @property
    def config(self) -> EngineConfig:
        """The engine that these flags start."""
        return configure(self.flags, profile=self.profile)


def draw_service(seed: int) -> Service:
    """Return the service of this seed."""
    attempts = (_drawn(random.Random(f"random service {seed}, attempt {number}"), seed=seed) for number in count())
    return next(found for found in attempts if found is not None)


def engine_args(flags: EngineFlags) -> str:
    """Write the flags as a user would."""
    tuned = render_flags(
        max_num_seqs=flags.max_num_seqs,
        max_model_len=flags.max_model_len,
        kv_cache_dtype=flags.kv_cache_dtype,
        tensor_parallel_size=flags.tensor_parallel_size,
    )
    others = {
        "--gpu-memory-utilization": flags.gpu_memory_utilization,
        "--num-gpu-blocks-override": flags.num_gpu_blocks_override,
    }
    return " ".join([*tuned, *(f"{flag}={value}" for flag, value in others.items() if value is not None)])


def _drawn(dice: random.Random, *, seed: int) -> Service | None:
    """Return a service; None where it is to be drawn again."""
    name = dice.choice(("1b", *profile_names()))
    profile, model, gpu = _engine(name)
    profile = replace(
        profile,
        step=replace(profile.step, jitter=dice.uniform(0, 0.1)),
        prefix_hit_ratio=dice.choice((0, 0, 0, 0.3, 0.6, 0.9)),
    )
    mix, longest = _mix(dice)
    try:
        flags = _flags(dice, profile=profile, model=model, most_gpus=MOST_GPUS.get(name, 8), longest=longest)
        engine, means = configure(flags, profile=profile), means_of(mix)
    except StartupRefused:
        return None
    means = Means(prompt=means.prompt + mix.shared_tokens, output=means.output)
    computed = (means.prompt - mix.shared_tokens) * (1 - profile.prefix_hit_ratio)
    batch = _largest_batch(engine, means)
    served = _rate_at(engine, means, batch=batch, computed=computed)
    load = dice.uniform(*dice.choice(((0.05, 0.5), (0.3, 0.9), (0.7, 1.1), (1.0, 1.5))))
    replicas = dice.choice((1, 1, 1, 2, 2, 3, 4, 5, 6))
    rate = load * served * replicas
    if rate > MOST_RATE:
        return None
    request = means.output * _step_seconds(engine, means, batch=batch, computed=computed)
    seen, judged = _seconds(dice, rate=rate, request=request)
    several = (Odd.NONE,) * 6 + (Odd.SLOW, Odd.HANGS, Odd.COLD)
    return Service(
        seed=seed,
        name=name,
        profile=profile,
        model=model,
        gpu=gpu,
        flags=flags,
        mix=mix,
        rate=rate,
        load=load,
        burstiness=dice.choice((0.3, 1.0, 1.0, 1.5, 2.0, 4.0)),
        replicas=replicas,
        odd=dice.choice(several if replicas > 1 else (Odd.NONE,) * 12 + (Odd.HANGS,)),
        routing=dice.choice(ROUTINGS),
        interval=dice.choice((5.0, 10.0, 15.0, 15.0, 30.0, 60.0)),
        lost=dice.choice((0.0, 0.0, 0.1, 0.3)),
        seen=seen,
        judged=judged,
        objectives=_objectives(dice, engine=engine, means=means, batch=batch, computed=computed),
        flags_known=dice.random() < 0.7,
        platform_known=dice.random() < 0.6,
    )


def _engine(name: str) -> tuple[Profile, str, str]:
    """Return the profile, the model as users name it, and the GPU."""
    if name == "1b":
        return SMALL, "meta-llama/Llama-3.2-1B", "H100-SXM-80GB"
    document = profile_document(name)
    quantized = "-FP8" if document.provenance.get("weights") == "fp8" else ""
    return document.profile, document.model + quantized, document.gpu


def _mix(dice: random.Random) -> tuple[Mix, int]:
    """Return the requests, and the tokens of the longest one."""
    usual = dice.random() < 0.5
    prompt = _log_uniform(dice, 200, 4000) if usual else _log_uniform(dice, 20, 30_000)
    output = _log_uniform(dice, 50, 800) if usual else _log_uniform(dice, 1, 8000)
    prompts, longest_prompt = _lengths(dice, prompt, most=LONGEST_PROMPT)
    outputs, longest_output = _lengths(dice, output, most=LONGEST_OUTPUT)
    shared = int(prompt * dice.uniform(0.5, 2.0)) if dice.random() < 0.25 else 0
    shared = min(shared, LONGEST_PROMPT - longest_prompt)
    ends_by_itself = dice.random() < 0.5
    mix = Mix(
        prompt=prompts, output=outputs, shared_tokens=shared, max_tokens=longest_output if ends_by_itself else None
    )
    return mix, shared + longest_prompt + longest_output


def _lengths(dice: random.Random, median: float, *, most: int) -> tuple[Lengths, int]:
    """Return a distribution around a median, and its longest."""
    match dice.choice(("fixed", "even", "log-normal", "log-normal")):
        case "fixed":
            return Fixed(int(median)), int(median)
        case "even":
            high = min(most, int(1.5 * median))
            return Uniform(max(1, int(0.5 * median)), high), high
        case _:
            longest = min(most, int(LONGEST_TIMES * median))
            return LogNormal(p50=median, p95=median * dice.choice((2, 3, 4, 6, 10)), longest=longest), longest


def _flags(dice: random.Random, *, profile: Profile, model: str, most_gpus: int, longest: int) -> EngineFlags:
    """Return the flags of an engine. Raises StartupRefused where it would not start with the pool that it gets."""
    flags = EngineFlags(
        model=model,
        max_num_seqs=dice.choice((None, None, None, None, 4, 8, 16, 32, 64, 128, 256, 512, 1024)),
        max_model_len=dice.choice((None, max(longest, 2048), max(longest, 8192))),
        tensor_parallel_size=dice.choice([size for size in (1, 2, 4, 8) if size <= most_gpus]),
    )
    match dice.choice(("all", "all", "all", "all", "blocks", "memory")):
        case "blocks":
            engine = configure(flags, profile=profile)
            few = int(engine.num_gpu_blocks * dice.uniform(0.05, 0.4))
            least = engine.max_model_len // engine.block_size + 2
            return replace(flags, num_gpu_blocks_override=min(engine.num_gpu_blocks, max(few, least)))
        case "memory":
            return replace(flags, gpu_memory_utilization=0.8)
        case _:
            return flags


def _seconds(dice: random.Random, *, rate: float, request: float) -> tuple[float, float]:
    """Return how long the service is seen, and how long it is judged. `request`: seconds that one takes."""
    few = max(600.0, MOST_REQUESTS / rate)
    seen, judged = min(3600.0, max(900.0, 6 * request)), min(1800.0, max(600.0, 3 * request))
    if dice.random() < 0.15:
        seen = dice.choice((180.0, 300.0, 420.0))
    return min(seen, few), min(judged, few)


def _objectives(
    dice: random.Random, *, engine: EngineConfig, means: Means, batch: float, computed: float
) -> ObjectiveOptions:
    """Return objectives that few, some or all batches of this engine meet."""

    def step(share: float) -> float:
        return _step_seconds(engine, means, batch=max(1.0, share * batch), computed=computed)

    prompt = engine.law.per_prefill_token * means.prompt
    match dice.choice(("default", "default", "strict", "middling", "loose")):
        case "strict":
            return _typed(ttft=max(0.05, 2 * step(0) + 3 * prompt), tpot=step(0.25))
        case "middling":
            return _typed(ttft=max(0.3, 0.2 + 4 * prompt), tpot=1.2 * step(0.5))
        case "loose":
            return _typed(ttft=30.0, tpot=4 * step(1))
        case _:
            return ObjectiveOptions()


def _typed(*, ttft: float, tpot: float) -> ObjectiveOptions:
    return ObjectiveOptions(ttft=f"{math.ceil(1000 * ttft)}ms", tpot=f"{math.ceil(1000 * tpot)}ms")


def _largest_batch(engine: EngineConfig, means: Means) -> float:
    """Sequences that run at most: by the slots, and by a pool in which most have made half of their output."""
    fits = (engine.num_gpu_blocks - 1) * engine.block_size / (means.prompt + 0.6 * means.output)
    return max(1.0, min(engine.max_num_seqs, fits))


def _step_seconds(engine: EngineConfig, means: Means, *, batch: float, computed: float) -> float:
    """The mean step in a steady state, with `computed` tokens of each prompt not in the prefix cache."""
    law = engine.law
    prefill = law.per_prefill_token * batch * computed / means.output
    return law.base + (law.per_sequence + law.per_held_token * means.held) * batch + prefill


def _rate_at(engine: EngineConfig, means: Means, *, batch: float, computed: float) -> float:
    return batch / (means.output * _step_seconds(engine, means, batch=batch, computed=computed))


def _log_uniform(dice: random.Random, low: float, high: float) -> float:
    return math.exp(dice.uniform(math.log(low), math.log(high)))
