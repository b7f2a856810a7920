"""The options of `simulate`, read and checked. A wrong value is refused with what to write instead.

Must not: simulate.
"""

import contextlib
import io
import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from vllm_autotuner.api.durations import parse_duration
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.simulate.options import CHAT_OUTPUTS, CHAT_PROMPTS, LENGTHS_HELP, LoadOptions
from vllm_autotuner.engine.flags import EngineFlags, parse_command_line
from vllm_autotuner.simulation.arguments import parse_arguments
from vllm_autotuner.simulation.arrivals import RateCurve
from vllm_autotuner.simulation.lengths import Empirical, Fixed, Lengths, LogNormal, Uniform
from vllm_autotuner.simulation.profiles import ProfileDocument, ProfileError, profile_document
from vllm_autotuner.simulation.replay import Replay
from vllm_autotuner.simulation.traces import RATE_COLUMNS, TraceError, columns_of, read_rates, read_requests
from vllm_autotuner.simulation.traffic import ClosedLoop, Content, Mix, OpenLoop, Traffic

__all__ = [
    "Load",
    "TrafficOf",
    "engine_flags",
    "length_of",
    "load_of",
    "profile_of",
    "replicas_of",
    "time_of",
    "within_a_week",
]

TrafficOf: TypeAlias = Callable[[int], Traffic]
"""From a seed to a fresh stream of requests."""

WEEK: Final = 7 * 86_400
"""Virtual seconds. The longest simulation."""
_MOST: Final = 1e6
"""Of what is given as a number above 0, requests per second among it: more would not end."""
MOST_REPLICAS: Final = 64
"""Our choice: enough for any question that is about one service."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the service is asked for. `words`: for people."""

    words: str
    traffic: TrafficOf


def load_of(options: LoadOptions) -> Load:
    """Read the options together. Raises CommandError."""
    _refuse_strays(options)
    try:
        if options.trace is not None:
            return _traced(options, options.trace)
        content = _content(options)
        if options.clients is not None:
            think = time_of("--think", options.think or "0s")
            clients = options.clients
            return Load(
                f"{clients} clients, {think:g} s between answer and next request, {_lengths(options)}",
                lambda seed: ClosedLoop(clients, content, think=think, seed=seed),
            )
        rate = _positive("--rate", options.rate)
        burstiness = 1.0 if options.burstiness is None else options.burstiness
        curve, swing = RateCurve.constant(rate), ""
        if options.peak_to_trough is not None:
            curve = RateCurve.diurnal(rate, peak_to_trough=options.peak_to_trough)
            swing = f" on average, a day's peak {options.peak_to_trough:g} times its trough"
        if burstiness != 1:
            swing += f", burstiness {burstiness:g}"
        return Load(
            f"{rate:g} requests/s{swing}, {_lengths(options)}",
            lambda seed: OpenLoop(curve, content, burstiness=burstiness, seed=seed),
        )
    except TraceError as error:
        raise CommandError(str(error)) from None


def _refuse_strays(options: LoadOptions) -> None:
    if options.trace is None and (options.rate is None) == (options.clients is None):
        how = "no load was named" if options.rate is None else "two loads were named"
        raise CommandError(f"{how}: give one of --rate REQUESTS, --clients N and --trace FILE")
    if options.clients is not None and options.trace is not None:
        raise CommandError("two loads were named: give one of --rate REQUESTS, --clients N and --trace FILE")
    if options.clients is not None and not 1 <= options.clients <= 1_000_000:
        raise CommandError(f"--clients {options.clients}: write a whole number from 1 to 1000000")
    if options.think is not None and options.clients is None:
        raise CommandError("--think needs --clients N")
    if options.trace_model is not None and options.trace is None:
        raise CommandError("--trace-model needs --trace FILE")
    if options.rate is not None:
        _positive("--rate", options.rate)
    if options.burstiness is not None and not 0 <= options.burstiness <= 100:
        raise CommandError(f"--burstiness {options.burstiness:g}: write 0 (even) to 100; 1 is Poisson")
    if options.burstiness is not None and options.clients is not None:
        raise CommandError("--burstiness needs --rate or --trace: --clients wait for each answer")
    if options.peak_to_trough is not None and (options.rate is None or options.trace is not None):
        raise CommandError("--peak-to-trough needs --rate, without --trace")
    if options.peak_to_trough is not None and not 1 <= options.peak_to_trough < math.inf:
        raise CommandError(f"--peak-to-trough {options.peak_to_trough:g}: write a number from 1, such as 3")
    if options.max_tokens is not None and options.max_tokens < 1:
        raise CommandError(f"--max-tokens {options.max_tokens}: write a whole number from 1")


def _traced(options: LoadOptions, path: Path) -> Load:
    """A trace of rates where its columns say so, else one of requests."""
    if set(RATE_COLUMNS) <= set(columns_of(path)):
        category, _, model = (options.trace_model or "").rpartition("/")
        if options.trace_model is not None and not model:
            raise CommandError(f"--trace-model {options.trace_model!r}: write MODEL, or CATEGORY/MODEL")
        rates = read_rates(path, model=model or None, category=category or None)
        whose = f"the rates of {options.trace_model}" if options.trace_model is not None else "the rates"
        scale = 1.0 if options.rate is None else options.rate / rates.mean
        _refuse_flood(path, rates.mean * scale)
        curve, content = rates.curve(scale=scale, repeat=True), _content(options)
        burstiness = 1.0 if options.burstiness is None else options.burstiness
        return Load(
            f"{whose} in {path.name}, {rates.mean * scale:.3g} requests/s on average, {_lengths(options)}",
            lambda seed: OpenLoop(curve, content, burstiness=burstiness, seed=seed),
        )
    if (options.trace_model, options.burstiness, options.prompt_tokens, options.output_tokens) != (None,) * 4:
        raise CommandError(
            f"{path} holds requests: --trace-model, --burstiness, --prompt-tokens and --output-tokens are for rates"
        )
    trace = read_requests(path)
    factor = 1.0 if options.rate is None else options.rate / trace.rate
    if factor * len(trace.requests) < 1:
        raise CommandError(f"--rate {options.rate:g}: too low, no request of {path} is left")
    _refuse_flood(path, trace.rate * factor)
    return Load(
        f"the requests of {path.name}, {trace.rate * factor:.3g} requests/s on average",
        lambda seed: Replay(trace, rate=factor, repeat=True, max_tokens=options.max_tokens, seed=seed),
    )


def _refuse_flood(path: Path, rate: float) -> None:
    """Raise CommandError for more requests per second than --rate allows: their simulation would not end."""
    if not rate <= _MOST:
        raise CommandError(f"{path} has {rate:.3g} requests/s on average, more than {_MOST:.0f}: its times are seconds")


def _content(options: LoadOptions) -> Content:
    mix = Mix(
        prompt=length_of("--prompt-tokens", options.prompt_tokens or CHAT_PROMPTS),
        output=length_of("--output-tokens", options.output_tokens or CHAT_OUTPUTS),
        max_tokens=options.max_tokens,
    )
    return Content(mix)


def _lengths(options: LoadOptions) -> str:
    if options.prompt_tokens is None and options.output_tokens is None:
        return "prompt and output lengths of a measured chat service"
    return (
        f"prompts of {options.prompt_tokens or CHAT_PROMPTS} tokens, outputs of {options.output_tokens or CHAT_OUTPUTS}"
    )


def length_of(option: str, text: str) -> Lengths:
    """Read a distribution of lengths. Raises CommandError, also for a trace that is none."""
    kind, _, rest = text.partition(":")
    try:
        match kind:
            case "uniform" if found := re.fullmatch(r"(\d{1,9})-(\d{1,9})", rest):
                return Uniform(int(found[1]), int(found[2]))
            case "lognormal":
                return _lognormal(rest)
            case "trace" if rest:
                requests = read_requests(Path(rest)).requests
                prompts = option == "--prompt-tokens"
                return Empirical([one.prompt_tokens if prompts else one.output_tokens for one in requests])
            case _:
                if re.fullmatch(r"\d{1,9}", text):
                    return Fixed(int(text))
    except TraceError as error:
        raise CommandError(f"{option}: {error}") from None
    except ValueError as error:
        raise CommandError(f"{option} {text!r}: {error}") from None
    raise CommandError(f"{option} {text!r} is not a length: write {LENGTHS_HELP}")


def _lognormal(text: str) -> LogNormal:
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if name not in ("p50", "p95", "max") or name in values or not re.fullmatch(r"\d{1,9}(\.\d{1,3})?", number):
            raise ValueError("write lognormal:p50=1000,p95=4000, and if need be ,max=16000")
        values[name] = float(number)
    if not {"p50", "p95"} <= values.keys():
        raise ValueError("p50 and p95 are needed")
    plain = LogNormal(p50=values["p50"], p95=values["p95"])
    return replace(plain, longest=int(values["max"])) if "max" in values else plain


def engine_flags(text: str | None) -> EngineFlags:
    """Read the engine's flags. Raises CommandError for one that it does not have, FlagError for a value."""
    flags = parse_command_line(text or "")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parse_arguments(["serve", *_without_serve(shlex.split(text or ""))])
    except SystemExit:
        last = (said.getvalue().strip().splitlines() or ["--help is not a flag to simulate"])[-1]
        raise CommandError(f"--engine-args: {last}") from None
    return flags


def _without_serve(arguments: Sequence[str]) -> Sequence[str]:
    for program in ("vllm", "serve"):
        if arguments and arguments[0] == program:
            arguments = arguments[1:]
    return arguments


def time_of(option: str, text: str) -> float:
    """Read a duration in seconds, zero allowed. Raises CommandError."""
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise CommandError(f"{option} {text!r}: {error}") from None


def within_a_week(option: str, seconds: float) -> float:
    """Return the seconds. Raises CommandError above a week."""
    if seconds > WEEK:
        raise CommandError(f"{option}: write at most {WEEK / 3600:g}h of virtual time")
    return seconds


def replicas_of(option: str, count: int) -> int:
    """Return the number of replicas. Raises CommandError."""
    if not 1 <= count <= MOST_REPLICAS:
        raise CommandError(f"{option} {count}: write a whole number from 1 to {MOST_REPLICAS}")
    return count


def profile_of(name: str) -> ProfileDocument:
    """Return the profile of that name or file. Raises CommandError, naming those that are there."""
    try:
        return profile_document(name)
    except ProfileError as error:
        raise CommandError(f"--engine-profile: {error}") from None


def _positive(option: str, value: float | None) -> float:
    if value is None or not 1e-6 <= value <= _MOST:
        raise CommandError(f"{option} {value:g}: write a number above 0, at most {_MOST:.0f}")
    return value
