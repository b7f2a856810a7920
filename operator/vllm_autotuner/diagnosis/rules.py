"""The diagnosis classes in order of precedence: the first that holds is primary, later ones contribute.

Separate from the rules, because the order is a decision of its own.
Must not: compare a number (a rule does), read a clock, log, or name a remedy (`planning` does).
Assumes that `observation` has left out stale metrics. If that moves, `MetricsBlind` must be revisited.
"""

from typing import Final

from vllm_autotuner.diagnosis.cold_start import ColdStart
from vllm_autotuner.diagnosis.communication_bound import CommunicationBound
from vllm_autotuner.diagnosis.concurrency_capped import ConcurrencyCapped
from vllm_autotuner.diagnosis.context_oversized import ContextOversized
from vllm_autotuner.diagnosis.decode_bandwidth_bound import DecodeBandwidthBound
from vllm_autotuner.diagnosis.deferred_queue import DeferredQueue
from vllm_autotuner.diagnosis.finding import Rule
from vllm_autotuner.diagnosis.head_of_line_blocking import HeadOfLineBlocking
from vllm_autotuner.diagnosis.healthy import Healthy
from vllm_autotuner.diagnosis.idle import Idle
from vllm_autotuner.diagnosis.kv_cache_saturated import KVCacheSaturated
from vllm_autotuner.diagnosis.metrics_blind import MetricsBlind
from vllm_autotuner.diagnosis.overloaded import Overloaded
from vllm_autotuner.diagnosis.past_tpot_knee import PastTPOTKnee
from vllm_autotuner.diagnosis.preemption_thrash import PreemptionThrash
from vllm_autotuner.diagnosis.prefill_bound import PrefillBound
from vllm_autotuner.diagnosis.runaway_outputs import RunawayOutputs
from vllm_autotuner.diagnosis.startup_failure import StartupFailure
from vllm_autotuner.diagnosis.underutilized import Underutilized
from vllm_autotuner.diagnosis.wedged import Wedged

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    MetricsBlind(),  # first: missing metrics do not mean idle
    StartupFailure(),  # no pod serves, and the log says why
    ColdStart(),  # before every class about latency: an engine is slow while it warms up
    Wedged(),  # before every class that scales out: a hang looks like load
    Idle(),
    DeferredQueue(),  # before the capacity classes: this queue does not wait for capacity
    PreemptionThrash(),  # before its milder form
    KVCacheSaturated(),  # before the slots: with a full KV cache a larger max-num-seqs makes it worse
    ConcurrencyCapped(),
    HeadOfLineBlocking(),  # before the knee: a smaller batch does not help against a few huge requests
    PrefillBound(),  # before the knee: steps full of prompts are slow at any batch
    PastTPOTKnee(),
    DecodeBandwidthBound(),  # only where no smaller batch helps
    CommunicationBound(),
    RunawayOutputs(),  # before every class that adds GPUs
    ContextOversized(),  # contributes only
    Overloaded(),  # a queue that no class above explains
    Underutilized(),  # before Healthy: healthy as well, but with more replicas than needed
    Healthy(),
)
