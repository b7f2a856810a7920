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
    "ANSWER_BYTES",
    "ANSWER_SERIES",
    "BUDGETS",
    "COMMAND_LINE_BYTES",
    "JSON_DEPTH",
    "LOG_LINE_BYTES",
    "LOG_READ_SECONDS",
    "LOG_TICK_SECONDS",
    "LOOP_LAG_SECONDS",
    "MANAGED_FIELDS_BYTES",
    "OBJECT_BYTES",
    "PAGE_BYTES",
    "POD_TEMPLATE_BYTES",
    "POD_TEMPLATE_DEPTH",
    "READ_TICK_SECONDS",
    "REPORT_TICK_SECONDS",
    "STATUS_BYTES",
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
OBJECT_BYTES: Final = Budget(
    name="object-bytes",
    limit=256 * 1024,
    unit="bytes of JSON of one object",
    reason="Anybody who may create a pod or a Deployment chooses what it has; 1.3 MB of it take up to 28 MB of memory, "
    "and a page of a list has many objects. A VLLMService has 230 KB at most, a usual Deployment 20 KB.",
    beyond="its spec is not read, nor, if that is not enough, what is largest of its metadata. Such a VLLMService is "
    "Stalled with InvalidSpec, as is one that names such a Deployment; a Deployment or pod of a service, and a pod "
    "that holds GPUs, is not seen",
)
JSON_DEPTH: Final = Budget(
    name="json-depth",
    limit=64,
    unit="levels",
    reason="An object of 18 KB can be nested 3,000 levels deep; Python's JSON reader then gives up on the whole list. "
    "Objects of Kubernetes stay below 30.",
    beyond="what lies deeper is read as null, and the object is refused for its pod template",
)
COMMAND_LINE_BYTES: Final = Budget(
    name="command-line-bytes",
    limit=32 * 1024,
    unit="characters",
    reason="The owner of an adopted Deployment writes it, up to 256 KiB. Splitting a script takes time by the square "
    "of its length: 95 s for 800 KB. A script that starts an engine has 2 KB.",
    beyond="the flags count as not parsable: the service is diagnosed and not tuned",
)
LOG_LINE_BYTES: Final = Budget(
    name="log-line-bytes",
    limit=2048,
    unit="characters",
    reason="The crash log of a pod is what its image prints. The time to search a line grows with the square of its "
    "length: one of 64 KB took 4 s. vLLM's longest line that names a cause has 1 KB.",
    beyond="only the beginning of the line is searched for the cause of a crash",
)
LOG_READ_SECONDS: Final = Budget(
    name="log-read-seconds",
    limit=3,
    unit="seconds",
    reason="A log comes from the kubelet of the pod's node, through the API server; a healthy one answers within 1 s.",
    beyond="the pod's status says why its engine ended, and its node is not asked again for 2 minutes",
)
LOG_TICK_SECONDS: Final = Budget(
    name="log-tick-seconds",
    limit=5,
    unit="seconds per tick",
    reason="A third of a tick. Where a zone is gone, every log in it runs into its timeout: 12 services made a tick of "
    "255 s, and the liveness probe ended the operator.",
    beyond="the remaining logs are read in a later tick",
)
ANSWER_BYTES: Final = Budget(
    name="answer-bytes",
    limit=256 * 2**20,
    unit="bytes of one answer of Prometheus",
    reason="The raw samples of 2,000 engines that are scraped every 2 s have 100 MB. They are read as they arrive and "
    "not kept: this limit ends an endless answer.",
    beyond="the metrics source counts as failed in this tick",
)
ANSWER_SERIES: Final = Budget(
    name="answer-series",
    limit=150_000,
    unit="series of all answers of one look at a Prometheus (of 64 samples; one with more counts as several)",
    reason="Each costs about 1 KB while a tick lasts, and the chart's memory limit is 512 MB: 300,000 in one answer "
    "took 1.6 GB and blocked the loop for 25 s. An engine has 157.",
    beyond="the namespace with the most series is left out of the look, and its engines are unreadable",
)
LOOP_LAG_SECONDS: Final = Budget(
    name="loop-lag-seconds",
    limit=5,
    unit="seconds",
    reason="While the event loop is blocked, the Lease is not renewed (15 s) and no probe is answered. Large data is "
    "read in threads, so that 0.2 s are rare.",
    beyond="the operator is not ready for a minute",
)
PAGE_BYTES: Final = Budget(
    name="page-bytes",
    limit=32 * 2**20,
    unit="bytes of one page of metrics (diagnose --metrics)",
    reason="An engine's has 50 KiB; an aggregating gateway's may have some MiB.",
    beyond="the page counts as a failed scrape",
)
READ_TICK_SECONDS: Final = Budget(
    name="read-tick-seconds",
    limit=5,
    unit="seconds per tick, of adopted Deployments and of free GPUs each",
    reason="A third of a tick. Where the API server takes 3 s for an answer, 500 adopted Deployments take over 3 "
    "minutes, and a list of 15,000 pods longer: the liveness probe ends the operator, and running changes wait.",
    beyond="the remaining Deployments are read in a later tick, those with a running change in each; the list of pods "
    "goes on in the next one, and until it is complete the last answer holds",
)
REPORT_TICK_SECONDS: Final = Budget(
    name="report-tick-seconds",
    limit=5,
    unit="seconds per tick",
    reason="To write the status of an object as large as etcd takes keeps the API server busy for 3 s: ten of them "
    "made a tick of 35 s. All other services are handled before.",
    beyond="the remaining unreadable objects are reported in a later tick",
)
STATUS_BYTES: Final = Budget(
    name="status-bytes",
    limit=64 * 1024,
    unit="bytes of JSON",
    reason="The operator's own: with every list full and every text at its longest a status has 190 KB, which the API "
    "server stores, and sends to every watch, with each write.",
    beyond="evidence of past changes is dropped first, then texts are cut; what decisions depend on is kept",
)

BUDGETS: Final[tuple[Budget, ...]] = (
    POD_TEMPLATE_BYTES,
    POD_TEMPLATE_DEPTH,
    MANAGED_FIELDS_BYTES,
    OBJECT_BYTES,
    JSON_DEPTH,
    COMMAND_LINE_BYTES,
    LOG_LINE_BYTES,
    LOG_READ_SECONDS,
    LOG_TICK_SECONDS,
    ANSWER_BYTES,
    ANSWER_SERIES,
    PAGE_BYTES,
    READ_TICK_SECONDS,
    REPORT_TICK_SECONDS,
    STATUS_BYTES,
    LOOP_LAG_SECONDS,
)
"""All of them, in the order of the documentation."""
