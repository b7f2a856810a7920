"""A recording of one engine as columns, one row a scrape, with what its description says of the load.

Apart from the reconstruction, because the simulated engine's scrapes are read by the same function: whatever is
compared was read in the same way. Must not: guess. A family that is missing or a counter that falls is an error.

* BadRecording
  - no description beside the samples, or one without what is needed
  - samples that are damaged, cut off, of several engines, or without a family that a replay rests on
"""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_autotuner.engine.flags import EngineFlags, FlagError, flags_from, parse_flags
from vllm_autotuner.engine.metric_names import CACHE_INFO
from vllm_autotuner.observation.errors import Unreadable
from vllm_autotuner.observation.questions import Samples
from vllm_autotuner.observation.recording import Recording, load_recording
from vllm_autotuner.observation.series import Series

__all__ = ["BadRecording", "Description", "Phase", "Recorded", "read_columns", "read_recorded"]

Column: TypeAlias = NDArray[np.float64]

_GAUGES: Final = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
}
_COUNTERS: Final = {
    "finished": "vllm:request_success_total",
    "preemptions": "vllm:num_preemptions_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "steps": "vllm:iteration_tokens_total_count",
    "first_tokens": "vllm:time_to_first_token_seconds_count",
    "finished_output": "vllm:request_generation_tokens_sum",
    "itl_seconds": "vllm:inter_token_latency_seconds_sum",
    "itl_count": "vllm:inter_token_latency_seconds_count",
    "prefill_seconds": "vllm:request_prefill_time_seconds_sum",
    "prefill_count": "vllm:request_prefill_time_seconds_count",
    "inference_seconds": "vllm:request_inference_time_seconds_sum",
}


class BadRecording(ValueError):
    """Nothing can be replayed from this; the message names the file and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What the load generator was told to do from `start` on (seconds after the first scrape)."""

    start: float
    prompt: tuple[int, int]
    output: tuple[int, int]
    """Tokens, drawn evenly from this range, ends included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The engine's flags and the load. The nominal rate is left out: the generator did not keep it."""

    flags: EngineFlags
    """Where its command line says nothing, the defaults that it took on its machine, as far as they are known."""
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One row a scrape. Counters begin at 0 at the first scrape; seconds, tokens, requests, ratios 0..1."""

    name: str
    source: Recording
    start: float
    """Unix seconds of the first scrape."""
    times: Column
    """Seconds after it."""
    running: Column
    waiting: Column
    kv_usage: Column
    finished: Column
    preemptions: Column
    prompt_tokens: Column
    generation_tokens: Column
    steps: Column
    first_tokens: Column
    finished_output: Column
    """Output tokens of finished requests."""
    itl_seconds: Column
    itl_count: Column
    prefill_seconds: Column
    prefill_count: Column
    inference_seconds: Column
    """From first scheduled to finished, summed over finished requests: time preempted is in it."""
    block_size: int
    num_gpu_blocks: int
    model_name: str

    @property
    def arrived(self) -> NDArray[np.int64]:
        """Requests that had come by each scrape: those that left and those that are there."""
        return np.rint(self.finished + self.running + self.waiting).astype(np.int64)

    @property
    def seconds(self) -> float:
        """From the first scrape to the last."""
        return float(self.times[-1])


def read_recorded(samples: Path) -> tuple[Recorded, Description]:
    """Read NAME.om or NAME.om.gz and NAME.json beside it. Raises BadRecording."""
    try:
        source = load_recording(samples)
    except Unreadable as error:
        raise BadRecording(str(error)) from error
    name = samples.name.removesuffix(".gz").removesuffix(".om")
    recorded = read_columns(source, name=str(samples))
    return recorded, _description(samples.with_name(f"{name}.json"), start=recorded.start)


def read_columns(source: Recording, *, name: str) -> Recorded:
    """Read the columns that a replay needs. Raises BadRecording."""
    found = _all_series(source)
    times = _times_of(found, name=name)
    columns = {column: _summed(found, family, times=times, name=name) for column, family in _GAUGES.items()}
    for column, family in _COUNTERS.items():
        values = _summed(found, family, times=times, name=name)
        if np.any(np.diff(values) < 0):
            row = int(np.argmax(np.diff(values) < 0)) + 1
            raise BadRecording(f"{name}: {family} falls at +{times[row] - times[0]:.0f} s: the engine was restarted")
        columns[column] = values - values[0]
    info = found.get(CACHE_INFO)
    if not info:
        raise BadRecording(f"{name}: no {CACHE_INFO}, so the size of the KV pool is unknown")
    return Recorded(
        name=Path(name).name.removesuffix(".gz").removesuffix(".om"),
        source=source,
        start=float(times[0]),
        times=times - times[0],
        block_size=_label(info[0].labels, "block_size", name=name),
        num_gpu_blocks=_label(info[0].labels, "num_gpu_blocks", name=name),
        model_name=found[_GAUGES["running"]][0].labels.get("model_name", ""),
        **columns,
    )


def _all_series(source: Recording) -> Mapping[str, Sequence[Series]]:
    names = (*_GAUGES.values(), *_COUNTERS.values(), CACHE_INFO)
    # One second more than it lasts: a window leaves its start out.
    window = math.ceil(source.last - source.first) + 1
    series = asyncio.run(source.ask(Samples(names=names, window=window), at=source.last))
    found: dict[str, list[Series]] = {}
    for one in series:
        found.setdefault(one.name, []).append(one)
    return found


def _times_of(found: Mapping[str, Sequence[Series]], *, name: str) -> Column:
    series = found.get(_GAUGES["running"], ())
    if len(series) != 1:
        raise BadRecording(f"{name}: {len(series)} engines export {_GAUGES['running']}; a replay is of one engine")
    if len(series[0].times) < 3:
        raise BadRecording(f"{name}: {len(series[0].times)} scrapes; nothing can be learned from fewer than 3")
    return np.asarray(series[0].times, dtype=np.float64)


def _summed(found: Mapping[str, Sequence[Series]], family: str, *, times: Column, name: str) -> Column:
    if not found.get(family):
        raise BadRecording(f"{name}: no {family}")
    total = np.zeros(len(times))
    for series in found[family]:
        if not np.array_equal(np.asarray(series.times), times):
            raise BadRecording(
                f"{name}: {family} has {len(series.times)} of {len(times)} scrapes: the recording is cut off or mixed"
            )
        total += np.asarray(series.values)
    if not np.all(np.isfinite(total)) or np.any(total < 0):
        raise BadRecording(f"{name}: {family} holds a value that is not a finite number of 0 or more")
    return total


def _label(labels: Mapping[str, str], label: str, *, name: str) -> int:
    try:
        value = int(labels.get(label, ""))
    except ValueError:
        value = 0
    if value < 1:
        raise BadRecording(f"{name}: {CACHE_INFO} has {label}={labels.get(label)!r}, which is no number above 0")
    return value


def _description(path: Path, *, start: float) -> Description:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadRecording(f"there is no {path}: a replay needs the engine's flags and the lengths it holds") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRecording(f"{path} cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise BadRecording(f"{path}, line {error.lineno}: not JSON ({error.msg}); is it cut off?") from None
    try:
        flags = _flags(document["argv"], defaults=document.get("defaults", {}))
        pairs = list(zip(document["phases"], document["phase_starts"], strict=True))
        phases = tuple(_phase(entry, start=float(begins) - start) for entry, begins in pairs)
    except FlagError as error:
        raise BadRecording(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise BadRecording(
            f"{path}: needs `argv`, and one of `phases` ([seconds, rate, [prompt from, to], [output from, to]]) "
            "for each of `phase_starts` (Unix seconds); may have `defaults` (vLLM's names and values); found "
            f"{type(error).__name__}: {error}"
        ) from None
    if not phases:
        raise BadRecording(f"{path}: `phases` is empty")
    return Description(flags=flags, phases=phases)


def _flags(argv: Sequence[Any], *, defaults: Mapping[str, object]) -> EngineFlags:
    """Read the command line; `defaults` says what the engine took where that says nothing, by vLLM's names."""
    given, taken = parse_flags([str(argument) for argument in argv]), flags_from(defaults)
    if taken.unknown:
        raise ValueError(f"defaults: {', '.join(taken.unknown)}")
    missing = [field.name for field in fields(given) if getattr(given, field.name) is None]
    return replace(given, **{name: getattr(taken, name) for name in missing})


def _phase(entry: Any, *, start: float) -> Phase:
    _, _, prompt, output = entry
    return Phase(start=start, prompt=_lengths(prompt), output=_lengths(output))


def _lengths(entry: Any) -> tuple[int, int]:
    shortest, longest = (int(value) for value in entry)
    if not 1 <= shortest <= longest:
        raise ValueError(f"{entry} is no range of lengths")
    return shortest, longest
