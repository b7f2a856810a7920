"""Writes `guardrails.md` from the catalogue and the code that it names: `make docs`.

Apart from the catalogue, because the page needs values of every package and only this repository needs the page. A test
compares the page with its sources.
Must not: contain facts of its own.
"""

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from vllm_autotuner.api.durations import format_duration
from vllm_autotuner.guardrails.catalogue.guardrail_row import Guardrail
from vllm_autotuner.guardrails.chain import GUARDRAILS as CHAIN
from vllm_autotuner.guardrails.concurrency import Share
from vllm_autotuner.guardrails.guardrail_catalogue import GUARDRAIL_CATALOGUE
from vllm_autotuner.guardrails.reasons import PASSING, HoldReason

PAGE = Path(__file__).with_name("guardrails.md")
REFERENCE: Final = re.compile(r"\{(?P<name>[\w.]+:\w+)(?:\.(?P<field>\w+))?(?:\|(?P<format>\w+))?\}")
"""`{module:NAME}`, `{module:Class.field}`, `{module:NAME|format}`; see `catalogue.guardrail_row`."""
DAY: Final = timedelta(days=1)

HEAD = """# Guardrails

Generated from the catalogue and the code by `make docs`; do not edit. A guardrail stops a change before it begins, ends
a running change, or limits the harm that it can do. Recommendations need none of them, and a rollback waits for none of
them (G26). Defaults are taken from the code. "Not built" names what the guardrail does not cover, with the reason.
"""
REASONS = """## Why a change does not begin

Every link of the chain is evaluated, in this order; the strictest answer appears in `status.recommendation.reason`. The
reasons are constants that alerts can match. Reasons marked * clear by themselves.
"""


def page() -> str:
    """The whole page."""
    lines = [HEAD, "| id | guardrail | prevents | default | where |", "|---|---|---|---|---|"]
    for row in GUARDRAIL_CATALOGUE:
        texts = (row.name, row.prevents, row.default or "-")
        cells = (f"[{row.id}](#{row.id.lower()})", *map(filled, texts), row.where.value)
        lines.append(f"| {' | '.join(cells)} |")
    sections = (line for row in GUARDRAIL_CATALOGUE for line in _section(row))
    lines += ["", *sections, REASONS, *_chain(), "", *_reasons()]
    return "\n".join(lines) + "\n"


def resolved(name: str) -> object:
    """The object that a row names. Raises ImportError or AttributeError when there is none."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(f"vllm_autotuner.{module}"), attribute)


def filled(text: str) -> str:
    """Replace every reference by its value. Raises ImportError, AttributeError or ValueError for an unknown one.

    Worked: `{guardrails.cooldown:BUDGET_WINDOW}` becomes `24h`.
    """
    found = REFERENCE.sub(_value, text)
    if "{" in found or "}" in found:
        raise ValueError(f"not a reference: {text}")
    return found


def _value(reference: re.Match[str]) -> str:
    value = resolved(reference["name"])
    if reference["field"] is not None:
        value = _default_of(value, reference["field"])
    match reference["format"], value:
        case None, _:
            return _written(value)
        case "percent", float():
            return f"{value:.0%}"
        case "seconds", float():
            return _written(timedelta(seconds=value))
        case "factors", Mapping():
            return ", ".join(f"{_written(name)} x{_written(factor)}" for name, factor in value.items())
        case _:
            raise ValueError(f"no format of this value: {reference[0]}")


def _default_of(owner: object, name: str) -> object:
    """The default of a field of a pydantic model or of a dataclass."""
    if isinstance(owner, type) and issubclass(owner, BaseModel):
        return owner.model_fields[name].get_default(call_default_factory=True)
    if isinstance(owner, type) and is_dataclass(owner):
        return {each.name: each.default for each in fields(owner)}[name]
    raise ValueError(f"{owner} has no fields with defaults")


def _written(value: object) -> str:
    match value:
        case Enum():
            return str(value.value)
        case timedelta() if value >= 2 * DAY and not value % DAY:
            return f"{value // DAY} days"
        case timedelta():
            return format_duration(value)
        case Share():
            return value.text
        case tuple():
            return ", ".join(map(_written, value))
        case int() | float():
            return f"{value:g}"
        case _:
            raise ValueError(f"no number, duration or name: {value}")


def _section(row: Guardrail) -> Iterator[str]:
    yield from (f"## {row.id}", "", f"**{filled(row.name)}**: prevents {filled(row.prevents)}.", "")
    for each in row.objects:
        # Guardrail functions say what they check; for other code the link is enough.
        if each.startswith("guardrails."):
            yield from (_sentence(resolved(each)), "")
    if row.default:
        yield from (f"Default: {filled(row.default)}.", "")
    if row.missing:
        yield from (f"Not built: {filled(row.missing)}.", "")
    yield from (f"- code: `{each}`" for each in row.objects)
    yield from (f"- test: `{each}`" for each in row.tests)
    yield ""


def _sentence(found: object) -> str:
    """The first paragraph of its docstring."""
    return (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ")


def _chain() -> Iterator[str]:
    yield from ("| link | check |", "|---|---|")
    yield from (f"| `{link.__name__}` | {_sentence(link)} |" for link in CHAIN)


def _reasons() -> Iterator[str]:
    """The reasons with the sentence under each; only the source contains those."""
    lines = inspect.getsource(HoldReason).splitlines()
    yield from ("| reason | meaning |", "|---|---|")
    for index, line in enumerate(lines):
        name, _, value = line.strip().partition(" = ")
        if name in HoldReason.__members__:
            told = " ".join(each.strip() for each in _docstring(lines[index + 1 :]))
            mark = " *" if HoldReason[name] in PASSING else ""
            yield f"| {value.strip(chr(34))}{mark} | {told} |"


def _docstring(lines: list[str]) -> Iterator[str]:
    for index, line in enumerate(lines):
        text = line.strip()
        yield text.strip('"')
        if text.endswith('"""') and (index or len(text) > len('"""')):
            return


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
