"""Curve files: latency against load, one CSV file a curve, as rows with their meaning.

Apart from everything that models, because a wrong row must be found here, with file, line and reason.
Must not: judge whether a point is saturated, or drop a row.
"""

import csv
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Curve", "CurveError", "Load", "Point", "read_curves"]

X: Final = "concurrency_or_max_num_seqs"
TPOT: Final = "tpot_ms_mean_or_p50"
NEEDED: Final = ("model", "gpu", "tp", X, TPOT, "isl", "osl")
"""Columns without which a row says nothing; the others may be missing or blank."""
SETTING: Final = ("model", "gpu", "tp", "kv_dtype", "vllm_version", "weight_dtype", "x_kind", "source_url")
SAME_MIX: Final = 0.1
"""Relative. Lengths in one file that differ by more are two curves: rounding differs by 2 %, mixes by a factor."""


class CurveError(Exception):
    """A folder or file that is no curve; the message names file, line and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the x axis counts."""

    closed: bool
    """So many clients, each with one request under way; False: arrivals that do not wait, x is the mean in system."""
    is_max_num_seqs: bool
    """Each point is another server with as many seats as clients."""
    is_rate: bool = False
    """x is the arrivals per second of an open loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured row; seconds and tokens."""

    x: float
    tpot: float
    ttft: float | None
    throughput: float | None
    """Output tokens per second."""
    prompt_tokens: float
    output_tokens: float
    line: int
    waiting: float | None = None
    """Mean number of requests that wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The points of one file that share a set-up and a length mix, by rising x."""

    file: str
    model: str
    gpu: str
    tensor_parallel_size: int
    kv_dtype: str
    version: str
    weights: str
    source: str
    load: Load
    shortest: float
    """Real lengths are drawn evenly from this part of the nominal ones up to all of them; 1: exact lengths."""
    seats: int | None
    """max-num-seqs, where the notes say so."""
    batched_tokens: int | None
    """max-num-batched-tokens, where the notes say so."""
    utilization: float | None
    """gpu-memory-utilization, where the notes say so."""
    points: tuple[Point, ...]

    @property
    def mix(self) -> str:
        """The nominal lengths, such as 1024x128."""
        return f"{self.points[0].prompt_tokens:.0f}x{self.points[0].output_tokens:.0f}"

    @property
    def mean_share(self) -> float:
        """The mean length as a part of the nominal one."""
        return (1 + self.shortest) / 2

    @property
    def bytes_per_weight(self) -> float:
        """How weights are stored, as far as the file tells; 16 bit where it does not."""
        if re.search(r"int4|w4|awq|gptq|fp4|4bit", self.weights.lower()):
            return 0.5
        return 1.0 if re.search(r"fp8|int8|w8|8bit", self.weights.lower()) else 2.0

    @property
    def fp8_kv(self) -> bool:
        """Whether the KV cache is declared to be 8 bit."""
        return self.kv_dtype.lower().startswith("fp8")


def read_curves(folder: Path) -> tuple[Curve, ...]:
    """Read every CSV file of a folder. Raises CurveError."""
    if not folder.is_dir():
        raise CurveError(f"{folder}: no such folder")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".csv")
    if not files:
        raise CurveError(f"{folder}: no .csv file in it")
    return tuple(curve for path in files for curve in _curves(path))


def _curves(path: Path) -> Iterator[Curve]:
    curves: list[list[tuple[Point, Mapping[str, str]]]] = []
    for line, row in _rows(path):
        point = _point(path, line, row)
        for members in curves:
            first, first_row = members[0]
            if _same_mix(first, point) and all(row.get(name) == first_row.get(name) for name in SETTING):
                members.append((point, row))
                break
        else:
            curves.append([(point, row)])
    if not curves:
        raise CurveError(f"{path}: no rows")
    for members in curves:
        yield _curve(path, members)


def _same_mix(one: Point, other: Point) -> bool:
    return (
        abs(one.prompt_tokens - other.prompt_tokens) <= SAME_MIX * one.prompt_tokens
        and abs(one.output_tokens - other.output_tokens) <= SAME_MIX * one.output_tokens
    )


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if missing := [name for name in NEEDED if name not in header]:
                raise CurveError(f"{path}, line 1: no column {missing[0]}; needed are {', '.join(NEEDED)}")
            for row in reader:
                if row and len(row) != len(header):
                    raise CurveError(f"{path}, line {reader.line_num}: {len(row)} fields, the header has {len(header)}")
                if row:
                    yield reader.line_num, dict(zip(header, row, strict=True))
    except (OSError, UnicodeDecodeError) as error:
        raise CurveError(f"{path}: {error}") from None
    except csv.Error as error:
        raise CurveError(f"{path}, line {reader.line_num}: {error}") from None


def _point(path: Path, line: int, row: Mapping[str, str]) -> Point:
    def number(name: str, *, may_be_zero: bool = False) -> float:
        text = (row.get(name) or "").strip()
        try:
            value = float(text)
        except ValueError:
            raise CurveError(f"{path}, line {line}: {name} is {text!r}, not a number") from None
        if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
            raise CurveError(
                f"{path}, line {line}: {name} is {text}, and must be {'at least' if may_be_zero else 'above'} 0"
            )
        return value

    def optional(name: str, *, may_be_zero: bool = False) -> float | None:
        return number(name, may_be_zero=may_be_zero) if (row.get(name) or "").strip() else None

    for name in ("model", "gpu"):
        if not row[name].strip():
            raise CurveError(f"{path}, line {line}: {name} is empty")
    if number("tp") % 1:
        raise CurveError(f"{path}, line {line}: tp is {row['tp']}, not a whole number")
    if number("osl") < 2:
        raise CurveError(f"{path}, line {line}: osl is {row['osl']}, and there is no TPOT below 2 tokens")
    ttft = optional("ttft_ms")
    return Point(
        x=number(X),
        tpot=number(TPOT) / 1e3,
        ttft=None if ttft is None else ttft / 1e3,
        throughput=optional("throughput_tok_s"),
        prompt_tokens=number("isl"),
        output_tokens=number("osl"),
        line=line,
        waiting=optional("waiting", may_be_zero=True),
    )


def _curve(path: Path, members: list[tuple[Point, Mapping[str, str]]]) -> Curve:
    points = sorted((point for point, _ in members), key=lambda point: point.x)
    for before, after in itertools.pairwise(points):
        if before.x == after.x:
            raise CurveError(f"{path}, line {max(before.line, after.line)}: {X} {after.x:g} stands twice")
    row = members[0][1]
    kind = (row.get("x_kind") or "").lower()
    notes = row.get("notes") or ""
    in_system = "in_system" in kind or "in system" in kind
    is_rate = not in_system and re.search(r"rate|rps|qps|req/s", kind) is not None
    is_seats = "max_num_seqs" in kind
    if in_system and any(point.throughput is None for point in points):
        line = next(point.line for point in points if point.throughput is None)
        raise CurveError(f"{path}, line {line}: x counts requests in the system, so throughput_tok_s is needed")
    seats = _noted(r"max[_-]num[_-]seqs\s*[=:]?\s*(\d+)", notes)
    batched = _noted(r"(?:mnbt|max[_-]num[_-]batched[_-]tokens)\s*[=:]?\s*(\d+)", notes)
    shortest = _noted(r"lengths\s+(\d+)\s*-\s*100\s*% of nominal", notes)
    return Curve(
        file=path.name,
        model=row["model"].strip(),
        gpu=row["gpu"].strip(),
        tensor_parallel_size=int(float(row["tp"])),
        kv_dtype=(row.get("kv_dtype") or "").strip(),
        version=(row.get("vllm_version") or "").strip(),
        weights=(row.get("weight_dtype") or "").strip(),
        source=(row.get("source_url") or "").strip(),
        load=Load(closed=not in_system and not is_rate, is_max_num_seqs=is_seats, is_rate=is_rate),
        shortest=1.0 if shortest is None else shortest / 100,
        seats=None if seats is None else int(seats),
        batched_tokens=None if batched is None else int(batched),
        utilization=_noted(r"util(?:ization)?\s*[=:]?\s*(0?\.\d+)", notes),
        points=tuple(points),
    )


def _noted(pattern: str, notes: str) -> float | None:
    found = re.search(pattern, notes, re.IGNORECASE)
    return float(found.group(1)) if found else None
