"""The recommendation that a status shows, and whether one that stands says the same as what is proposed now.

Apart from `proposing`, which decides what is tried: here is only what a person is asked, and for how long his answer
counts. Must not: hold anything back.
"""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from vllm_autotuner.api.spec import Mode
from vllm_autotuner.api.status import Recommendation
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.control.decide.status_evidence import predicted_of
from vllm_autotuner.guardrails.chain import Allow, Deny, Hold, strictest
from vllm_autotuner.planning.proposal import Proposal

__all__ = ["ASKED_FOR", "asked_too_long", "recommended", "still_says", "value_said"]

SAME_RECOMMENDATION: Final = 0.2
"""A value that moved by less than this share is still the same recommendation: a new id for each tick would write each
tick, and nobody could approve it. Our choice, unmeasured."""
ASKED_FOR: Final = timedelta(hours=24)
"""After so long in mode Approve the question is asked anew, under another id: an approval is for what a person has seen
lately (G41). Research 8.1."""
_NOT_APPLIED: Final = " Not applied: "


def recommended(
    proposal: Proposal | None, held: Sequence[Hold | Deny], *, before: Recommendation | None, inputs: Inputs
) -> Recommendation | None:
    """The recommendation to show; the standing one while it still says the same, and is held for the same cause."""
    if proposal is None:
        return None
    objection = strictest(held)
    # What keeps it from being applied is part of the explanation.
    held_by = None if isinstance(objection, Allow) else objection.reason.value
    obstacle = "" if isinstance(objection, Allow) else f"{_NOT_APPLIED}{objection.message}."
    if before is not None and still_says(before, proposal) and not asked_too_long(before, inputs):
        known = "".join(before.reason.partition(_NOT_APPLIED)[1:])
        # The figures in a reason move with every request: they are taken anew only when the obstacle is another one.
        same = known == obstacle and before.held_by == held_by
        return before if same else before.updated(reason=proposal.reason + obstacle, held_by=held_by)
    current, value = _text(proposal.current), proposal.value
    # With the time: a leave that was given once does not count for the same question when it comes back (G41).
    text = f"{inputs.service.metadata.uid}/{proposal.knob.value}/{current}/{value}/{inputs.now.isoformat()}"
    return Recommendation(
        id=hashlib.sha256(text.encode()).hexdigest()[:8],
        knob=proposal.knob.value,
        current=current,
        recommended=str(value),
        limited_by=proposal.limited_by,
        predicted=predicted_of(proposal),
        reason=proposal.reason + obstacle,
        confidence=proposal.confidence,
        held_by=held_by,
        first_seen=inputs.now,
    )


def asked_too_long(standing: Recommendation, inputs: Inputs) -> bool:
    """Whether the question to a person is so old that his answer does not count any more."""
    asked = standing.first_seen
    return inputs.mode is Mode.APPROVE and asked is not None and inputs.now - asked >= ASKED_FOR


def still_says(standing: Recommendation, proposal: Proposal) -> bool:
    """Whether a proposal is the recommendation that stands: same knob, same start, and about the same value."""
    if standing.knob != proposal.knob.value or standing.current != _text(proposal.current):
        return False
    said, value = value_said(standing), proposal.value
    if not isinstance(said, int) or not isinstance(value, int):
        return said == value
    return abs(said - value) <= SAME_RECOMMENDATION * said


def value_said(standing: Recommendation) -> int | str:
    """The recommended value as the knob's own kind: a person may have edited the status."""
    # Other scripts have decimals too, and int() reads them: what we write is ASCII.
    text = standing.recommended
    return int(text) if text.isascii() and text.isdecimal() else text


def _text(value: int | str | None) -> str | None:
    return None if value is None else str(value)
