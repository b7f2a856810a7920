"""The engines that scenarios are drawn from: the profiles that come with the simulator, or a file of that kind.

Must not: hold a figure of an engine; those are fitted from measured curves and stand in the profiles.
"""

from collections.abc import Sequence
from typing import Final

from benchmarks.closedloop.scenario import Hardware
from vllm_autotuner.simulation.profiles import profile_document, profile_names

__all__ = ["hardware_of"]

MAX_MODEL_LEN: Final = 16_384
"""What the users of these services set: four times the longest prompts drawn, and far below the models' own."""


def hardware_of(names: Sequence[str] | None) -> Sequence[Hardware]:
    """Each named profile at every tensor parallel size it was measured at; None is all. Raises ProfileError."""
    found = []
    for name in names or profile_names():
        document = profile_document(name)
        found += [
            Hardware(
                name=f"{document.name} TP{size}",
                profile=document.profile,
                tensor_parallel_size=size,
                max_model_len=min(MAX_MODEL_LEN, document.profile.model_max_len),
                model=document.model + ("-FP8" if document.provenance.get("weights") == "fp8" else ""),
                gpu=document.gpu,
            )
            for size in document.tensor_parallel_sizes
        ]
    return found
