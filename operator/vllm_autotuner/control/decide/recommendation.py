"""The recommendation in the status: when the current one stays, when it is replaced, and how long an approval is valid.

Apart from `proposing`, which decides what is tried. Must not: hold a change back.
"""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from vllm_autotuner.api.knobs import knob_value
from vllm_autotuner.api.spec import Mode
from vllm_autotuner.api.status import Recommendation
from vllm_autotuner.control.decide.inputs import Inputs
from vllm_autotuner.control.decide.status_evidence import predicted_of
from vllm_autotuner.guardrails.chain import Allow, Deny, Hold, strictest
from vllm_autotuner.planning.proposal import Proposal

__all__ = ["ASKED_FOR", "approval_expired", "recommended", "recommended_value", "still_says"]

SAME_RECOMMENDATION: Final = 0.2
"""A value that moved by less than this share is still the same recommendation: with a new id in each tick the status
would be written in each tick, and could not be approved. Our choice, unmeasured."""
ASKED_FOR: Final = timedelta(hours=24)
"""In mode Approve a recommendation gets a new id after this time: an approval must be recent (G41). Research 8.1."""
_NOT_APPLIED: Final = " Not applied: "


def recommended(
    proposal: Proposal | None, held: Sequence[Hold | Deny], *, before: Recommendation | None, inputs: Inputs
) -> Recommendation | None:
    """The recommendation to show; the current one as long as value and hold reason are the same."""
    if proposal is None:
        return None
    objection = strictest(held)
    # What keeps it from being applied is part of the explanation.
    held_by = None if isinstance(objection, Allow) else objection.reason.value
    obstacle = "" if isinstance(objection, Allow) else f"{_NOT_APPLIED}{objection.message}."
    if before is not None and still_says(before, proposal) and not approval_expired(before, inputs):
        known = "".join(before.reason.partition(_NOT_APPLIED)[1:])
        # The figures in a reason change with every request: the text is renewed only when the obstacle changes.
        same = known == obstacle and before.held_by == held_by
        return before if same else before.updated(reason=proposal.reason + obstacle, held_by=held_by)
    current, value = _text(proposal.current), proposal.value
    # With the time: an approval is not valid for the same recommendation when it comes back later (G41).
    wanted = f"{proposal.knob.value}/{current}/{value}/{proposal.max_model_len}/{proposal.max_num_seqs}"
    text = f"{inputs.service.metadata.uid}/{wanted}/{inputs.now.isoformat()}"
    return Recommendation(
        id=hashlib.sha256(text.encode()).hexdigest()[:8],
        knob=proposal.knob.value,
        current=current,
        recommended=str(value),
        max_model_len=proposal.max_model_len,
        max_num_seqs=proposal.max_num_seqs,
        limited_by=proposal.limited_by,
        predicted=predicted_of(proposal),
        reason=proposal.reason + obstacle,
        confidence=proposal.confidence,
        held_by=held_by,
        first_seen=inputs.now,
    )


def approval_expired(standing: Recommendation, inputs: Inputs) -> bool:
    """Whether the recommendation is so old that an approval of it is not valid any more."""
    asked = standing.first_seen
    return inputs.mode is Mode.APPROVE and asked is not None and inputs.now - asked >= ASKED_FOR


def still_says(standing: Recommendation, proposal: Proposal) -> bool:
    """Whether a proposal equals the current recommendation: same knob, same current value, and about the same value.

    And the same length that goes with it, and no more slots than those: who approves it approves them, too.
    """
    if standing.knob != proposal.knob.value or standing.current != _text(proposal.current):
        return False
    if standing.max_model_len != proposal.max_model_len:
        return False
    slots, wanted = standing.max_num_seqs, proposal.max_num_seqs
    # They follow the load: as many as were said are enough where fewer are wanted by now.
    if slots != wanted and (slots is None or wanted is None or wanted > slots):
        return False
    said, value = recommended_value(standing), proposal.value
    if not isinstance(said, int) or not isinstance(value, int):
        return said == value
    return abs(said - value) <= SAME_RECOMMENDATION * said


def recommended_value(standing: Recommendation) -> int | str:
    """The recommended value in the knob's own type."""
    return knob_value(standing.recommended)


def _text(value: int | str | None) -> str | None:
    return None if value is None else str(value)
