"""What recommendations foretold and what came, in `VLLMService.status`: how far the next one can be trusted.

Only of recommendations that the operator did not carry out: a change of its own has a verdict, in the history.
"""

from enum import StrEnum
from typing import Annotated, Final

from vllm_autotuner.api.fields import Number, Timestamp, most_important
from vllm_autotuner.api.grounds import Prediction
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import ApiModel

__all__ = ["FORETOLD_LENGTH", "Came", "ComparedBy", "Foretold"]

FORETOLD_LENGTH: Final = 3
"""TTFT, TPOT and tokens per second: what can be measured."""


class ComparedBy(StrEnum):
    """How a prediction came to be tested."""

    VALUE = "Value"
    """The knob has had the recommended value since, under a load like the one of then."""

    LOAD = "Load"
    """The value is the old one, but the load moved to the batch that was foretold: TPOT can be compared."""


class Came(ApiModel):
    """What was measured when a prediction could be tested: medians over windows; absent is not known."""

    at: Timestamp
    """End of the last window."""

    compared_by: ComparedBy
    """How it came to be tested."""

    windows: int
    """How many windows were alike."""

    ttft_seconds: Number = None
    """Time to first token at the objective's quantile."""

    tpot_seconds: Number = None
    """Time per output token at the objective's quantile."""

    tokens_per_second: Number = None
    """Generated tokens."""

    held: bool | None = None
    """No latency was worse than foretold by more than the tolerance; absent when none could be compared."""


class Foretold(ApiModel):
    """One recommendation that was made, and what came of what it foretold."""

    id: str
    """Of the recommendation."""

    knob: str
    """Which knob."""

    current: str | None = None
    """Its value then; absent when it was the engine's default."""

    recommended: str
    """The recommended value."""

    made_at: Timestamp
    """When it was made."""

    knobs: EngineKnobs = EngineKnobs()
    """What ran then."""

    replicas: int | None = None
    """How many replicas there were."""

    in_system: Number = None
    """Requests that ran and waited then, of all replicas."""

    arrivals_per_second: Number = None
    """Requests that came in then."""

    predicted: Annotated[tuple[Prediction, ...], *most_important(FORETOLD_LENGTH)] = ()
    """What it foretold."""

    came: Came | None = None
    """What came; absent while nothing tested it."""
