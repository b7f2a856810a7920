"""Texts and JSON values that are nearly right: a sample with a few things wrong in it, the same for the same `Random`.

Must not: know a parser. Sizes are bounded, so that the time of a run is.
"""

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final

REQUIRED: Final = frozenset({"name", "containers", "metadata", "key", "operator", "type"})
"""Fields that every object of their kind has."""

__all__ = ["LONGEST", "mutated_bytes", "mutated_json", "mutated_text", "odd_value", "typed_json"]

LONGEST: Final = 96 * 1024
"""Characters of an input."""
TOKENS: Final = (
    "", "\0", " ", "\t", "\r\n", "\n\n", "\x85", "\u2028", "\u00e9", "\U0001f600", "\u0663", "\ufeff", "\\ud800",
    "\x1b[2J", '"', "'", "\\", "\\n", '\\"', "\\\n", "`", "$(A)", "$(", "${A}", "{", "}", "[", "]", "(", ")", ",", ":",
    "=", "#", " # ", ";", "&&", "|", "%", "/", "..", "*", "+", "-", "--", "NaN", "Inf", "+Inf", "-Inf", "-0", "0", "1",
    "-1", "1e400", "-1e400", "1e-400", "9" * 25, "9" * 4400, "0x1f", "1_000", "true", "null", "None", "le=", 'le="abc"',
    'le=""', "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "8k", "8K", "1.5K", "9999999h", "1h1h", "auto",
    "_total", "_bucket", "vllm:", "# TYPE", "--max-num-seqs", "--max-num-seqs=", "-tp", "serve", "non-default args: {",
    "Application startup complete.", "OutOfMemoryError: ", "ERROR 11-20 10:00:00 [a.py:1] ",
)  # fmt: skip
"""What has a meaning to one of the parsers, or had once where it should not."""
TEXTS: Final = ("", " ", "a", "\u00e9" * 300, "x" * 2000, "x" * 70_000)


def mutated_text(samples: Sequence[str], chance: Random) -> str:
    """One of the samples, with one to eight changes."""
    text = chance.choice(samples)
    for _ in range(chance.choice((1, 1, 2, 3, 5, 8))):
        begin = chance.randrange(len(text) + 1)
        end = min(len(text), begin + chance.choice((0, 1, 1, 2, 5, 20, 100)))
        match chance.randrange(9):
            case 0:
                text = text[:begin] + text[end:]
            case 1 | 2 | 3:
                text = text[:begin] + chance.choice(TOKENS) + text[end:]
            case 4:
                text = text[:begin] + text[begin:end] * chance.choice((2, 3, 50, 3000)) + text[end:]
            case 5:
                other = chance.choice(samples)
                place = chance.randrange(len(other) + 1)
                text = text[:begin] + other[place : place + 200] + text[end:]
            case 6:
                text = text[:begin]
            case 7:
                text = text[:begin] + chr(chance.randrange(32, 127)) + text[begin + 1 :]
            case _:
                text = text[:begin] + chance.choice(TOKENS) * chance.choice((1, 2, 1000)) + text[begin:]
        text = text[:LONGEST]
    return text


def mutated_bytes(samples: Sequence[bytes], chance: Random) -> bytes:
    """The same for bytes: as text, and then a few bytes that are none."""
    raw = mutated_text([sample.decode("latin-1") for sample in samples], chance).encode("utf-8", "replace")
    for _ in range(chance.choice((0, 0, 1, 3))):
        place = chance.randrange(len(raw) + 1)
        raw = raw[:place] + bytes([chance.randrange(256)]) + raw[place + chance.randrange(2) :]
    return raw


def odd_value(chance: Random) -> Any:
    """A JSON value that hardly anybody expects."""
    match chance.randrange(10):
        case 0:
            return chance.choice((None, True, False, [], {}, [[]], {"": {}}, [None]))
        case 1:
            return chance.choice((0, 1, -1, 2**31, 2**63, -(2**70), 10**400, 0.5, 1e308, -1e308, 5e-324))
        case 2 | 3:
            return chance.choice(TEXTS)
        case 4 | 5 | 6:
            return chance.choice(TOKENS)
        case 7:
            return [chance.choice(TOKENS) for _ in range(chance.choice((1, 3, 200)))]
        case 8:
            return {chance.choice(TOKENS): chance.choice(TOKENS) for _ in range(chance.choice((1, 3, 100)))}
        case _:
            return _nested(chance.choice((5, 40, 90)), chance)


def mutated_json(samples: Sequence[Any], chance: Random) -> Any:
    """One of the samples, with one to four of its parts replaced, repeated, renamed or gone."""
    value = copy.deepcopy(chance.choice(samples))
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        parent, key = _place(value, chance)
        if parent is None:
            return odd_value(chance)
        _change(parent, key, chance)
    return value


def typed_json(samples: Sequence[Any], chance: Random) -> Any:
    """The same where types are held by whoever stores the object: texts, numbers and what may be left out differ."""
    value = copy.deepcopy(chance.choice(samples))
    for _ in range(chance.choice((1, 1, 2, 4))):
        parent, key = _place(value, chance)
        if parent is None:
            continue
        found = parent[key]
        if isinstance(found, bool):
            parent[key] = not found
        elif isinstance(found, int):
            parent[key] = chance.choice((0, 1, 2**31 - 1))
        elif isinstance(found, str):
            text = mutated_text([found, *TOKENS], chance)
            # As JSON reads it: no lone surrogates, and a date stays a date.
            parent[key] = found if _is_time(found) else text[:4096]
        elif isinstance(found, list) and found:
            _change_list(found, chance)
        elif isinstance(found, dict) and found and chance.random() < 0.5:
            found.pop(chance.choice([name for name in found if name not in REQUIRED] or [""]), None)
    return value


def _is_time(text: str) -> bool:
    return len(text) >= 20 and text[4:5] == "-" and text[10:11] == "T"


def _place(value: Any, chance: Random) -> tuple[Any, Any]:
    """A part of the value, deeper ones more often: what holds it, and its key there."""
    parent, key, node = None, None, value
    while isinstance(node, dict | list) and node and (parent is None or chance.random() < 0.85):
        parent, key = node, chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
        node = parent[key]
    return parent, key


def _change(parent: Any, key: Any, chance: Random) -> None:
    match chance.randrange(8):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[chance.choice((*TOKENS, str(key).upper(), f"{key}s"))] = parent.pop(key)
        case 2 if isinstance(parent[key], list) and parent[key]:
            _change_list(parent[key], chance)
        case 3 if isinstance(parent[key], str):
            parent[key] = mutated_text([parent[key], *TOKENS], chance)
        case 4 if isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            parent[key] = parent[key] * chance.choice((-1, 0, 2, 1000, 10**9)) + chance.choice((-1, 0, 1))
        case 5:
            parent[key] = {chance.choice(TOKENS): parent[key]}
        case 6:
            parent[key] = [parent[key]]
        case _:
            parent[key] = odd_value(chance)


def _change_list(found: list[Any], chance: Random) -> None:
    match chance.randrange(4):
        case 0:
            del found[chance.randrange(len(found))]
        case 1:
            chance.shuffle(found)
        case _:
            found.extend(copy.deepcopy(chance.choice(found)) for _ in range(chance.choice((1, 2, 40))))


def _nested(levels: int, chance: Random) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if chance.random() < 0.5 else [value]
    return value


def as_json(value: Any) -> Any:
    """The value as a JSON reader gives it."""
    return json.loads(json.dumps(value))
