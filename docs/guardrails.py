"""Writes `guardrails.md` from the catalogue and the code it names: `make docs`.

Apart from the catalogue, because only this repository's documentation needs it. A test holds the page to its sources.
Must not: say anything that is in neither.
"""

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

from docs.guardrail_catalogue import GUARDRAILS, Guardrail
from vllm_autotuner.guardrails.chain import GUARDRAILS as CHAIN
from vllm_autotuner.guardrails.reasons import PASSING, HoldReason

PAGE = Path(__file__).with_name("guardrails.md")

HEAD = """# Guardrails

Generated from the catalogue and the code by `make docs`; do not edit. A guardrail keeps a change from beginning, ends
one, or keeps it from doing harm. What only recommends needs none of them, and undoing waits for none of them (G26).
"Not built" says what of the idea is missing, and why.
"""
REASONS = """## Why a change does not begin

All links of the chain are asked in this order; the strictest answer is told in `status.recommendation.reason`. The
reasons are constants for alerts. Those marked * pass by themselves.
"""


def page() -> str:
    """The whole page."""
    lines = [HEAD, "| id | guardrail | prevents | default | where |", "|---|---|---|---|---|"]
    for row in GUARDRAILS:
        cells = (f"[{row.id}](#{row.id.lower()})", row.name, row.prevents, row.default or "-", row.where.value)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(line for row in GUARDRAILS for line in _section(row)), REASONS, *_chain(), "", *_reasons()]
    return "\n".join(lines) + "\n"


def resolved(name: str) -> object:
    """The object that a row names. Raises ImportError or AttributeError when there is none."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(f"vllm_autotuner.{module}"), attribute)


def _section(row: Guardrail) -> Iterator[str]:
    yield from (f"## {row.id}", "", f"**{row.name}**: prevents {row.prevents}.", "")
    for each in row.objects:
        # What the policies ask; what other rooms do is told where they are.
        if each.startswith("guardrails."):
            yield from (_sentence(resolved(each)), "")
    if row.default:
        yield from (f"Default: {row.default}.", "")
    if row.missing:
        yield from (f"Not built: {row.missing}.", "")
    yield from (f"- code: `{each}`" for each in row.objects)
    yield from (f"- test: `{each}`" for each in row.tests)
    yield ""


def _sentence(found: object) -> str:
    """The first sentence of its docstring."""
    return (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ")


def _chain() -> Iterator[str]:
    yield from ("| link | what it asks |", "|---|---|")
    yield from (f"| `{link.__name__}` | {_sentence(link)} |" for link in CHAIN)


def _reasons() -> Iterator[str]:
    """The reasons with the sentence under each; only the source has those."""
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
