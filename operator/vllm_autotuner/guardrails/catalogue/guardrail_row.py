"""One row of the guardrail catalogue: what a guardrail prevents, its default, its code and the tests that prove it.

Text may contain references, which the generator of `docs/guardrails.md` replaces by the current value:
`{module:NAME}` with the module below `vllm_autotuner`, `{module:Class.field}` for the default of a field, and with a
format `{module:NAME|percent}`, `|seconds` (a number of seconds as a duration) or `|factors` (a mapping as `name x2`).
So the catalogue can name values of every package and imports none of them.
Must not: contain a number; a test checks that all of them are references.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Guardrail", "Where"]


class Where(StrEnum):
    """The part of the operator that applies a guardrail."""

    CHAIN = "guardrail chain"
    CLUSTER = "Kubernetes adapter"
    LOOP = "fleet loop"
    MACHINE = "change state machine"
    METRICS = "metrics"
    PLANNER = "planner"
    QUEUE = "fleet queue"
    RENDERER = "renderer"
    STATUS = "status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardrail:
    """One row."""

    id: str
    name: str
    prevents: str
    default: str = ""
    """The values that apply without configuration; empty if there is nothing to set."""
    where: Where
    objects: tuple[str, ...]
    """`module:name` below vllm_autotuner; the docstrings of guardrail functions appear on the page."""
    tests: tuple[str, ...]
    """`file::function`."""
    missing: str = ""
    """The parts of the researched guardrail that are not built, with the reason; empty if all are."""
