"""Status models of the track record: predictions of recommendations and what was measured later.

Only recommendations that the operator did not apply itself: its own changes have a verdict in the history.
"""

from enum import StrEnum
from typing import Annotated, Final

from vllm_autotuner.api.fields import Number, Timestamp, most_important
from vllm_autotuner.api.grounds import Prediction
from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.api.model import ApiModel

__all__ = ["FORETOLD_LENGTH", "Came", "ComparedBy", "Foretold"]

FORETOLD_LENGTH: Final = 3
"""TTFT, TPOT and tokens per second: the predictions that can be measured."""


class ComparedBy(StrEnum):
    """How a prediction was tested."""

    VALUE = "Value"
    """A user set the recommended value, and the load is similar to that of the prediction."""

    LOAD = "Load"
    """The value is unchanged, but the load reached the predicted batch, so TPOT can be compared."""


class Came(ApiModel):
    """Measurements that tested a prediction: medians over windows; unknown numbers are absent."""

    at: Timestamp
    """End of the last window."""

    compared_by: ComparedBy
    """How it was tested."""

    windows: int
    """Number of comparable windows."""

    ttft_seconds: Number = None
    """Time to first token at the objective's quantile."""

    tpot_seconds: Number = None
    """Time per output token at the objective's quantile."""

    tokens_per_second: Number = None
    """Generated tokens."""

    held: bool | None = None
    """True if no latency exceeded its prediction by more than the tolerance; absent if none could be compared."""


class Foretold(ApiModel):
    """A recommendation with its prediction, and the measurements that tested it."""

    id: str
    """Id of the recommendation."""

    knob: str
    """The knob."""

    current: str | None = None
    """The value at that time; absent if it was the engine's default."""

    recommended: str
    """The recommended value."""

    max_num_seqs: int | None = None
    """max-num-seqs that goes with it; absent if it stays."""

    made_at: Timestamp
    """When it was made."""

    knobs: EngineKnobs = EngineKnobs()
    """The configuration at that time."""

    replicas: int | None = None
    """Number of replicas at that time."""

    in_system: Number = None
    """Running and waiting requests of all replicas at that time."""

    arrivals_per_second: Number = None
    """Incoming requests per second at that time."""

    predicted: Annotated[tuple[Prediction, ...], *most_important(FORETOLD_LENGTH)] = ()
    """The predicted effect."""

    came: Came | None = None
    """The measured result; absent until the prediction is tested."""
