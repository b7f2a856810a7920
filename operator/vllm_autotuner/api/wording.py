"""Formats numbers for messages: times and counts, the same in statuses, Events and command output.

In the lowest layer, because diagnosis, planning and verdicts all format the same times.
Must not: turn an unknown value into a number. Nothing parses these texts.
"""

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["counted", "told_advice", "told_apart", "told_seconds", "told_value", "told_waiting", "with_unit"]

WHOLE: Final = 10
"""Milliseconds from which no decimals are shown; smaller values have two digits, as an objective may be below 1 ms."""


def counted(number: int, noun: str) -> str:
    """A count with its regular noun. Worked: 1 pod, 3 pods."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def with_unit(number: str, unit: str) -> str:
    """A number as it is shown, with its unit in words. Worked: 1 GPU, 2 GPUs, 1 token/s, 1.2 tokens/s, 1 s."""
    noun, per, time = unit.partition("/")
    if number == "1":
        noun = noun.removesuffix("s") or noun
    return f"{number} {noun}{per}{time}".strip()


def told_value(
    knob: str,
    before: int | str | None,
    after: int | str,
    *,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
) -> str:
    """A value with those that go with it. Worked: tensorParallelSize 2 -> 1 with maxNumSeqs 174."""
    companions = {"maxNumSeqs": max_num_seqs, "maxModelLen": max_model_len}
    told = " and ".join(f"{name} {value}" for name, value in companions.items() if value is not None)
    return f"{knob} {before or 'default'} -> {after}" + (f" with {told}" if told else "")


def told_advice(advice: Mapping[str, Any]) -> str:
    """The same of a recommendation as a status has it, which may have been edited by hand."""
    companions = {"max_model_len": advice.get("maxModelLen"), "max_num_seqs": advice.get("maxNumSeqs")}
    return told_value(advice["knob"], advice.get("current"), advice["recommended"], **companions)


def told_waiting(requests: float) -> str:
    """How many requests wait, as a clause. Worked: 1 request waits, 3 requests wait."""
    number = round(requests)
    return f"{counted(number, 'request')} {'waits' if number == 1 else 'wait'}"


def told_seconds(seconds: float) -> str:
    """A time in the unit that fits. Worked: 2.4 s, 508 ms, 4.2 ms, 0.45 ms."""
    return _told(seconds, finer=0)


def told_apart(seconds: float, limit: float) -> tuple[str, str]:
    """A time and its limit, with one digit more where both would read the same. Worked: 9.04 ms and 9 ms.

    Where that does not tell them apart either, a time over its limit is "just over" it.
    """
    told = (told_seconds(seconds), told_seconds(limit))
    if told[0] != told[1] or seconds == limit:
        return told
    told = (_told(seconds, finer=1), _told(limit, finer=1))
    return (f"just over {told[0]}", told[1]) if told[0] == told[1] and seconds > limit else told


def _told(seconds: float, *, finer: int) -> str:
    """`finer`: digits more than usual."""
    thousandths = seconds * 1000
    if round(thousandths) >= 1000:
        return f"{seconds:.{1 + finer}f} s"
    return f"{thousandths:.{finer}f} ms" if thousandths >= WHOLE else f"{thousandths:.{2 + finer}g} ms"
