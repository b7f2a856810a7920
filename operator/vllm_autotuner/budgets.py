"""How much of somebody else's data the operator takes, each limit with its reason: bytes, depth, series, seconds.

One place, because they protect one process together: data of one service costs at most that service, a bounded time and
bounded memory. `docs/budgets.md` lists them; `vllm_autotuner_budget_exceeded_total` counts each time one of them bites.
Must not: enforce a limit. The code that reads the data does, and says on the object what it has left out.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = [
    "BUDGETS",
    "JSON_DEPTH",
    "MANAGED_FIELDS_BYTES",
    "POD_TEMPLATE_BYTES",
    "POD_TEMPLATE_DEPTH",
    "Budget",
    "exceeded_so_far",
]

_lock: Final = threading.Lock()
_exceeded: Final = Counter[str]()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One limit."""

    name: str
    """The value of the label `budget` of the metric."""
    limit: int
    unit: str
    reason: str
    """What it protects, and why it is no smaller."""
    beyond: str
    """What happens to data beyond it."""

    def exceeded(self) -> None:
        """Count that it was exceeded. May be called from any thread."""
        with _lock:
            _exceeded[self.name] += 1


def exceeded_so_far() -> Mapping[str, int]:
    """Return how often each budget was exceeded since the process began; those that never were are 0."""
    with _lock:
        return {budget.name: _exceeded[budget.name] for budget in BUDGETS}


POD_TEMPLATE_BYTES: Final = Budget(
    name="pod-template-bytes",
    limit=64 * 1024,
    unit="bytes of JSON",
    reason="Anybody who may create a VLLMService chooses this object; 1.3 MB of it cost 100 MB of memory and 5 s of "
    "each tick. A template with 16 containers and their environment has 20 KB.",
    beyond="the VLLMService is Stalled with InvalidSpec",
)
POD_TEMPLATE_DEPTH: Final = Budget(
    name="pod-template-depth",
    limit=32,
    unit="levels",
    reason="No reader is recursive without an end. The deepest field of a pod (a match expression of an affinity term) "
    "lies 11 levels deep.",
    beyond="the VLLMService is Stalled with InvalidSpec",
)
MANAGED_FIELDS_BYTES: Final = Budget(
    name="managed-fields-bytes",
    limit=128 * 1024,
    unit="bytes of JSON",
    reason="They repeat every key of an object, and nothing but the size of an object limits them. A Deployment's have "
    "10 KB.",
    beyond="they are read as empty: writes of other field managers are not seen on this object",
)
JSON_DEPTH: Final = Budget(
    name="json-depth",
    limit=64,
    unit="levels",
    reason="An object of 18 KB can be nested 3,000 levels deep; Python's JSON reader then gives up on the whole list. "
    "Objects of Kubernetes stay below 30.",
    beyond="what lies deeper is read as null, and the object is refused for its pod template",
)

BUDGETS: Final[tuple[Budget, ...]] = (POD_TEMPLATE_BYTES, POD_TEMPLATE_DEPTH, MANAGED_FIELDS_BYTES, JSON_DEPTH)
"""All of them, in the order of the documentation."""
