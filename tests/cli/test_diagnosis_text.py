"""Evidence and recommendation as `diagnose` prints them."""

from collections.abc import Callable

import pytest

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.cli.diagnosis.text import proposal_lines, quantity
from vllm_autotuner.overview.number_format import figure
from vllm_autotuner.planning.proposal import Predicted, Proposal

TPOT = Predicted(name="TPOT", unit="s", current=0.05, predicted=0.03)
TOKENS = Predicted(name="output tokens per second", unit="tokens/s", current=512.0, predicted=512.0)
GOODPUT = Predicted(name="goodput", unit="tokens/s", current=300.0, predicted=512.0)


def effects(*predicted: Predicted) -> list[str]:
    proposal = Proposal(
        knob=Knob.REPLICAS, current=1, value=2, target=ChangeTarget.TPOT, reason="Late.", confidence=Confidence.MEDIUM,
        predicted=predicted,
    )  # fmt: skip
    return list(proposal_lines(proposal))[1:]


def test_both_sides_of_an_effect_are_said_to_be_of_the_model() -> None:
    assert effects(TPOT, GOODPUT) == [
        "By the model, TPOT: 50 ms -> 30 ms.",
        "By the model, goodput: 300 tokens/s -> 512 tokens/s.",
    ]


def test_what_the_model_leaves_as_it_is_is_not_called_unmodelled() -> None:
    assert effects(TOKENS, TPOT)[1:] == ["By the model, unchanged: output tokens per second (512 tokens/s)."]
    assert effects(TOKENS) == ["Not modelled: the effect on output tokens per second."]


@pytest.mark.parametrize("written", [quantity, figure])
def test_one_of_a_unit_is_written_in_the_singular(written: Callable[[float | None, str], str]) -> None:
    assert [written(number, "GPUs") for number in (1.0, 2.0)] == ["1 GPU", "2 GPUs"]
    assert written(1.0, "sequences") == "1 sequence"
