"""Whether a proposed max-num-seqs surely goes the way it is meant to. Pure.

Apart from `chain`, because `diagnose` asks the same without a spec. The engine does not export its present value: where
no flag and no spec names it, it is the engine's default, which depends on version and GPU. What is meant as a raise
above the requests that ran may then be far below what is allowed now.
"""

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.planning.proposal import Proposal

__all__ = ["may_lower_unknown"]


def may_lower_unknown(proposal: Proposal, *, most_running: float) -> bool:
    """Whether this max-num-seqs may lower a present value that is not known.

    `most_running`: sequences that one engine ran at once at most. The present value is no lower: fewer than these is a
    lowering in any case, and meant as one.
    """
    if proposal.knob is not Knob.MAX_NUM_SEQS or proposal.current is not None:
        return False
    return proposal.count >= most_running
