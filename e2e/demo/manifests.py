"""The services of the demo, as a user would write them. Only the pod template knows that the engine is simulated."""

from typing import Any, Final

from e2e.operator_account import vllm_service
from e2e.stage import ENGINE_IMAGE, MODEL, engine_env
from vllm_autotuner.simulation.load import Traffic

NAMESPACE: Final = "demo"

BRIEF: Final = {"warmUp": "3s", "analysis": "50s", "bake": "12s", "provisioningDeadline": "2m"}
"""Phases of seconds instead of minutes, so that the story is told in minutes: six windows of ten seconds for a
verdict, and one to bake."""
GPUS: Final = 2
"""Devices of the cluster: as many as `code` has taken."""


def chat() -> dict[str, Any]:
    """Three replicas with max-num-seqs 4 and twice as many clients: ConcurrencyCapped."""
    return vllm_service(
        NAMESPACE,
        "chat",
        replicas=3,
        engine={"image": ENGINE_IMAGE, "maxNumSeqs": 4},
        podTemplate=engine_env(step_base_ms=15, step_per_seq_ms=0.5, startup_seconds=1),
        objectives={"profile": "Latency", "ttft": {"target": "1s"}, "tpot": {"target": "50ms"}},
        tuning={"mode": "Recommend", "maxNumSeqs": {"min": 2, "max": 32}, "strategy": BRIEF, "cooldown": "10m"},
    )


def real_chat() -> dict[str, Any]:
    """The same for the real vLLM with a tiny model on the CPU, which takes its time to start: a single replica."""
    return vllm_service(
        NAMESPACE,
        "chat",
        engine={"image": ENGINE_IMAGE, "maxNumSeqs": 4, "maxModelLen": 2048},
        podTemplate={"spec": {"terminationGracePeriodSeconds": 20}},
        objectives={"profile": "Latency", "ttft": {"target": "1s"}, "tpot": {"target": "100ms"}},
        tuning={
            "mode": "Recommend",
            "maxNumSeqs": {"min": 2, "max": 32},
            "strategy": BRIEF | {"provisioningDeadline": "10m"},
            "cooldown": "10m",
        },
    )


REAL_TALK: Final = Traffic(model=MODEL, prompt_tokens=(50, 200), output_tokens=(100, 150))
"""Short enough for fifty requests in the time of a verdict, on a CPU."""


def search() -> dict[str, Any]:
    """max-num-seqs 32, where each further sequence slows down every token without adding throughput: past the knee.

    With fewer of them requests wait for 2 to 3 s, where they waited for 0.1: by how much the mean grew is known to a
    factor of two in so short a trial, and has to be inside for sure.
    """
    return vllm_service(
        NAMESPACE,
        "search",
        engine={"image": ENGINE_IMAGE, "maxNumSeqs": 32},
        podTemplate=engine_env(step_base_ms=2, step_per_seq_ms=2.7, startup_seconds=1),
        objectives={"profile": "Throughput", "ttft": {"target": "10s"}, "tpot": {"target": "50ms"}},
        tuning={"mode": "Automatic", "maxNumSeqs": {"min": 4, "max": 64}, "strategy": BRIEF, "cooldown": "10m"},
    )


def api() -> dict[str, Any]:
    """One to three replicas; max-num-seqs has no bounds, so only the replicas may change."""
    service = vllm_service(
        NAMESPACE,
        "api",
        engine={"image": ENGINE_IMAGE, "maxNumSeqs": 6},
        podTemplate=engine_env(step_base_ms=15, step_per_seq_ms=0.5, startup_seconds=1),
        objectives={"profile": "Bursty", "ttft": {"target": "1s"}, "tpot": {"target": "50ms"}},
        scaling={
            "minReplicas": 1,
            "maxReplicas": 3,
            "scaleOut": {"waitingFor": "30s"},
            "scaleIn": {"stabilization": "30s"},
        },
        tuning={"mode": "Automatic", "strategy": BRIEF},
    )
    del service["spec"]["replicas"]
    return service


def batch() -> dict[str, Any]:
    """An engine that becomes six times slower above max-num-seqs 4: raising it looks right and regresses."""
    return vllm_service(
        NAMESPACE,
        "batch",
        replicas=3,
        engine={"image": ENGINE_IMAGE, "maxNumSeqs": 4},
        podTemplate=engine_env(
            step_base_ms=15, step_per_seq_ms=0.5, startup_seconds=1, degrade_above_seqs=4, degrade_factor=6
        ),
        objectives={"profile": "Latency", "ttft": {"target": "1s"}, "tpot": {"target": "50ms"}},
        tuning={"mode": "Automatic", "maxNumSeqs": {"min": 2, "max": 32}, "strategy": BRIEF, "cooldown": "10m"},
    )


def code() -> dict[str, Any]:
    """Capped like chat, but with a GPU for each replica, and no other in the cluster."""
    return vllm_service(
        NAMESPACE,
        "code",
        replicas=GPUS,
        engine={"image": ENGINE_IMAGE, "maxNumSeqs": 4},
        accelerator={"resourceName": "nvidia.com/gpu"},
        podTemplate=engine_env(step_base_ms=15, step_per_seq_ms=0.5, startup_seconds=1),
        objectives={"profile": "Latency", "ttft": {"target": "1s"}, "tpot": {"target": "50ms"}},
        tuning={
            "mode": "Automatic",
            "maxNumSeqs": {"min": 2, "max": 32},
            "strategy": BRIEF | {"provisioningDeadline": "25s"},
            "cooldown": "10m",
        },
    )


def all_services() -> tuple[dict[str, Any], ...]:
    """Every service of the story."""
    return chat(), search(), api(), batch(), code()
