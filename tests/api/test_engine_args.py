"""No spelling of a tuned flag passes the validation of `spec.engine.args`."""

import itertools

import pytest
from pydantic import TypeAdapter, ValidationError

from vllm_autotuner.api.engine_args import EngineArg
from vllm_autotuner.engine.flags import TUNED_FLAGS, tuned_knob

ARGUMENT: TypeAdapter[str] = TypeAdapter(EngineArg)


def spellings() -> list[str]:
    """Every abbreviation of every tuned flag, with every mix of separators, with and without a value."""
    flags = {flag for known in TUNED_FLAGS.values() for flag in known}
    cut = {flag[:length] for flag in flags for length in range(3, len(flag) + 1)}
    mixed = set(cut)
    for flag in cut:
        words = flag.removeprefix("--").replace("_", "-").split("-")
        for separators in itertools.product("-_", repeat=len(words) - 1):
            tail = "".join(separator + word for separator, word in zip(separators, words[1:], strict=True))
            mixed.add(f"--{words[0]}{tail}" if flag.startswith("--") else flag)
    return sorted(flag + value for flag in mixed for value in ("", "=8"))


def test_the_engine_reads_many_spellings() -> None:
    assert sum(tuned_knob(spelling) is not None for spelling in spellings()) > 50


@pytest.mark.parametrize("spelling", [spelling for spelling in spellings() if tuned_knob(spelling)])
def test_is_refused_with_the_field_to_use(spelling: str) -> None:
    with pytest.raises(ValidationError, match=r"use spec\.engine\."):
        ARGUMENT.validate_python(spelling)


@pytest.mark.parametrize("joined", ["--max-num-seqs 64", "--enable-prefix-caching --max-num-seqs 64", "-tp\t2", "-O 3"])
def test_several_words_in_one_item_are_refused(joined: str) -> None:
    """The engine would read them as one word, and no rule of the others sees a tuned flag in it."""
    with pytest.raises(ValidationError, match="write one word per item"):
        ARGUMENT.validate_python(joined)


@pytest.mark.parametrize(
    "harmless",
    ["64", "--seed", "-O3", "--max-num-batched-tokens", "--kv-transfer-config", "-t", '--x={"a": 1}', "two words"],
)
def test_anything_else_is_accepted(harmless: str) -> None:
    assert tuned_knob(harmless) is None
    assert ARGUMENT.validate_python(harmless) == harmless
