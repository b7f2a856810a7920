"""Writes `diagnosis-classes.md` from the rules themselves: `make docs`.

Separate from the product, because only this repository's documentation needs it. A test compares the page to the rules.
Must not: say anything that is not in the rules, the classes or the advice.
"""

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.diagnose import AT_ONCE, CONFIRMATIONS, MOST_CONTRADICTIONS
from vllm_autotuner.diagnosis.evidence import Threshold
from vllm_autotuner.diagnosis.finding import Rule
from vllm_autotuner.diagnosis.rules import RULES
from vllm_autotuner.observation.noise import NOISE
from vllm_autotuner.planning.advice import ADVICE

PAGE = Path(__file__).with_name("diagnosis-classes.md")

HEAD = f"""# Diagnosis classes

Generated from the rules by `make docs`; do not edit.

The classes are listed in order of precedence: the first class that holds is the primary one, later ones contribute.
A new class is named after {CONFIRMATIONS} consecutive evaluations ({", ".join(sorted(AT_ONCE))}: after one). After
{MOST_CONTRADICTIONS} consecutive evaluations that contradict the named class, the newest class replaces it.
A threshold called `stay` applies while its class is already named, and so does {1 - NOISE:.0%} of an objective in place
of the objective. Missing data is never zero: a rule without its input says so.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, *(_section(number, rule) for number, rule in enumerate(RULES, start=1)), _unclear()]
    return "\n".join(parts)


def _section(number: int, rule: Rule) -> str:
    lines = [f"## {number}. {rule.diagnosis.value}", "", inspect.cleandoc(type(rule).__doc__ or ""), ""]
    if rows := list(_rows(rule)):
        lines += ["| threshold | value | unit | why | source |", "|---|---|---|---|---|", *rows, ""]
    return "\n".join([*lines, *_advice(rule.diagnosis)])


def _rows(rule: object, *, prefix: str = "") -> Iterator[str]:
    if not is_dataclass(rule):
        return
    for field in fields(rule):
        value = getattr(rule, field.name)
        name = f"{prefix}{field.name}"
        if isinstance(value, Threshold):
            yield f"| {name} | {value.limit:g} | {value.unit} | {value.reason} | {value.source} |"
        else:
            yield from _rows(value, prefix=f"{name}.")


def _advice(named: DiagnosisClass) -> Iterable[str]:
    yield "What helps:"
    yield from (f"- {line}" for line in ADVICE[named])
    yield ""


def _unclear() -> str:
    what = "No rule holds. The message names the missing or contradicting input."
    lines = [f"## {DiagnosisClass.UNCLEAR.value}", "", what, ""]
    return "\n".join([*lines, *_advice(DiagnosisClass.UNCLEAR)])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
