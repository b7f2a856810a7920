"""Predictions of recommendations against later measurements, as text.

Apart from the history, which shows changes; here the operator changed nothing. Must not: judge, or count untested
predictions.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from vllm_autotuner.cli.terminal import printable
from vllm_autotuner.overview.number_format import figure, moment

__all__ = ["record_lines"]

_ROWS: Final = (("TTFT", "ttftSeconds"), ("TPOT", "tpotSeconds"), ("output tokens per second", "tokensPerSecond"))
_COMPARED_BY: Final = {"Value": "the value was set by a user", "Load": "the load reached that batch size"}


def record_lines(record: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield a summary line and one line per tested prediction; nothing when none was tested."""
    tested = [each for each in record if each.get("came")]
    if not tested:
        return
    judged = [each["came"]["held"] for each in tested if "held" in each["came"]]
    yield Text(
        f"Track record: {sum(judged)} of {len(judged)} tested prediction(s) were correct",
        style="bold",
    )
    for each in reversed(tested):
        yield Text(printable(f"  {_line(each)}"))


def _line(foretold: Mapping[str, Any]) -> str:
    came = foretold["came"]
    values = f"{foretold['knob']} {foretold.get('current', 'default')} -> {foretold['recommended']}"
    why = _COMPARED_BY.get(came.get("comparedBy", ""), "it was tested")
    said = {each["name"]: each for each in foretold.get("predicted") or []}
    compared = [_compared(name, said[name], came[key]) for name, key in _ROWS if name in said and key in came]
    return f"{moment(foretold.get('madeAt'))}  {values}: {why}; {', '.join(compared) or 'not comparable'}"


def _compared(name: str, said: Mapping[str, Any], measured: float) -> str:
    unit, predicted = said.get("unit") or "", said.get("predicted")
    miss = f" ({measured / predicted - 1:+.0%})" if predicted else ""
    return f"{name} predicted {figure(predicted, unit)}, measured {figure(measured, unit)}{miss}"
