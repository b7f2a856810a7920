"""When a KV cache (the pool of KV blocks) counts as full, and the evidence for it; shared by four rules.

Must not: find out why it is full, or name a class.
"""

from typing import Final

from vllm_autotuner.diagnosis.case import Case, kv_max, kv_mean
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold, absence
from vllm_autotuner.observation.engine_window import EngineWindow

__all__ = ["HIGHEST", "MEAN", "PREEMPTED", "has_room", "is_full", "pool_evidence"]

HIGHEST: Final = Threshold(
    limit=0.9,
    unit="of the KV cache",
    reason="usage of a full cache dips after each preemption, so its maximum counts; below this a service is healthy",
    source="field report F3 (triage); recording kv-saturation",
)
MEAN: Final = Threshold(
    limit=0.8,
    unit="of the KV cache",
    reason="first sign of a full cache",
    source="field report F1 (KV residency on one GPU)",
)
PREEMPTED: Final = Threshold(
    limit=0.01,
    unit="of finished requests",
    reason="each preempted request is computed twice",
    source="field report F4 (sweep, Llama-70B on 4 A100)",
)


def is_full(engine: EngineWindow) -> bool:
    """Whether the KV cache is full: by its usage, or because the engine preempts."""
    highest, mean = kv_max(engine), kv_mean(engine)
    by_usage = highest is not None and mean is not None and (highest >= HIGHEST.limit or mean >= MEAN.limit)
    return by_usage or bool(engine.preemptions)


def has_room(engine: EngineWindow) -> bool:
    """Whether the KV cache admits all requests. If usage is not exported, the cache does not count as full."""
    usage = kv_max(engine)
    return (usage is None or usage < HIGHEST.limit) and not engine.preemptions


def pool_evidence(engine: EngineWindow, case: Case, *, near_full: Threshold = MEAN) -> tuple[Evidence, ...]:
    """Usage, preemptions and running sequences of one engine, with their limits. `near_full`: that of the mean."""
    highest, mean, window = kv_max(engine), kv_mean(engine), case.observation.window
    return (
        Evidence(
            name="KV usage, maximum",
            value=highest,
            unit="share",
            threshold=HIGHEST.limit,
            window=window,
            note=absence(highest),
        ),
        Evidence(
            name="KV usage, mean",
            value=mean,
            unit="share",
            threshold=near_full.limit,
            window=window,
            note=absence(mean),
        ),
        Evidence(
            name="preemptions",
            value=engine.preemptions,
            unit="requests",
            threshold=0,
            window=window,
            note=absence(engine.preemptions),
        ),
        Evidence(
            name="running, maximum",
            value=max(moment.running for moment in engine.moments),
            unit="sequences",
            threshold=case.knobs.max_num_seqs,
            window=window,
            note="" if case.knobs.max_num_seqs else "max-num-seqs is not known",
        ),
    )
